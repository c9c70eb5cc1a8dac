package hosts_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// post sends a body to a route as a host, and returns the status and the answer.
func (r *rig) post(t *testing.T, host, path string, body any) (int, string) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	r.ServeHeartbeat(w, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(raw)), host)
	return w.Code, w.Body.String()
}

func TestAPartChangesOnlyWhatItSays(t *testing.T) {
	r := newRig(t, "h1")
	first := heartbeat("h1", 1, hostapi.BoxState{ID: "a", Generation: 1})
	if code, body := r.post(t, "h1", hostapi.PathHeartbeat, first); code != http.StatusOK {
		t.Fatal(code, body)
	}
	before, _ := r.Session("h1")

	same := first
	same.Sequence, same.Capacity.DiskFreeBytes = 2, 77
	if code, body := r.post(t, "h1", hostapi.PathHeartbeatPart, same.Since(first)); code != http.StatusOK {
		t.Fatal(code, body)
	}
	now, _ := r.Session("h1")
	if hb := now.Heartbeat; hb.Capacity.DiskFreeBytes != 77 || len(hb.Boxes) != 1 || len(hb.Templates) != 1 {
		t.Fatalf("%+v", hb)
	}
	if now.BoxesVersion != before.BoxesVersion || now.Shelf != before.Shelf {
		t.Fatal("what did not change counts as changed")
	}

	more := same
	more.Sequence, more.Boxes = 3, append(more.Boxes, hostapi.BoxState{ID: "b", Generation: 1})
	if code, body := r.post(t, "h1", hostapi.PathHeartbeatPart, more.Since(same)); code != http.StatusOK {
		t.Fatal(code, body)
	}
	if now, _ := r.Session("h1"); len(now.Heartbeat.Boxes) != 2 || now.BoxesVersion == before.BoxesVersion {
		t.Fatalf("%+v", now)
	}
}

func TestAPartWithoutTheHeartbeatBeforeItIsRefused(t *testing.T) {
	r := newRig(t, "h1")
	first := heartbeat("h1", 1)
	next := first
	next.Sequence = 2
	for name, c := range map[string]struct {
		heard bool
		part  hostapi.HeartbeatPart
		code  int
	}{
		"a new leader":             {false, next.Since(first), http.StatusConflict},
		"one was lost":             {true, hostapi.HeartbeatPart{Heartbeat: next, Before: 9}, http.StatusConflict},
		"another boot":             {true, func() hostapi.HeartbeatPart { p := next.Since(first); p.BootID = "b2"; return p }(), http.StatusConflict},
		"a list that nobody knows": {true, hostapi.HeartbeatPart{Heartbeat: next, Before: 1, Same: []string{"x"}}, http.StatusBadRequest},
		"another host's":           {true, func() hostapi.HeartbeatPart { p := next.Since(first); p.HostID = "h2"; return p }(), http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			r.Lead(7)
			if c.heard {
				r.send(t, first)
			}
			if code, body := r.post(t, "h1", hostapi.PathHeartbeatPart, c.part); code != c.code {
				t.Fatalf("%d %s, want %d", code, body, c.code)
			}
		})
	}
}

// Memory that was reserved for a box is given back by the part that reports the box, and
// not by one that says nothing of boxes.
func TestAPartGivesBackReservations(t *testing.T) {
	r := newRig(t, "h1")
	first := heartbeat("h1", 1)
	r.send(t, first)
	if _, err := r.Place(r.store.View(), "a", 1, placement.Request{Template: "base"}); err != nil {
		t.Fatal(err)
	}
	reserved := func() int { return r.Sessions()["h1"].ReservedMB }
	second := first
	second.Sequence = 2
	if code, body := r.post(t, "h1", hostapi.PathHeartbeatPart, second.Since(first)); code != http.StatusOK || reserved() == 0 {
		t.Fatal(code, body, reserved())
	}
	third := second
	third.Sequence, third.Boxes = 3, []hostapi.BoxState{{ID: "a", Generation: 1}}
	if code, body := r.post(t, "h1", hostapi.PathHeartbeatPart, third.Since(second)); code != http.StatusOK || reserved() != 0 {
		t.Fatal(code, body, reserved())
	}
}

func TestHostsWithTheSameTemplatesShareAShelf(t *testing.T) {
	r := newRig(t, "h1", "h2", "h3")
	shelf := func(id string) uint64 {
		s, ok := r.Session(id)
		if !ok {
			t.Fatal("no session of " + id)
		}
		return s.Shelf
	}
	r.send(t, heartbeat("h1", 1))
	same := heartbeat("h2", 1)
	same.Templates[0].SizeBytes = 5
	r.send(t, same)
	other := heartbeat("h3", 1)
	other.Templates[0].BuildID = "another"
	r.send(t, other)
	if shelf("h1") != shelf("h2") || shelf("h1") == shelf("h3") {
		t.Fatal(shelf("h1"), shelf("h2"), shelf("h3"))
	}
	// Placement sees each host's own.
	got, err := r.Place(r.store.View(), "a", 1, placement.Request{Template: "base", Builds: []string{"another"}})
	if err != nil || got.HostID != "h3" {
		t.Fatal(got, err)
	}
	changed := heartbeat("h1", 2)
	changed.Templates[0].BuildID = "another"
	r.send(t, changed)
	if shelf("h1") != shelf("h3") {
		t.Fatal(shelf("h1"), shelf("h3"))
	}
}
