package app

import (
	"testing"
	"time"

	"github.com/berth-cloud/berth/raftstore/record"
)

// A leader that was stopped for a while knows of no requests when it runs again, and of none
// that end its silence either: whatever it does first, it waits for reports as a new one.
func TestAStalledLeaderWaitsForReports(t *testing.T) {
	t.Parallel()
	app := &record.App{}
	for name, first := range map[string]func(h *heard){
		"look":     func(h *heard) { h.forget(func(string) bool { return true }) },
		"open":     func(h *heard) { h.open("app", "box") },
		"active":   func(h *heard) { h.activeAt(app) },
		"complete": func(*heard) {},
		"report":   func(h *heard) { h.take("other", nil) },
	} {
		now := time.Now()
		h := newHeard(func() time.Time { return now }, Config{ReportKept: 16 * time.Second})
		run := func(d time.Duration) {
			for range d / time.Second {
				now = now.Add(time.Second)
				h.take("edge", []Activity{{AppID: "app", Open: map[string]int{"box": 1}}})
				h.forget(func(string) bool { return true })
			}
		}
		run(20 * time.Second)
		if h.open("app", "box") != 1 || !h.complete() {
			t.Fatalf("%s: it does not know the requests", name)
		}
		now = now.Add(time.Minute)
		first(h)
		if h.complete() {
			t.Errorf("%s: it knows of %d requests and believes that these are all", name, h.open("app", "box"))
		}
		run(15 * time.Second)
		if h.complete() || h.open("app", "box") != 1 {
			t.Errorf("%s: it did not wait", name)
		}
		run(time.Second)
		if !h.complete() {
			t.Errorf("%s: it waits for longer than a new leader", name)
		}
	}
}
