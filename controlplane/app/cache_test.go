package app_test

import (
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// over waits until a deployment is live and all of its work is done.
func (r *rig) over(id string) *record.Deployment {
	r.t.Helper()
	d := r.ends(id, record.DeploymentLive)
	r.await("the end of its flow", func() bool {
		_, under := flow.Live(r.Leader().Store.View(), app.DeploymentSubject(id))
		return !under
	})
	return d
}

// caches are the blobs of caches on all hosts.
func (r *rig) caches() (names []string) {
	for _, h := range r.hosts {
		for _, name := range h.Blobs() {
			if strings.HasPrefix(name, "cache-") {
				names = append(names, name)
			}
		}
	}
	return names
}

// TestCaches: what a build keeps is the next one's, wherever that runs, and no other's.
func TestCaches(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	s, ctx := r.apps(), t.Context()
	r.guests.set(func(g *guests) { g.cache = "caches" })
	a, other := r.create(), r.create(func(in *api.CreateApp) { in.Name = "other" })
	got := func(d *record.Deployment) string { return string(r.guests.at(d.SandboxID).cache) }
	first := r.over(r.deploy(a.ID).ID)
	if got(first) != "" || r.guests.at(first.SandboxID).build.CacheMB != 1024 {
		t.Errorf("the first was given %q, of %d MB", got(first), r.guests.at(first.SandboxID).build.CacheMB)
	}
	if c := r.row(a.ID).Cache; c == nil || c.ID != "cache-"+first.ID || c.SizeBytes == 0 || c.HostID == "" {
		t.Errorf("kept: %+v", c)
	}
	second := r.over(r.deploy(a.ID).ID)
	if want := "caches of " + first.ID; got(second) != want {
		t.Errorf("the second was given %q, want %q", got(second), want)
	}
	r.await("that the first cache goes", func() bool { return strings.Join(r.caches(), " ") == "cache-"+second.ID })
	if d := r.over(r.deploy(other.ID).ID); got(d) != "" {
		t.Errorf("another app was given %q", got(d))
	}
	fresh, err := s.Deploy(ctx, caller, a.ID, api.CreateDeployment{ClearCache: true}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	if d := r.over(fresh.ID); got(d) != "" {
		t.Errorf("after a clear it was given %q", got(d))
	}
	if c := r.row(a.ID).Cache; c == nil || c.ID != "cache-"+fresh.ID {
		t.Errorf("after a clear: %+v", c)
	}
	if _, err := s.Patch(ctx, caller, a.ID, api.PatchApp{BuildCommand: api.SetTo("make")}); err != nil {
		t.Fatal(err)
	}
	if r.row(a.ID).Cache == nil {
		t.Error("a build command has cleared it")
	}
	if _, err := s.Patch(ctx, caller, a.ID, api.PatchApp{Runtime: api.SetTo("node 20")}); err != nil {
		t.Fatal(err)
	}
	if r.row(a.ID).Cache != nil {
		t.Error("another runtime gets it")
	}
	for _, id := range []string{a.ID, other.ID} {
		if err := s.Delete(ctx, caller, id); err != nil {
			t.Fatal(err)
		}
	}
	r.settled(0)
	if left := r.caches(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestCachesOfPreviews: a preview reads its parent's cache until it has its own, and never
// writes the parent's.
func TestCachesOfPreviews(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	s, ctx := r.apps(), t.Context()
	r.guests.set(func(g *guests) { g.cache = "caches" })
	a := r.create()
	first := r.over(r.deploy(a.ID).ID)
	id, err := s.OpenPreview(ctx, a.ID, 7, "basket", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var before string
	for _, want := range []string{"caches of " + first.ID, "caches of "} {
		d := r.over(r.deploy(id).ID)
		if got := string(r.guests.at(d.SandboxID).cache); got != want+before {
			t.Errorf("it was given %q, want %q", got, want+before)
		}
		before = d.ID
	}
	if c := r.row(a.ID).Cache; c == nil || c.ID != "cache-"+first.ID {
		t.Errorf("the parent has %+v", c)
	}
	r.edit(id, func(a *record.App) { a.Cache, a.GitURL = nil, "https://git.example.com/mallory/shop.git" })
	if d := r.over(r.deploy(id).ID); len(r.guests.at(d.SandboxID).cache) > 0 {
		t.Error("another repository was given the cache")
	}
	// What was built with a value for production alone may have it in its caches, also
	// when the variable is gone.
	if _, err := s.PutVariable(ctx, caller, a.ID, "KEY", api.PutAppVariable{Value: "x", Scope: new("production")}); err != nil {
		t.Fatal(err)
	}
	r.over(r.deploy(a.ID).ID)
	if err := s.DeleteVariable(ctx, caller, a.ID, "KEY"); err != nil {
		t.Fatal(err)
	}
	id, err = s.OpenPreview(ctx, a.ID, 8, "basket", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := r.over(r.deploy(id).ID); len(r.guests.at(d.SandboxID).cache) > 0 || !r.row(a.ID).Cache.Private {
		t.Error("a preview was given what is for production")
	}
}

// TestCachesThatFail: a deployment is live whatever becomes of caches.
func TestCachesThatFail(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	r.guests.set(func(g *guests) { g.cache, g.cutCache = "caches", true })
	a := r.create()
	r.over(r.deploy(a.ID).ID)
	if c := r.row(a.ID).Cache; c != nil {
		t.Errorf("kept what was cut off: %+v", c)
	}
	r.guests.set(func(g *guests) { g.cutCache = false })
	r.over(r.deploy(a.ID).ID)
	r.guests.set(func(g *guests) { g.cutCache = true })
	r.over(r.deploy(a.ID).ID) // its guest takes none
	r.guests.set(func(g *guests) { g.cutCache = false })
	r.edit(a.ID, func(a *record.App) {
		a.Cache.Dropped = true
		a.Uploads, a.Cache = append(a.Uploads, *a.Cache), &record.AppUpload{ID: "cache-gone", HostID: "h9", Local: true}
	})
	r.over(r.deploy(a.ID).ID)
	if err := r.apps().Delete(t.Context(), caller, a.ID); err != nil {
		t.Fatal(err)
	}
	r.settled(0)
}

// TestNoCaches: an operator may want none.
func TestNoCaches(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil, func(c *app.Config) { c.CacheMB = new(0) })
	r.guests.set(func(g *guests) { g.cache = "caches" })
	a := r.create()
	d := r.over(r.deploy(a.ID).ID)
	if r.row(a.ID).Cache != nil || len(r.caches()) > 0 || r.guests.at(d.SandboxID).build.CacheMB != 0 {
		t.Errorf("kept %v", r.caches())
	}
}
