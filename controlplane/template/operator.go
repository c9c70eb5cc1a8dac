package template

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Errors of Ask.
var (
	ErrUnknown  = errors.New("no such template")
	ErrNoSource = errors.New("no host that is there has its definition")
)

// aheadAgain is the delay after a failed build that nobody is waiting for.
const aheadAgain = 10 * time.Minute

// Operators returns a shared template, which the hosts' operator defines.
func Operators(r raftstore.Reader, name string) (*record.Template, bool) {
	return ownTemplate(r, "", name)
}

// Known reports whether a host reports a shared template, which may have no row yet,
// and starts the next pass of the loop.
func (f *Flows) Known(name string) bool {
	select {
	case f.look <- struct{}{}:
	default:
	}
	_, ok := f.heard()[name]
	return ok
}

// heard is what hosts report about one shared template.
type heard struct {
	sources []hostapi.TemplateSource
	states  []stateAt
}

type stateAt struct {
	hostapi.TemplateState
	engine string
	store  bool
}

func (f *Flows) heard() map[string]*heard {
	all := map[string]*heard{}
	of := func(name string) *heard {
		if all[name] == nil {
			all[name] = &heard{}
		}
		return all[name]
	}
	sessions := f.Hosts.Sessions()
	for _, s := range sessions {
		for _, src := range s.Heartbeat.Sources {
			if h := of(src.Name); !slices.Contains(h.sources, src) {
				h.sources = append(h.sources, src)
			}
		}
	}
	for _, hb := range kinds(sessions) {
		for _, t := range hb.Templates {
			if !IsKey(t.Name) && t.Status == stateReady {
				h := of(t.Name)
				h.states = append(h.states, stateAt{t, hb.Versions.Engine, hb.Store})
			}
		}
	}
	for _, h := range all {
		slices.SortFunc(h.sources, func(a, b hostapi.TemplateSource) int { return strings.Compare(a.Recipe, b.Recipe) })
		slices.SortStableFunc(h.states, func(a, b stateAt) int { return b.CreatedAt.Compare(a.CreatedAt) })
	}
	return all
}

// learn records what hosts report: shared templates, products of builds, and which
// products are stored. It begins the builds that are due without a request.
func (k *keeper) learn(ctx context.Context) {
	all := k.heard()
	for _, hb := range kinds(k.Hosts.Sessions()) {
		for _, t := range hb.Templates {
			if t.Status == stateReady {
				k.learnProduct(ctx, stateAt{t, hb.Versions.Engine, hb.Store})
			}
		}
	}
	for name, h := range all {
		k.learnTemplate(ctx, name, h)
	}
	k.dropUnheard(ctx, all)
}

// learnProduct records a product of a build on a host that built it too, and that a
// product is stored.
func (k *keeper) learnProduct(ctx context.Context, s stateAt) {
	edit := func(r raftstore.Reader) *record.Build {
		b, ok := raftstore.Get(r, record.Builds, s.Build)
		if t, own := Operators(r, s.Name); !ok && own {
			b, ok = raftstore.Get(r, record.Builds, t.BuildID)
		}
		if !ok || b.Status != record.TemplateReady || b.Key != s.Name {
			return nil
		}
		i := slices.IndexFunc(b.Products, func(p record.Product) bool { return p.Digest == s.BuildID })
		switch {
		case i < 0 && s.Build != b.ID:
			return nil // built by hand: see adopt
		case i < 0:
			b = b.Clone()
			b.Products = append(b.Products, record.Product{Digest: s.BuildID, Engine: s.engine, Stored: s.Stored, CreatedAt: s.CreatedAt})
		case s.Stored && !b.Products[i].Stored, b.Products[i].Engine == "" && s.engine != "":
			b = b.Clone()
			b.Products[i].Stored, b.Products[i].Engine = b.Products[i].Stored || s.Stored, s.engine
		default:
			return nil
		}
		return b
	}
	k.write(ctx, "product of a template build", edit(k.Store.View()) != nil, func(tx *raftstore.Tx) error {
		if b := edit(tx); b != nil {
			raftstore.Put(tx, record.Builds, b)
		}
		return nil
	})
}

