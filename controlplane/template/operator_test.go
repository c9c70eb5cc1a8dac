package template_test

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

var (
	base    = hostapi.TemplateSource{Name: "base", Recipe: "base-1", Ahead: true, CPU: 1, MemoryMB: 512, DiskMB: 1024}
	python  = hostapi.TemplateSource{Name: "python", From: "base", Recipe: "python-1", CPU: 1, MemoryMB: 512, DiskMB: 1024}
	jupyter = hostapi.TemplateSource{Name: "jupyter", From: "python", Recipe: "jupyter-1", CPU: 1, MemoryMB: 1024, DiskMB: 1024}
)

// bare starts a host that has these definitions and no built template.
func bare(p *testplane.Plane, t *testing.T, id string, sources ...hostapi.TemplateSource) *fakehost.Host {
	t.Helper()
	return bareWithStore(p, t, id, nil, sources...)
}

// bareWithStore is bare with a snapshot store from the first heartbeat on.
func bareWithStore(p *testplane.Plane, t *testing.T, id string, store *fakehost.Store, sources ...hostapi.TemplateSource) *fakehost.Host {
	t.Helper()
	h := fakehost.New(t, p.CA, id, 8192)
	if store != nil {
		h.SetStore(store)
	}
	h.SetSources(sources...)
	h.Change(func(_ *hostapi.Capacity, templates *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		*templates = nil
	})
	p.Join(h)
	return h
}

func operators(p *testplane.Plane, name string) record.Template {
	t, ok := template.Operators(p.Leader().Store.View(), name)
	if !ok {
		return record.Template{}
	}
	return *t
}

func awaitBuilt(t *testing.T, p *testplane.Plane, name string) record.Template {
	t.Helper()
	testcluster.Await(t, "a build of "+name, func() bool { return operators(p, name).BuildID != "" })
	return operators(p, name)
}

func buildOf(t *testing.T, p *testplane.Plane, id string) *record.Build {
	t.Helper()
	b, ok := raftstore.Get(p.Leader().Store.View(), record.Builds, id)
	if !ok {
		t.Fatalf("no build %s", id)
	}
	return b
}

// ask requests a template as a create does.
func ask(t *testing.T, p *testplane.Plane, name string) {
	t.Helper()
	p.Update(func(tx *raftstore.Tx) error {
		_, err := p.LeaderNode().Templates.Flows.Ask(tx, name, "req")
		return err
	})
}

func names(h *fakehost.Host) (out []string) {
	for _, spec := range h.Builds() {
		out = append(out, spec.Template)
	}
	slices.Sort(out)
	return out
}

func TestOperatorsTemplatesAreBuiltWhenAskedFor(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 1, nil)
	h := bare(p, t, "h1", base, python, jupyter)
	if row := awaitBuilt(t, p, "base"); row.Status != record.TemplateReady || row.WorkspaceID != "" || row.MemoryMB == 0 {
		t.Errorf("%+v", row)
	}
	testcluster.Await(t, "the others' rows", func() bool { return operators(p, "jupyter").ID != "" })
	if row := operators(p, "python"); row.Status != record.TemplateUnbuilt || row.MemoryMB != 512 || len(h.Builds()) != 1 {
		t.Errorf("%+v, builds of %v", row, names(h))
	}
	// The template it is made from is built first.
	ask(t, p, "jupyter")
	row := awaitBuilt(t, p, "jupyter")
	if b := buildOf(t, p, row.BuildID); b.Recipe != "jupyter-1" || len(b.Products) != 1 || b.HostID != "h1" || len(b.SpecSealed) != 0 {
		t.Errorf("%+v", b)
	}
	if got := names(h); !slices.Equal(got, []string{"base", "jupyter", "python"}) {
		t.Errorf("builds of %v", got)
	}
	ask(t, p, "jupyter")
	for id, spec := range h.Builds() {
		if spec.Source == "" || spec.Fetch != "" || id == "" {
			t.Errorf("%s: %+v", id, spec)
		}
	}
}

// One host builds; the others fetch the build from the snapshot store.
func TestOneHostBuildsOnceACluster(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h1, h2 := bare(p, t, "h1", base), bare(p, t, "h2", base)
	store := fakehost.NewStore()
	h1.SetStore(store)
	h2.SetStore(store)
	row := awaitBuilt(t, p, "base")
	first, second := h1, h2
	if buildOf(t, p, row.BuildID).HostID == "h2" {
		first, second = h2, h1
	}
	first.StoreTemplates()
	testcluster.Await(t, "the other host's copy", func() bool { return has(second, "base") })
	spec := second.Builds()[row.BuildID]
	if digest := buildOf(t, p, row.BuildID).Products[0].Digest; spec.Fetch != digest || spec.Source != "" {
		t.Errorf("the other host was asked for %+v, not to fetch %s", spec, digest)
	}
	if b := buildOf(t, p, row.BuildID); len(b.Products) != 1 || !b.Products[0].Stored {
		t.Errorf("%+v", b.Products)
	}
}

