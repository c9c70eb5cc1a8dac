package sandbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// hostIs waits until the host h1 is up or lost in the store.
func hostIs(t *testing.T, p *testplane.Plane, want record.HostState) {
	t.Helper()
	testcluster.Await(t, "host that is "+string(want), func() bool {
		a, _ := raftstore.Get(p.Leader().Store.View(), record.Hosts, "h1")
		return a.State == want
	})
}

// A host that was silent for longer than a lease returns with its boxes, and each
// sandbox has the same box again, in the box's current state.
func TestSilenceDestroysNothing(t *testing.T) {
	tier.Slow(t)
	for _, status := range []hostapi.Status{hostapi.StatusRunning, hostapi.StatusPaused, hostapi.StatusHibernated} {
		t.Run(string(status), func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h := p.Host("h1", 4096)
			running(p, h, id)
			h.Become(id, status)
			becomes(t, p, id, record.SandboxStatus(status))
			end := time.Now().Add(time.Hour).UTC()
			edit(p, id, func(s *record.Sandbox) { s.ExpiresAt = end })
			h.Silence(true)
			if s := becomes(t, p, id, record.SandboxFailed); s.Error != "its host is unreachable" {
				t.Fatalf("its error is %q", s.Error)
			}
			hostIs(t, p, record.HostLost)
			lost, _ := p.Sandbox(id)
			if l := lost.Lost; l.HostID != "h1" || l.At.IsZero() || l.Why != lost.Error {
				t.Errorf("lost: %+v", l)
			}
			h.Silence(false)
			s := becomes(t, p, id, record.SandboxStatus(status))
			if s.Error != "" || s.Lost != lost.Lost || s.Unreachable || s.Generation != 1 || s.HostID != "h1" || !s.ExpiresAt.Equal(end) {
				t.Errorf("it came back as %+v", s)
			}
			hostIs(t, p, record.HostUp)
			testcluster.Await(t, "the event", func() bool { return len(h.Events(id)) > 0 })
			p.Passes(5)
			if e := h.Events(id); len(e) != 1 || e[0].Type != hostapi.EventReturned || !strings.Contains(string(e[0].Metadata), s.Lost.At.Format(`"lost_at":"2006-01-02T15:04:05.000Z"`)) {
				t.Errorf("its events are %+v, it was lost at %s", e, s.Lost.At)
			}
			if b, there := h.Boxes()[id]; !there || b.Status != status {
				t.Errorf("its box is %+v", h.Boxes())
			}
		})
	}
}

// The state in which a box returns counts.
func TestAHostThatReturnsWithout(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		meanwhile func(p *testplane.Plane, boxes map[string]hostapi.Box)
		error     string
		boxes     int
	}{
		"the box": {func(_ *testplane.Plane, boxes map[string]hostapi.Box) { delete(boxes, id) }, "its virtual machine is gone from the host", 0},
		"its VM": {func(_ *testplane.Plane, boxes map[string]hostapi.Box) {
			b := boxes[id]
			b.Status, b.Error, b.Seq = hostapi.StatusFailed, "VMM died", b.Seq+1
			boxes[id] = b
		}, "VMM died", 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h := p.Host("h1", 4096)
			running(p, h, id)
			h.Silence(true)
			becomes(t, p, id, record.SandboxFailed)
			h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
				c.meanwhile(p, boxes)
			})
			h.Silence(false)
			testcluster.Await(t, "reason", func() bool {
				s, _ := p.Sandbox(id)
				return s.Status == record.SandboxFailed && s.Error == c.error && !s.Unreachable
			})
			p.Passes(5)
			if n := len(h.Boxes()); n != c.boxes {
				t.Errorf("the host has %d boxes, want %d", n, c.boxes)
			}
		})
	}
}

// A box whose sandbox was deleted or placed elsewhere while its host was silent is
// deleted when the host returns, and so is an exclusive one.
func TestWhatIsGivenUpMeanwhileGoes(t *testing.T) {
	tier.Slow(t)
	for name, meanwhile := range map[string]func(p *testplane.Plane){
		"deleted": func(p *testplane.Plane) {
			p.Update(func(tx *raftstore.Tx) error {
				s, _ := raftstore.Get(tx, record.Sandboxes, id)
				_, err := sandbox.Resource.BeginDelete(tx, flow.NewID(), s, "")
				return err
			})
			testcluster.Await(t, "end of the row", func() bool { _, ok := p.Sandbox(id); return !ok })
		},
		"placed elsewhere": func(p *testplane.Plane) {
			edit(p, id, func(s *record.Sandbox) { s.HostID, s.Generation = "h2", 2 })
		},
		"exclusive": nil,
	} {
		t.Run(name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h := p.Host("h1", 4096)
			running(p, h, id)
			edit(p, id, func(s *record.Sandbox) { s.Exclusive = meanwhile == nil })
			h.Silence(true)
			s := becomes(t, p, id, record.SandboxFailed)
			if meanwhile != nil {
				meanwhile(p)
			} else if s.Unreachable {
				t.Error("an exclusive sandbox is only unreachable")
			}
			h.Silence(false)
			testcluster.Await(t, "end of the box", func() bool { return len(h.Boxes()) == 0 })
			if s, ok := p.Sandbox(id); ok && s.Status != record.SandboxFailed {
				t.Errorf("it is %+v", s)
			}
		})
	}
}