// learnTemplate records a shared template and the builds of it that were made by
// hand, and begins its build if that is due.
func (k *keeper) learnTemplate(ctx context.Context, name string, h *heard) {
	for _, s := range h.states { // latest first
		// It may also be from another cluster, or from before a backup was restored.
		if _, ours := raftstore.Get(k.Store.View(), record.Builds, s.Build); !ours {
			k.adopt(ctx, name, h, s)
		}
	}
	_, there := Operators(k.Store.View(), name)
	k.write(ctx, "template of the operator", !there, func(tx *raftstore.Tx) error {
		if _, there := Operators(tx, name); !there {
			raftstore.Put(tx, record.Templates, newTemplate(name, h))
		}
		return nil
	})
	if recipe, due := k.due(k.Store.View(), name, h); due {
		k.write(ctx, "build of a template", true, func(tx *raftstore.Tx) error {
			_, err := k.begin(tx, name, recipe, "")
			return err
		})
	}
}

// newTemplate returns a shared template without a build.
func newTemplate(name string, h *heard) *record.Template {
	t := &record.Template{Meta: record.Meta{ID: "tpl-" + strings.ToLower(rand.Text())}, Name: name, Key: name, Status: record.TemplateUnbuilt}
	if len(h.sources) > 0 {
		t.CPU, t.MemoryMB, t.DiskMB = h.sources[0].CPU, h.sources[0].MemoryMB, h.sources[0].DiskMB
	}
	return t
}

// adopt records a build that was made by hand on a host. The latest one becomes the
// template's current build, which the other hosts fetch. If the host has no snapshot
// store, its build is accepted whatever its age.
func (k *keeper) adopt(ctx context.Context, name string, h *heard, s stateAt) {
	do := func(r raftstore.Reader, put func(*record.Template, *record.Build)) bool {
		t, ok := Operators(r, name)
		if !ok {
			t = newTemplate(name, h)
		}
		for _, b := range raftstore.Find(r, record.Builds, "template", "/"+name) {
			if slices.Contains(b.Digests(), s.BuildID) {
				return false
			}
		}
		made := record.Product{Digest: s.BuildID, Engine: s.engine, Stored: s.Stored, CreatedAt: s.CreatedAt}
		if b, ok := raftstore.Get(r, record.Builds, t.BuildID); ok {
			i := slices.IndexFunc(b.Products, func(p record.Product) bool { return p.Engine == s.engine })
			if i < 0 || !s.store {
				b = b.Clone()
				b.Products = append(b.Products, made)
				put(t, b)
				return true
			}
			if !s.CreatedAt.After(b.Products[i].CreatedAt) {
				return false // an older one: the host will fetch the current one
			}
		}
		t = t.Clone()
		b := &record.Build{
			Meta: record.Meta{ID: "bld-" + strings.ToLower(rand.Text())}, Template: name, Key: name, Status: record.TemplateReady,
			FinishedAt: k.Clock(), Products: []record.Product{made},
		}
		t.Status, t.BuildID, t.Error = record.TemplateReady, b.ID, ""
		t.CPU, t.MemoryMB, t.DiskMB, t.SizeBytes = s.CPU, s.MemoryMB, s.DiskMB, s.SizeBytes
		put(t, b)
		return true
	}
	wanted := do(k.Store.View(), func(*record.Template, *record.Build) {})
	k.write(ctx, "template that was built by hand", wanted, func(tx *raftstore.Tx) error {
		do(tx, func(t *record.Template, b *record.Build) {
			raftstore.Put(tx, record.Templates, t)
			raftstore.Put(tx, record.Builds, b)
		})
		return nil
	})
}

// due returns the recipe from which a template is to be built without a request. A
// template that has a build is built again from a new recipe, or when no host has
// its build's recipe any more: a host that is not updated yet must not revert it.
func (k *keeper) due(r raftstore.Reader, name string, h *heard) (recipe string, due bool) {
	t, ok := Operators(r, name)
	if !ok || len(h.sources) == 0 {
		return "", false
	}
	if _, live := flow.Live(r, Subject(t.ID)); live {
		return "", false
	}
	tried := map[string]time.Time{}
	for _, b := range raftstore.Find(r, record.Builds, "template", "/"+name) {
		if b.FinishedAt.After(tried[b.Recipe]) {
			tried[b.Recipe] = b.FinishedAt
		}
	}
	if t.BuildID == "" {
		i := slices.IndexFunc(h.sources, func(s hostapi.TemplateSource) bool { return s.Ahead })
		if i < 0 || k.Clock().Sub(tried[h.sources[i].Recipe]) < aheadAgain {
			return "", false
		}
		return h.sources[i].Recipe, true
	}
	current, _ := raftstore.Get(r, record.Builds, t.BuildID)
	if current == nil || slices.ContainsFunc(h.sources, func(s hostapi.TemplateSource) bool { return s.Recipe == current.Recipe }) && len(h.sources) == 1 {
		return "", false
	}
	gone := !slices.ContainsFunc(h.sources, func(s hostapi.TemplateSource) bool { return s.Recipe == current.Recipe })
	for _, s := range h.sources {
		at, was := tried[s.Recipe]
		if !was || gone && k.Clock().Sub(at) >= aheadAgain {
			return s.Recipe, true
		}
	}
	return "", false
}