func TestANewDefinitionIsBuiltAndAnOldOneIsNot(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h1, _ := bare(p, t, "h1", base), bare(p, t, "h2", base)
	old := awaitBuilt(t, p, "base")
	newer := base
	newer.Recipe = "base-2"
	h1.SetSources(newer)
	testcluster.Await(t, "the new build", func() bool { return operators(p, "base").BuildID != old.BuildID })
	now := awaitBuilt(t, p, "base")
	if b := buildOf(t, p, now.BuildID); b.Recipe != "base-2" {
		t.Errorf("%+v", b)
	}
	// h2 still has the older definition and h1 reports its own again: the template
	// is not turned back.
	h1.SetSources(newer, python)
	testcluster.Await(t, "python's row", func() bool { return operators(p, "python").ID != "" })
	passed(t, p)
	if got := operators(p, "base").BuildID; got != now.BuildID {
		t.Errorf("base is turned back to %s", got)
	}
	if all := raftstore.Find(p.Leader().Store.View(), record.Builds, "template", "/base"); len(all) != 2 {
		t.Errorf("%d builds of base", len(all))
	}
}

func TestWhatWasBuiltByHandIsTakenIn(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8192) // it has "base"
	row := awaitBuilt(t, p, "base")
	b := buildOf(t, p, row.BuildID)
	if b.Status != record.TemplateReady || len(b.Products) != 1 || b.Products[0].Digest != "b1" {
		t.Errorf("%+v", b)
	}
	h.SetStore(fakehost.NewStore())
	h.Change(func(_ *hostapi.Capacity, templates *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		// Built under another control store, whose rows are unknown here.
		*templates = []hostapi.TemplateState{{Name: "base", BuildID: "b2", Build: "bld-elsewhere", Status: "ready", MemoryMB: 512, CreatedAt: time.Now()}}
	})
	testcluster.Await(t, "the rebuilt one", func() bool {
		row := operators(p, "base")
		return row.BuildID != b.ID && slices.Equal(buildOf(t, p, row.BuildID).Digests(), []string{"b2"})
	})
}

// A template is removed when the operator has removed it from every host.
func TestATemplateThatNoHostHasGoes(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := bare(p, t, "h1", python)
	testcluster.Await(t, "its row", func() bool { return operators(p, "python").ID != "" })
	h.SetSources()
	testcluster.Await(t, "that it goes", func() bool { return operators(p, "python").ID == "" })
}

// A build's specification is kept as long as it may be needed, and no longer.
func TestBuildsThatAreOverAreForgotten(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8192)
	store := fakehost.NewStore()
	h.SetStore(store)
	store.Put("tpl-d1", "tpl-d2")
	begin(t, p, "base")
	if b, _ := ended(t, p); b.Status != record.TemplateReady || len(b.SpecSealed) == 0 {
		t.Fatalf("%+v", b)
	}
	put := func(id string, age time.Duration, edit func(*record.Build)) {
		b := &record.Build{
			Meta: record.Meta{ID: id}, WorkspaceID: "ws", Template: "web", Key: key, Status: record.TemplateFailed,
			SpecSealed: []byte("secret"), FinishedAt: time.Now().Add(-age),
		}
		edit(b)
		p.Update(func(tx *raftstore.Tx) error {
			queued := b.Clone()
			queued.Status = record.TemplateQueued
			raftstore.Put(tx, record.Builds, queued)
			raftstore.Put(tx, record.Builds, b)
			return nil
		})
	}
	none := func(*record.Build) {}
	put("old", 31*24*time.Hour, none)
	put("failed", time.Hour, none)
	put("replaced", time.Hour, func(b *record.Build) {
		b.Status, b.Products = record.TemplateReady, []record.Product{{Digest: "d1", Stored: true}, {Digest: "d2"}}
	})
	put("dropped", time.Minute, func(b *record.Build) { b.Dropped = true })
	for i := range 25 {
		put("many-"+string(rune('a'+i)), 2*time.Hour, none)
	}
	testcluster.Await(t, "that they are forgotten", func() bool {
		all := slices.DeleteFunc(raftstore.All(p.Leader().Store.View(), record.Builds), func(b *record.Build) bool { return b.WorkspaceID == "" })
		for _, b := range all {
			if b.ID != buildID && (len(b.SpecSealed) > 0 || b.ID == "old" || b.ID == "dropped" || slices.ContainsFunc(b.Products, func(p record.Product) bool { return p.Stored })) {
				return false
			}
		}
		return len(all) == 21 // 20, and the one in use
	})
	if b := buildOf(t, p, buildID); len(b.SpecSealed) == 0 {
		t.Error("what the build in use is made from is gone")
	}
	// No row names the second capture, because its upload ended too late.
	testcluster.Await(t, "the end of what is stored", func() bool { return len(store.Captures()) == 0 })
}

