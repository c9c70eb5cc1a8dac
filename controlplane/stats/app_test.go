package stats_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/stats"
	"github.com/berth-cloud/berth/controlplane/traffic"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// replicas are books of several replicas.
type replicas struct {
	mu      sync.Mutex
	books   map[string]*traffic.Book
	missing []string
	block   chan struct{} // if set, answers wait for it
	asked   chan struct{}
}

func (r *replicas) ask(_ context.Context, id string, ask func(string) traffic.Question) (reports []traffic.Report, missing []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.block != nil {
		r.asked <- struct{}{}
		r.mu.Unlock()
		<-r.block
		r.mu.Lock()
	}
	for name, b := range r.books {
		report := b.Report(id, ask(name))
		report.Replica, report.Open = name, 1
		reports = append(reports, report)
	}
	return reports, r.missing
}

func appRig(t *testing.T) (*testplane.Rig, *replicas, *stats.Metrics) {
	r := testplane.NewRig(t, 1)
	r.H1.SetStats(measured)
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: "blog"}, WorkspaceID: "ws", Name: "blog", Status: record.AppCreated})
		return nil
	})
	to := &replicas{books: map[string]*traffic.Book{"r1": traffic.New(time.Now, "e1"), "r2": traffic.New(time.Now, "e2")}, asked: make(chan struct{}, 100)}
	return r, to, stats.New(stats.Config{Core: r.Node.Core, Traffic: to.ask, Classes: []string{"real", "served", "quiet", "monitor"}, Clock: time.Now})
}

func TestRequestsToAnAppAreThoseOfAllReplicas(t *testing.T) {
	r, to, m := appRig(t)
	sb := r.Must(t, api.CreateSandbox{})
	r.Update(func(tx *raftstore.Tx) error {
		a, _ := raftstore.Get(tx, record.Apps, "blog")
		a = a.Clone()
		a.Instances = []record.AppInstance{{SandboxID: sb.ID, DeploymentID: "dep-1"}, {SandboxID: "gone"}}
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
	for range 99 {
		to.books["r1"].Record("blog", traffic.Request{Status: 200, First: 80 * time.Millisecond, Sent: 1})
	}
	to.books["r2"].Record("blog", traffic.Request{Status: 503, First: time.Hour, Class: 1, Held: true})
	to.books["r2"].Woken("blog")
	to.missing = []string{"r3"}
	got, err := m.App(t.Context(), testplane.Caller, "blog")
	if err != nil {
		t.Fatal(err)
	}
	q := got.Requests
	if q.Count != 100 || q.Statuses.S2xx != 99 || q.Statuses.S5xx != 1 || q.Classes[0] != (api.ClassCount{Class: "real", Count: 99}) || q.Classes[1].Count != 1 ||
		q.Held != 1 || q.SentBytes != 99 || got.Wakes != 1 || got.OpenRequests != 2 {
		t.Errorf("%+v", got)
	}
	if l := q.Latency; l.P50MS < 50 || l.P50MS > 100 || l.P99MS > 100 || l.P99MS < 99 || l.Buckets[4].Count != 99 || *l.Buckets[4].UpToMS != 100 || l.Buckets[len(l.Buckets)-1].UpToMS != nil {
		t.Errorf("%+v", l)
	}
	requests, errs := int64(0), int64(0)
	for _, min := range got.Minutes { // one, or two over a minute's end
		requests, errs = requests+min.Requests, errs+min.Errors
	}
	if requests != 100 || errs != 1 || !slices.Equal(got.Replicas, []string{"r1", "r2"}) || !slices.Equal(got.Missing, []string{"r3"}) || got.Since == nil {
		t.Errorf("%+v", got)
	}
	if n := len(got.Instances); n == 0 || got.Instances[0].Usage == nil || got.Instances[0].Usage.CPUSeconds != 1.5 {
		t.Errorf("instances %+v", got.Instances)
	} else if n > 1 && got.Instances[1].Error != "it is gone" { // unless apps' loop has taken it out already
		t.Errorf("instances %+v", got.Instances)
	}
	for _, id := range []string{"blog", "unknown"} {
		caller := testplane.Stranger
		if id == "unknown" {
			caller = testplane.Caller
		}
		_, err = m.App(t.Context(), caller, id)
		testplane.Want(t, err, apierror.ENotFound, "not found")
		_, err = m.Requests(t.Context(), caller, id, 10)
		testplane.Want(t, err, apierror.ENotFound, "not found")
		_, err = m.FollowRequests(t.Context(), caller, id, 10)
		testplane.Want(t, err, apierror.ENotFound, "not found")
	}
}

func TestRequestsAreFollowed(t *testing.T) {
	tier.Slow(t)
	r, to, m := appRig(t)
	for _, path := range []string{"/1", "/2", "/3"} {
		to.books["r1"].Record("blog", traffic.Request{Path: path, Method: "GET", Status: 200})
	}
	if got, err := m.Requests(t.Context(), testplane.Caller, "blog", 2); err != nil || len(got) != 2 || got[0].Path != "/2" || got[0].Replica != "r1" || got[0].Class != "real" {
		t.Errorf("the last two: %+v, %v", got, err)
	}
	f, err := m.FollowRequests(t.Context(), testplane.Caller, "blog", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	next := func(want string) {
		t.Helper()
		if got, err := f.Next(); err != nil || got.Path != want {
			t.Fatalf("%+v, %v; want %s", got, err, want)
		}
	}
	next("/3")
	to.books["r2"].Record("blog", traffic.Request{Path: "/4", Status: 200})
	next("/4")
	// A replica was restarted.
	to.mu.Lock()
	to.books["r1"] = traffic.New(time.Now, "e3")
	to.mu.Unlock()
	to.books["r1"].Record("blog", traffic.Request{Path: "/5", Status: 200})
	next("/5")
	r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Apps, "blog"); return nil })
	if _, err := f.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after its end: %v", err)
	}
}

func TestAWorkspaceAsksAFewThingsAtATime(t *testing.T) {
	_, to, m := appRig(t)
	to.block = make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := m.App(t.Context(), testplane.Caller, "blog"); err != nil {
				t.Error(err)
			}
		})
	}
	for range 4 {
		<-to.asked
	}
	_, err := m.App(t.Context(), testplane.Caller, "blog")
	testplane.Want(t, err, apierror.ERateLimited, "too many questions at once")
	close(to.block)
	wg.Wait()
	if _, err := m.App(t.Context(), testplane.Caller, "blog"); err != nil {
		t.Error(err)
	}
	var all []io.Closer
	for range 16 {
		f, err := m.FollowRequests(t.Context(), testplane.Caller, "blog", 1)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	_, err = m.FollowRequests(t.Context(), testplane.Caller, "blog", 1)
	testplane.Want(t, err, apierror.ERateLimited, "too many streams at once")
	for _, f := range all {
		f.Close()
		f.Close()
	}
	f, err := m.FollowRequests(t.Context(), testplane.Caller, "blog", 1)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
