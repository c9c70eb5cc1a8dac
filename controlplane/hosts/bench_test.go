package hosts_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// fleet is a leading registry that has heard a thousand hosts, each with a hundred boxes
// and as many templates as given.
func fleet(b *testing.B, templates int) (*rig, []hostapi.Heartbeat) {
	const n = 1000
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("h%04d", i))
	}
	r := newRig(b, ids...)
	var all []hostapi.Heartbeat
	for _, id := range ids {
		hb := heartbeat(id, 1)
		hb.Capacity = hostapi.Capacity{MemoryMB: 1 << 20, ReservedMB: 100 * 600, Slots: 4000, SlotsUsed: 100, OverheadMBPerBox: 32}
		hb.Templates = nil
		for t := range templates {
			hb.Templates = append(hb.Templates, hostapi.TemplateState{Name: fmt.Sprintf("t%04d", t), BuildID: fmt.Sprintf("%064x", t), Status: "ready", MemoryMB: 512})
		}
		for box := range 100 {
			hb.Boxes = append(hb.Boxes, hostapi.BoxState{ID: fmt.Sprintf("%s-%04d", id, box), Generation: 1, Status: hostapi.StatusRunning, Persistent: new(false)})
		}
		if _, err := r.Heartbeat(b.Context(), hb); err != nil {
			b.Fatal(err)
		}
		all = append(all, hb)
	}
	return r, all
}

// One of a thousand hosts is chosen, while a hundred other creates are under way.
func BenchmarkPlace(b *testing.B) {
	for _, templates := range []int{10, 1000} {
		b.Run(fmt.Sprintf("templates=%d", templates), func(b *testing.B) {
			r, _ := fleet(b, templates)
			req := placement.Request{Template: "t0007", Builds: []string{fmt.Sprintf("%064x", 7)}}
			n := 0
			for b.Loop() {
				if _, err := r.Place(r.store.View(), fmt.Sprint(n), 1, req); err != nil {
					b.Fatal(err)
				}
				if n >= 100 {
					r.Release(fmt.Sprint(n - 100))
				}
				n++
			}
		})
	}
}

// A heartbeat of a host on which nothing has changed.
func BenchmarkTake(b *testing.B) {
	r, all := fleet(b, 1000)
	for b.Loop() {
		hb := &all[0]
		hb.Sequence++
		r.now = r.now.Add(time.Millisecond)
		if _, err := r.Heartbeat(b.Context(), *hb); err != nil {
			b.Fatal(err)
		}
	}
}