// Ask begins the build of a shared template that has none, and of those that it is
// based on. It returns the flow of the build, or "" if the template is built.
func (f *Flows) Ask(tx *raftstore.Tx, name, requestID string) (flowID string, err error) {
	t, ok := Operators(tx, name)
	if !ok {
		return "", ErrUnknown
	}
	if t.BuildID != "" {
		return "", nil
	}
	h := f.heard()[name]
	if h == nil || len(h.sources) == 0 {
		if live, ok := flow.Live(tx, Subject(t.ID)); ok {
			return live.ID, nil
		}
		return "", ErrNoSource
	}
	return f.begin(tx, name, h.sources[len(h.sources)-1].Recipe, requestID)
}

// begin begins the build of a recipe, unless a build of the template is in progress.
func (f *Flows) begin(tx *raftstore.Tx, name, recipe, requestID string) (flowID string, err error) {
	t, ok := Operators(tx, name)
	if !ok {
		return "", ErrUnknown
	}
	if live, ok := flow.Live(tx, Subject(t.ID)); ok {
		return live.ID, nil
	}
	from := ""
	if h := f.heard()[name]; h != nil {
		for _, s := range h.sources {
			if s.Recipe == recipe {
				from = s.From
			}
		}
	}
	t = t.Clone()
	if t.BuildID == "" {
		t.Status, t.Error = record.TemplateBuilding, ""
	}
	flowID = flow.NewID()
	err = Begin(tx, flowID, t, &record.Build{
		Meta: record.Meta{ID: "bld-" + strings.ToLower(rand.Text())}, Template: name, Key: name, From: from, Recipe: recipe, Status: record.TemplateQueued,
	}, requestID)
	if err != nil || from == "" {
		return flowID, err
	}
	// After its own flow, so that a cycle of templates ends here.
	if _, err := f.Ask(tx, from, requestID); err != nil && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrNoSource) {
		return "", err
	}
	return flowID, nil
}

// The states of a build's base.
const (
	parentReady = iota
	parentBuilds
	parentFailed
)

// parent returns the state of a build's base, and its name if it is a template.
func (f *Flows) parent(r raftstore.Reader, b *record.Build, spec hostapi.BuildSpec) (name string, state int) {
	if spec.FromOCI || spec.From == "" {
		return "", parentReady
	}
	t, ok := byKey(r, b.WorkspaceID, spec.From)
	if !ok || t.BuildID != "" {
		return "", parentReady
	}
	if _, live := flow.Live(r, Subject(t.ID)); live {
		return t.Name, parentBuilds
	}
	return t.Name, parentFailed
}

// dropUnheard removes shared templates that no host has any more.
func (k *keeper) dropUnheard(ctx context.Context, all map[string]*heard) {
	view := k.Store.View()
	agents, sessions := raftstore.All(view, record.Hosts), k.Hosts.Sessions()
	for _, a := range agents {
		if s, ok := sessions[a.ID]; !ok || !s.Heartbeat.Ready {
			return // that host may have templates that the others lack
		}
	}
	for _, t := range raftstore.Find(view, record.Templates, "workspace", "") {
		if _, live := flow.Live(view, Subject(t.ID)); live || all[t.Name] != nil || len(agents) == 0 {
			continue
		}
		k.write(ctx, "template that no host has", true, func(tx *raftstore.Tx) error {
			if _, live := flow.Live(tx, Subject(t.ID)); !live {
				Drop(tx, t)
			}
			return nil
		})
	}
}

// write runs a transaction if wanted. If it fails, the next pass tries again.
func (k *keeper) write(ctx context.Context, what string, wanted bool, fn func(tx *raftstore.Tx) error) {
	if !wanted {
		return
	}
	if err := k.Store.Update(ctx, fn); err != nil && ctx.Err() == nil {
		k.Logger.WarnContext(ctx, "a template's record was not written", "what", what, "error", err)
	}
}
