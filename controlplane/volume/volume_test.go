package volume_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const id = volume.Prefix + "1"

func begin(p *testplane.Plane) string {
	flowID := flow.NewID()
	p.Update(func(tx *raftstore.Tx) error {
		if _, ok := flow.Live(tx, volume.Resource.Subject(id)); ok {
			return nil
		}
		return volume.Begin(tx, flowID, &record.Volume{
			Meta: record.Meta{ID: id}, WorkspaceID: "ws", Name: "data", Status: record.ResourceCreating, SizeMB: 256,
		}, volume.Create{Data: resource.Data{RequestID: "req"}})
	})
	return flowID
}

func wait(t *testing.T, p *testplane.Plane, flowID string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return p.LeaderNode().Engine.Wait(ctx, flowID, nil)
}

func remove(p *testplane.Plane) {
	p.Update(func(tx *raftstore.Tx) error {
		v, ok := raftstore.Get(tx, record.Volumes, id)
		if !ok {
			return nil
		}
		_, err := volume.Resource.BeginDelete(tx, flow.NewID(), v, "req")
		return err
	})
}

func row(p *testplane.Plane) (*record.Volume, bool) {
	return raftstore.Get(p.Leader().Store.View(), record.Volumes, id)
}

func gone(t *testing.T, p *testplane.Plane, hosts ...*fakehost.Host) {
	t.Helper()
	testcluster.Await(t, "the volume's end", func() bool { _, ok := row(p); return !ok })
	p.Settled(hosts...)
}

func refuse(op string, done bool, err error) fakehost.Fault {
	return func(_ context.Context, c fakehost.Call) error {
		if c.Op == op && c.Done == done {
			return err
		}
		return nil
	}
}

func TestAnotherHostIsTried(t *testing.T) {
	tier.Slow(t)
	for name, fault := range map[string]fakehost.Fault{
		"no disk":               refuse("volume", false, &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "full"}),
		"fails":                 refuse("volume", false, &hostapi.Error{Code: hostapi.CodeInternal, Message: "oops"}),
		"dies before it":        refuse("volume", false, fakehost.ErrDrop),
		"dies when it has made": refuse("volume", true, fakehost.ErrDrop),
	} {
		t.Run(name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h1, h2 := p.Host("h1", 4096), p.Host("h2", 4096)
			h1.SetFault(fault)
			if err := wait(t, p, begin(p)); err != nil {
				t.Fatal(err)
			}
			if v, _ := row(p); v.Status != record.ResourceReady || v.HostID != "h2" {
				t.Fatalf("%+v", v)
			}
			h1.SetFault(nil)
			p.Settled(h1, h2)
			remove(p)
			gone(t, p, h1, h2)
		})
	}
}

func TestNoHostIsLeft(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		fault fakehost.Fault
		want  error
	}{
		"no headroom": {refuse("volume", false, &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "full"}), volume.ErrNoRoom},
		"unreachable": {refuse("volume", false, fakehost.ErrDrop), core.ErrUnreachable},
		"fails":       {refuse("volume", false, &hostapi.Error{Code: hostapi.CodeInternal, Message: "oops"}), volume.ErrNotMade},
	} {
		t.Run(name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h := p.Host("h1", 4096)
			h.SetFault(c.fault)
			if err := wait(t, p, begin(p)); !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			gone(t, p, h)
		})
	}
	t.Run("full disks", func(t *testing.T) {
		p := testplane.New(t, 1, nil)
		h := p.Host("h1", 4096)
		h.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
			c.DiskFreeBytes = 255 << 20
		})
		testcluster.Await(t, "the heartbeat", func() bool {
			return p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Capacity.DiskFreeBytes == 255<<20
		})
		if err := wait(t, p, begin(p)); !errors.Is(err, volume.ErrNoRoom) {
			t.Fatal(err)
		}
	})
	t.Run("no hosts", func(t *testing.T) {
		p := testplane.New(t, 1, nil)
		if err := wait(t, p, begin(p)); !errors.Is(err, core.ErrNoHost) {
			t.Fatal(err)
		}
	})
}

var (
	points = []flow.Point{flow.BeforeAct, flow.BeforeCommit, flow.AfterCommit}
	cases  = []struct{ kind, step string }{
		{volume.Resource.CreateKind(), "place"}, {volume.Resource.CreateKind(), "make"}, {volume.Resource.DeleteKind(), "remove"},
	}
)

func TestCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, c := range cases {
		for _, at := range points {
			t.Run(fmt.Sprint(c.kind, " ", c.step, " ", at), func(t *testing.T) {
				t.Parallel()
				var n atomic.Int64
				p := testplane.New(t, 1, func(f *record.Flow, pt flow.Point) error {
					if f.Kind == c.kind && f.Step == c.step && pt == at && n.Add(1) <= 2 {
						return errors.New("crash")
					}
					return nil
				})
				h := p.Host("h1", 4096)
				if err := wait(t, p, begin(p)); err != nil {
					t.Fatal(err)
				}
				if len(h.Volumes()) != 1 {
					t.Fatalf("%d volumes", len(h.Volumes()))
				}
				remove(p)
				gone(t, p, h)
				// The last point of the last step comes after the row's end.
				testcluster.Await(t, "the step", func() bool { return n.Load() > 0 })
			})
		}
	}
}

func TestLeaderDiesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, c := range cases {
		for _, at := range points {
			t.Run(fmt.Sprint(c.kind, " ", c.step, " ", at), func(t *testing.T) {
				t.Parallel()
				var once sync.Once
				var p *testplane.Plane
				var old atomic.Pointer[testcluster.Replica]
				p = testplane.New(t, 3, func(f *record.Flow, pt flow.Point) error {
					if f.Kind == c.kind && f.Step == c.step && pt == at {
						once.Do(func() {
							l := p.Leader()
							old.Store(l)
							p.Cut(l)
						})
					}
					return nil
				})
				h := p.Host("h1", 4096)
				begin(p)
				testcluster.Await(t, "a volume", func() bool {
					v, ok := row(p)
					return ok && v.Status == record.ResourceReady
				})
				remove(p)
				gone(t, p, h) // which a commit shows before the hook behind it has run
				testcluster.Await(t, "the leader's end", func() bool { return old.Load() != nil })
				p.Heal(old.Load())
			})
		}
	}
}

// A lost host's volume can be deleted from the list, and is deleted from the host
// when it returns.
func TestDeleteOnALostHost(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	if err := wait(t, p, begin(p)); err != nil {
		t.Fatal(err)
	}
	h.SetFault(func(context.Context, fakehost.Call) error { return fakehost.ErrDrop })
	h.Silence(true)
	remove(p)
	testcluster.Await(t, "the row's end", func() bool { _, ok := row(p); return !ok })
	if len(h.Volumes()) != 1 {
		t.Fatal("the volume should still be there")
	}
	h.SetFault(nil)
	h.Silence(false)
	p.Settled(h)
}
