package app_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// drops has a host cut off the next calls of an operation.
func drops(h *fakehost.Host, op string, times int64) {
	var left atomic.Int64
	left.Store(times)
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == op && !c.Done && left.Add(-1) >= 0 {
			return fakehost.ErrDrop
		}
		return nil
	})
}

// TestSourceOnAHostThatIsSilent: a deployment waits for the host that has its source, as
// long as that may answer.
func TestSourceOnAHostThatIsSilent(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	a := r.create(func(in *api.CreateApp) { in.GitURL, in.Source = "", new(api.AppFromUpload) })
	r.upload(a.ID, "source")
	if len(r.hosts[0].Blobs()) != 1 {
		t.Fatal("the source is not where it is looked for first")
	}
	r.hosts[0].Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = 100 })
	r.await("the news", func() bool { return r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Capacity.MemoryMB == 100 })
	drops(r.hosts[0], "blob.get", 2)
	d := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	if r.host(d.SandboxID) != r.hosts[1] {
		t.Error("it is not on the other host")
	}
	// What is on none of them is not waited for.
	r.hosts[0].SetFault(nil)
	r.Update(func(tx *raftstore.Tx) error {
		row, _ := raftstore.Get(tx, record.Apps, a.ID)
		row = row.Clone()
		row.Uploads[0].ID = "src-none"
		raftstore.Put(tx, record.Apps, row)
		return nil
	})
	if d := r.ends(r.deploy(a.ID).ID, record.DeploymentFailed); !strings.HasPrefix(d.Error, "its source is gone") {
		t.Errorf("error %q", d.Error)
	}
}

// TestLogOfAGuestThatIsCutOff: a log is kept, though its guest's host did not answer at
// first, as all do whom a new leader has yet to hear.
func TestLogOfAGuestThatIsCutOff(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"end", "artifact"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			var r *rig
			var cut atomic.Bool
			r = newRig(t, 1, 1, func(f *record.Flow, at flow.Point) error {
				if f.Step == step && at == flow.BeforeAct && cut.CompareAndSwap(false, true) {
					drops(r.hosts[0], "dial/997", 2)
				}
				return nil
			})
			a := r.create()
			want := record.DeploymentLive
			if step == "end" {
				want = record.DeploymentFailed
				r.guests.set(func(g *guests) { g.plan.State = appapi.StateFailed })
			}
			d := r.ends(r.deploy(a.ID).ID, want)
			r.Settled(r.hosts...)
			if d = r.deployment(d.ID); d.LogBlob == "" || !cut.Load() {
				t.Errorf("its log is lost: %+v", d)
			}
		})
	}
}

// TestLogOfTheLastAttempt: of a deployment that began again, that of its last build is
// kept.
func TestLogOfTheLastAttempt(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	for _, h := range r.hosts { // no artifact is ever captured
		h.SetFault(func(ctx context.Context, c fakehost.Call) error {
			if c.Op == "capture" && !c.Done {
				<-ctx.Done()
			}
			return nil
		})
	}
	a := r.create()
	d := r.deploy(a.ID)
	r.at(d.ID, "captured")
	r.guests.set(func(g *guests) { g.lines, g.plan.State = "second\n", appapi.StateFailed })
	r.host(r.deployment(d.ID).SandboxID).Silence(true)
	r.ends(d.ID, record.DeploymentFailed)
	r.Settled()
	if got := strings.Join(read(t, r.log(a.ID, d.ID)), "\n"); !strings.HasPrefix(got, "stdout second\n") {
		t.Errorf("its log is %q", got)
	}
}

// TestDeleteWhileALogIsKept: what a step has kept that is preempted goes with the app.
func TestDeleteWhileALogIsKept(t *testing.T) {
	t.Parallel()
	kept, deleted := make(chan struct{}), make(chan struct{})
	r := newRig(t, 1, 1, func(f *record.Flow, at flow.Point) error {
		if f.Step == "artifact" && at == flow.BeforeCommit {
			close(kept)
			<-deleted
		}
		return nil
	})
	a := r.create()
	r.deploy(a.ID)
	<-kept
	if len(r.hosts[0].Blobs()) != 1 {
		t.Error("no log is kept yet")
	}
	gone := make(chan error, 1)
	go func() { gone <- r.LeaderNode().Apps.Delete(t.Context(), caller, a.ID) }()
	r.becomes(a.ID, record.AppDeleting)
	close(deleted)
	if err := <-gone; err != nil {
		t.Error(err)
	}
	r.await("its end", func() bool { return len(raftstore.All(r.Leader().Store.View(), record.Apps)) == 0 })
	r.settled(0)
}

