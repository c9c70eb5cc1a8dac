package app_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// TestUploadsAtOnceAreBounded: what is being uploaded counts until it has ended, however
// it ends.
func TestUploadsAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create(func(in *api.CreateApp) { in.GitURL, in.Source = "", new(api.AppFromUpload) })
	s, ctx := r.apps(), t.Context()
	var bodies []*io.PipeWriter
	var uploads sync.WaitGroup
	for range app.MaxUploads {
		body, w := io.Pipe()
		bodies = append(bodies, w)
		uploads.Go(func() { _, _ = s.PutSource(ctx, caller, a.ID, body) })
		if _, err := w.Write([]byte("x")); err != nil { // it is being read
			t.Fatal(err)
		}
	}
	_, err := s.PutSource(ctx, caller, a.ID, strings.NewReader("one more"))
	want(t, err, apierror.ERateLimited, "too many uploads at once")
	for i, w := range bodies {
		if i == 0 {
			_ = w.CloseWithError(io.ErrUnexpectedEOF)
		} else {
			_ = w.Close()
		}
	}
	uploads.Wait()
	if _, err := s.PutSource(ctx, caller, a.ID, strings.NewReader("one more")); err != nil {
		t.Error(err)
	}
}

// A source that one host alone has is deleted there: later, if the host is away, and never
// if it was removed. What a row remembers of those is bounded.
func TestUploadsOfHostsThatAreAway(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	a := r.create(func(in *api.CreateApp) { in.GitURL, in.Source = "", new(api.AppFromUpload) })
	s, ctx := r.apps(), t.Context()
	upload := func(n int) (ids []string) {
		t.Helper()
		for range n {
			up, err := s.PutSource(ctx, caller, a.ID, strings.NewReader("a source"))
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, up.SourceID)
		}
		return ids
	}
	upload(2)
	first := r.hosts[0]
	if len(first.Blobs()) != 2 {
		t.Fatalf("h1 has %v", first.Blobs())
	}
	lost := func(is bool) {
		t.Helper()
		first.Silence(is)
		r.await("the state of h1", func() bool {
			h, ok := raftstore.Get(r.Leader().Store.View(), record.Hosts, first.ID)
			return ok && (h.State == record.HostLost) == is
		})
	}
	lost(true)
	upload(5) // on the other host; those before are dropped
	dropped := func() (n int) {
		for _, u := range r.row(a.ID).Uploads {
			if u.Dropped {
				n++
			}
		}
		return n
	}
	if n := dropped(); n != 2 {
		t.Fatalf("%d are to be deleted", n)
	}
	lost(false)
	r.await("that h1 has deleted them", func() bool { return len(first.Blobs()) == 0 && dropped() == 0 })

	r.edit(a.ID, func(a *record.App) {
		for i := range 3 * app.MaxDropped {
			a.Uploads = append(a.Uploads, record.AppUpload{ID: fmt.Sprint("src-away", i), HostID: "h3", Local: true, Dropped: true})
		}
		slices.Reverse(a.Uploads)
	})
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Hosts, &record.Host{Meta: record.Meta{ID: "h3"}, State: record.HostLost})
		return nil
	})
	// Also while none succeeds: each is named before a host has any of it.
	_, err := s.PutSource(ctx, caller, a.ID, failing{})
	want(t, err, apierror.EInvalid, "invalid source")
	if n := dropped(); n > app.MaxDropped+1 { // with its own, until its host has deleted that
		t.Errorf("after an upload that failed, %d are remembered", n)
	}
	upload(1)
	r.await("that few are remembered", func() bool { return dropped() == app.MaxDropped })
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.Hosts, "h3")
		return nil
	})
	r.await("that those of a host that was removed are forgotten", func() bool { return dropped() == 0 })
	if n := len(r.row(a.ID).Uploads); n != 5 {
		t.Errorf("%d are left", n)
	}
	if err := s.Delete(ctx, caller, a.ID); err != nil {
		t.Fatal(err)
	}
	r.settled(0)
}

// Who needs what a host took along is told so.
func TestBlobsOfAHostThatWasRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	a := r.create(func(in *api.CreateApp) { in.GitURL, in.Source = "", new(api.AppFromUpload) })
	s, ctx := r.apps(), t.Context()
	up, err := s.PutSource(ctx, caller, a.ID, strings.NewReader("a source"))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for range 2 {
		d := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
		ids = append(ids, d.ID)
		if d.LogHost != "h1" {
			t.Errorf("its log is on %q", d.LogHost)
		}
	}
	r.Update(func(tx *raftstore.Tx) error {
		d, _ := raftstore.Get(tx, record.Deployments, ids[0])
		d = d.Clone()
		d.SnapshotID = ""
		raftstore.Put(tx, record.Deployments, d)
		h, _ := raftstore.Get(tx, record.Hosts, "h1")
		h = h.Clone()
		h.State = record.HostLost
		raftstore.Put(tx, record.Hosts, h)
		return nil
	})
	r.hosts[0].Silence(true)
	_, err = s.RollBack(ctx, caller, a.ID, api.RollBackApp{DeploymentID: ids[0]}, noKey)
	hasText(t, err, apierror.EConflict, "the host that keeps its source does not answer")
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.Hosts, "h1")
		return nil
	})
	_, err = s.RollBack(ctx, caller, a.ID, api.RollBackApp{DeploymentID: ids[0]}, noKey)
	hasText(t, err, apierror.EConflict, "the host that kept its source was removed")
	_, err = s.Deploy(ctx, caller, a.ID, api.CreateDeployment{SourceID: up.SourceID}, noKey)
	hasText(t, err, apierror.ENotFound, "the host that kept its source was removed")
	_, err = s.Deploy(ctx, caller, a.ID, api.CreateDeployment{}, noKey)
	want(t, err, apierror.EConflict, "no source uploaded yet")
	if got := strings.Join(read(t, r.log(a.ID, ids[0])), "\n"); !strings.Contains(got, "its log is gone: the host that kept it was removed") {
		t.Errorf("its log: %q", got)
	}
}