// A product that its row says is stored, but is not, is stored again by a host that
// has it, and rebuilt if no host has it.
func TestAProductThatIsGoneFromTheStore(t *testing.T) {
	tier.Slow(t)
	for name, again := range map[string]bool{"it is stored again": true, "nobody has it": false} {
		t.Run(name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h1 := bare(p, t, "h1", base)
			store := fakehost.NewStore()
			h1.SetStore(store)
			row := awaitBuilt(t, p, "base")
			h1.StoreTemplates()
			testcluster.Await(t, "the stored product", func() bool { return buildOf(t, p, row.BuildID).Products[0].Stored })
			digest := buildOf(t, p, row.BuildID).Products[0].Digest
			h1.Change(func(_ *hostapi.Capacity, templates *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
				(*templates)[0].Stored = false // it has noticed
				if !again {
					*templates = nil
				}
				store.Remove(hostapi.StoredBuild(digest))
			})
			h2 := bareWithStore(p, t, "h2", store, base)
			testcluster.Await(t, "the fetch", func() bool { return h2.AskedToFetch(digest) })
			if !again {
				testcluster.Await(t, "a build", func() bool { return h2.Builds()[row.BuildID].Source == base.Recipe })
				return
			}
			testcluster.Await(t, "that it is known", func() bool { return !buildOf(t, p, row.BuildID).Products[0].Stored })
			h1.StoreTemplates()
			testcluster.Await(t, "the other host's copy", func() bool { return has(h2, "base") })
			if spec := h2.Builds()[row.BuildID]; spec.Fetch != digest {
				t.Errorf("it was asked for %+v", spec)
			}
		})
	}
}

// While a host has a product under a template's name, the product stays in the
// snapshot store: the host would upload it again.
func TestABuildThatAHostStillHasIsNotRemoved(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8192)
	store := fakehost.NewStore()
	h.SetStore(store)
	awaitBuilt(t, p, "base")
	store.Put("tpl-d1")
	p.Update(func(tx *raftstore.Tx) error { // first, so that the host is not told to forget what it has
		raftstore.Put(tx, record.Templates, &record.Template{Meta: record.Meta{ID: templateID}, WorkspaceID: "ws", Name: "web", Key: key, Status: record.TemplateReady})
		return nil
	})
	h.Change(func(_ *hostapi.Capacity, templates *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		*templates = append(*templates, hostapi.TemplateState{Name: key, BuildID: "d1", Status: "failed"})
	})
	testcluster.Await(t, "the heartbeat", func() bool {
		return len(p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Templates) == 2
	})
	p.Update(func(tx *raftstore.Tx) error {
		for id, digest := range map[string]string{"old": "d1", "other": "d2"} {
			raftstore.Put(tx, record.Builds, &record.Build{
				Meta: record.Meta{ID: id}, WorkspaceID: "ws", Template: "web", Key: key, Status: record.TemplateReady, Dropped: true,
				FinishedAt: time.Now(), Products: []record.Product{{Digest: digest, Stored: true}},
			})
		}
		return nil
	})
	testcluster.Await(t, "the other's end", func() bool {
		_, there := raftstore.Get(p.Leader().Store.View(), record.Builds, "other")
		return !there
	})
	passed(t, p)
	if got := store.Captures(); !slices.Equal(got, []string{"tpl-d1"}) {
		t.Errorf("the snapshot store has %v", got)
	}
	p.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Templates, templateID); return nil })
	testcluster.Await(t, "its end", func() bool { return len(store.Captures()) == 0 })
}

// A rebuild of the same definition may give the same product. Hosts that have the
// product then continue to report the older build's id, which must not cause a write
// in every pass.
func TestTwoBuildsOfOneProduct(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := bare(p, t, "h1", base)
	h.SetStore(fakehost.NewStore())
	row := awaitBuilt(t, p, "base")
	h.StoreTemplates()
	testcluster.Await(t, "the stored product", func() bool { return buildOf(t, p, row.BuildID).Products[0].Stored })
	p.Update(func(tx *raftstore.Tx) error {
		older := buildOf(t, p, row.BuildID).Clone()
		older.Meta = record.Meta{ID: "older"}
		raftstore.Put(tx, record.Builds, older)
		return nil
	})
	h.Change(func(_ *hostapi.Capacity, templates *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		(*templates)[0].Build = "older"
	})
	testcluster.Await(t, "the heartbeat", func() bool {
		return p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Templates[0].Build == "older"
	})
	passed(t, p)
	before := buildOf(t, p, "older").ModifyIndex
	passed(t, p)
	passed(t, p)
	if after := buildOf(t, p, "older").ModifyIndex; after != before {
		t.Errorf("it was written again: %d, %d", before, after)
	}
}

// passed waits for one more pass of the loop over the templates.
func passed(t *testing.T, p *testplane.Plane) {
	t.Helper()
	marker := template.Key("ws", "marker")
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Builds, &record.Build{
			Meta: record.Meta{ID: marker}, WorkspaceID: "ws", Template: "marker", Status: record.TemplateReady, Dropped: true, FinishedAt: time.Now(),
		})
		return nil
	})
	testcluster.Await(t, "another look", func() bool {
		_, there := raftstore.Get(p.Leader().Store.View(), record.Builds, marker)
		return !there
	})
}