// TestLeaderDiesDuringAnUpload: what a host was given by then is not left there.
func TestLeaderDiesDuringAnUpload(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, 1, nil)
	a := r.create(func(in *api.CreateApp) { in.GitURL, in.Source = "", new(api.AppFromUpload) })
	r.upload(a.ID, "before")
	kept, dead := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "blob.put" && c.Done && once.CompareAndSwap(false, true) {
			close(kept)
			<-dead
		}
		return nil
	})
	former := r.LeaderNode()
	failed := make(chan error, 1)
	go func() {
		_, err := former.Apps.PutSource(t.Context(), caller, a.ID, strings.NewReader("source"))
		failed <- err
	}()
	select {
	case <-kept:
	case err := <-failed:
		t.Fatal(err)
	}
	release := sync.OnceFunc(func() { close(dead) })
	defer release()
	r.await("another leader", func() bool {
		return former.Store.TransferLeadership(t.Context(), "") == nil || r.LeaderNode() != former
	})
	release()
	if err := <-failed; err == nil {
		t.Error("the upload of a former leader has succeeded")
	}
	r.await("the end of its blob", func() bool { return len(r.hosts[0].Blobs()) == 1 && len(r.row(a.ID).Uploads) == 1 })
	r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	r.settled(1)
}

// TestUploadWhereOneHostRefuses: another host keeps it, as long as the first has read
// nothing of it.
func TestUploadWhereOneHostRefuses(t *testing.T) {
	t.Parallel()
	full := &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "insufficient host disk space"}
	stopping := &hostapi.Error{Code: hostapi.CodeDraining, Message: "host is stopping"}
	for name, refusal := range map[string]error{"full": full, "stopping": stopping} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 2, nil)
			a := r.create(func(in *api.CreateApp) { in.GitURL, in.Source = "", new(api.AppFromUpload) })
			refuses := func(h *fakehost.Host, after bool) {
				h.SetFault(func(_ context.Context, c fakehost.Call) error {
					if c.Op == "blob.put" && c.Done == after {
						return refusal
					}
					return nil
				})
			}
			refuses(r.hosts[0], false)
			r.upload(a.ID, "source")
			on := r.hosts[1].Blobs()
			if len(r.hosts[0].Blobs()) != 0 || len(on) != 1 {
				t.Fatalf("they have %q and %q", r.hosts[0].Blobs(), on)
			}
			if got, _ := r.hosts[1].Blob(on[0]); string(got) != "source" {
				t.Errorf("kept %q", got)
			}
			if u := r.row(a.ID).Uploads; len(u) != 1 || u[0].HostID != "h2" {
				t.Errorf("%+v", u)
			}
			put := func() error {
				_, err := r.apps().PutSource(t.Context(), caller, a.ID, strings.NewReader("more"))
				return err
			}
			refuses(r.hosts[0], true) // once it has read it, the other can have no more of it
			if err := put(); err == nil || len(r.hosts[1].Blobs()) != 1 {
				t.Errorf("%v; %q", err, r.hosts[1].Blobs())
			}
			refuses(r.hosts[0], false)
			refuses(r.hosts[1], false)
			want(t, put(), apierror.EBadGateway, "agent unreachable")
		})
	}
}

// TestUploadAvoidsHosts that would likely refuse it, or hang on it, and asks them when there
// is no other.
func TestUploadAvoidsHosts(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for name, spoil := range map[string]func(r *rig){
		"stalled": func(r *rig) {
			r.hosts[0].Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
				c.DiskStalledMS = 2000
			})
			r.await("the news", func() bool { return r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Capacity.DiskStalledMS > 0 })
		},
		"full": func(r *rig) {
			r.hosts[0].Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
				c.DiskFreeBytes = 1 << 20
			})
			r.await("the news", func() bool { return r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Capacity.DiskFreeBytes == 1<<20 })
		},
		"drains": func(r *rig) {
			r.Update(func(tx *raftstore.Tx) error {
				h, _ := raftstore.Get(tx, record.Hosts, "h1")
				h = h.Clone()
				h.Draining = true
				raftstore.Put(tx, record.Hosts, h)
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 2, nil)
			a := r.create(func(in *api.CreateApp) { in.GitURL, in.Source = "", new(api.AppFromUpload) })
			spoil(r)
			r.upload(a.ID, "source")
			if len(r.hosts[0].Blobs()) != 0 || len(r.hosts[1].Blobs()) != 1 {
				t.Errorf("they have %q and %q", r.hosts[0].Blobs(), r.hosts[1].Blobs())
			}
			r.hosts[1].SetFault(func(_ context.Context, c fakehost.Call) error {
				if c.Op == "blob.put" {
					return &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "insufficient host disk space"}
				}
				return nil
			})
			r.upload(a.ID, "more")
			if len(r.hosts[0].Blobs()) != 1 {
				t.Error("the other was not asked")
			}
		})
	}
}
