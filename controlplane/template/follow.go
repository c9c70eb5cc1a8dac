package template

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// followTime limits one call to a host.
var followTime = timescale.Limit(10 * time.Second)

// stateReady is a host's status of a template from which sandboxes can start.
const stateReady = "ready"

// followed identifies a request for a build to one run of a host's daemon.
type followed struct{ hostID, bootID, buildID, how string }

// keeper contains the loop of templates in one term.
type keeper struct {
	*Flows
	asked map[followed]time.Time // when a request may be repeated
}

// Loops returns the loop of templates.
func (s *Templates) Loops(*loops.Term) []loops.Loop {
	k := &keeper{Flows: s.Flows, asked: map[followed]time.Time{}}
	return []loops.Loop{{Name: "templates", Run: k.run}}
}

// run distributes templates until ctx ends: every host gets the current builds, and
// removes templates that have no row any more. It examines the whole state each
// time; asked only saves calls.
func (k *keeper) run(ctx context.Context) {
	tick := time.NewTicker(k.cfg.Every)
	defer tick.Stop()
	for {
		k.learn(ctx)
		k.keep(ctx)
		k.prune(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-k.look:
		}
	}
}

func (k *keeper) keep(ctx context.Context) {
	view := k.Store.View()
	templates := raftstore.All(view, record.Templates)
	known := map[string]bool{}
	for _, t := range templates {
		known[t.Key] = true
	}
	// A restored backup may lack the newest templates.
	keeps := loops.Kept(view) > 0
	sessions := k.Hosts.Sessions()
	shelves := map[uint64]todo{}
	for id, s := range sessions {
		hb := s.Heartbeat
		if !hb.Ready || hb.Draining {
			continue
		}
		do, seen := shelves[s.Shelf]
		if !seen {
			do = compare(view, hb.Templates, templates, known)
			shelves[s.Shelf] = do
		}
		for _, name := range do.unknown {
			if !keeps {
				k.forget(ctx, id, name)
			}
		}
		for _, t := range do.missing {
			k.follow(ctx, view, id, hb, t)
		}
	}
}

// todo is what a host must do to have the current templates.
type todo struct {
	unknown []string // names of templates without a row
	missing []*record.Template
}

func compare(view raftstore.Reader, has []hostapi.TemplateState, templates []*record.Template, known map[string]bool) (do todo) {
	at := make(map[string][]hostapi.TemplateState, len(has))
	for _, state := range has {
		at[state.Name] = append(at[state.Name], state)
		if IsKey(state.Name) && !known[state.Name] {
			do.unknown = append(do.unknown, state.Name)
		}
	}
	for _, t := range templates {
		if t.BuildID == "" || t.Status != record.TemplateReady {
			continue
		}
		if b, ok := raftstore.Get(view, record.Builds, t.BuildID); ok && !isAt(at[t.Key], t.Key, b) {
			do.missing = append(do.missing, t)
		}
	}
	return do
}

// follow asks a host for a template's current build: to fetch it or, if that is
// impossible, to build it.
func (k *keeper) follow(ctx context.Context, view raftstore.Reader, hostID string, hb hostapi.Heartbeat, t *record.Template) {
	b, ok := raftstore.Get(view, record.Builds, t.BuildID)
	if !ok {
		return
	}
	spec, how, ok := k.sourceOf(ctx, view, hb, t, b)
	asked := followed{hostID, hb.BootID, t.BuildID, how}
	now := k.Clock()
	if !ok || now.Before(k.asked[asked]) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	_, before := k.asked[asked]
	missing := false
	err := k.Hosts.Call(ctx, hostID, func(ctx context.Context, c *hosts.Client) error {
		if before && spec.Fetch != "" {
			if got, err := c.Build(ctx, b.ID); err == nil && got.Missing {
				missing = true
				return c.DeleteBuild(ctx, b.ID) // so that the next request does not join it
			}
		}
		_, err := c.PutBuild(ctx, b.ID, spec)
		return err
	})
	var refusal *hostapi.Error
	switch {
	case err == nil && missing:
		k.asked[asked] = now.Add(k.cfg.Again)
		k.missing(ctx, b, spec.Fetch)
	case err == nil:
		k.asked[asked] = now.Add(k.cfg.Again)
	case errors.As(err, &refusal) && refusal.Code != hostapi.CodeDraining && refusal.Code != hostapi.CodeBusy && refusal.Code != hostapi.CodeStaleTerm:
		k.asked[asked] = now.Add(10 * k.cfg.Again) // it will probably refuse again
		k.Logger.WarnContext(ctx, "host does not take a template", "template", t.Key, "agent_id", hostID, "error", err)
	}
}

// missing records that a product is not in the snapshot store. A host that has it
// stores it again and reports that; if there is none, it is built again.
func (k *keeper) missing(ctx context.Context, b *record.Build, digest string) {
	k.Logger.WarnContext(ctx, "template is not in the snapshot store any more", "template", b.Key, "build_id", b.ID, "digest", digest)
	k.write(ctx, "product that is not stored", true, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.Builds, b.ID)
		if !ok {
			return nil
		}
		row = row.Clone()
		for i := range row.Products {
			row.Products[i].Stored = row.Products[i].Stored && row.Products[i].Digest != digest
		}
		raftstore.Put(tx, record.Builds, row)
		return nil
	})
}

// sourceOf returns how a host can get a build, if it can now.
func (k *keeper) sourceOf(ctx context.Context, view raftstore.Reader, hb hostapi.Heartbeat, t *record.Template, b *record.Build) (spec hostapi.BuildSpec, how string, ok bool) {
	awaited := false
	for _, p := range b.Products {
		if p.Engine != hb.Versions.Engine || !hb.Store {
			continue
		}
		if p.Stored {
			return hostapi.BuildSpec{Template: t.Key, WorkspaceID: t.WorkspaceID, Fetch: p.Digest}, "fetch", true
		}
		awaited = awaited || k.isStoring(p.Digest)
	}
	if awaited || b.WorkspaceID == "" && b.Recipe == "" || b.WorkspaceID != "" && len(b.SpecSealed) == 0 {
		return spec, "", false // it will be stored, or its specification is unknown
	}
	spec, err := k.open(b)
	if err != nil {
		k.Logger.ErrorContext(ctx, "specification of a template cannot be opened", "build_id", b.ID, "error", err)
		return spec, "", false
	}
	return spec, "build", can(view, hb, b, spec) // its base must be there first
}

// isStoring reports whether a host has a build and will store it.
func (k *keeper) isStoring(digest string) bool {
	for _, hb := range kinds(k.Hosts.Sessions()) {
		if hb.Store && slices.ContainsFunc(hb.Templates, func(t hostapi.TemplateState) bool { return t.BuildID == digest }) {
			return true
		}
	}
	return false
}

// isAt reports whether a host that has these templates has a product of the build as its
// template.
func isAt(has []hostapi.TemplateState, key string, b *record.Build) bool {
	return slices.ContainsFunc(has, func(s hostapi.TemplateState) bool {
		return s.Name == key && s.Status == stateReady &&
			slices.ContainsFunc(b.Products, func(p record.Product) bool { return p.Digest == s.BuildID })
	})
}

// can reports whether a host has all that a build needs.
func can(view raftstore.Reader, hb hostapi.Heartbeat, b *record.Build, spec hostapi.BuildSpec) bool {
	if spec.Source != "" && !slices.ContainsFunc(hb.Sources, func(s hostapi.TemplateSource) bool {
		return s.Name == spec.Template && s.Recipe == spec.Source
	}) {
		return false
	}
	if spec.FromOCI || spec.From == "" {
		return true
	}
	if t, ok := byKey(view, b.WorkspaceID, spec.From); ok {
		if parent, ok := raftstore.Get(view, record.Builds, t.BuildID); ok && len(parent.Products) > 0 {
			return isAt(hb.Templates, t.Key, parent)
		}
	}
	return slices.ContainsFunc(hb.Templates, func(t hostapi.TemplateState) bool { return t.Name == spec.From && t.Status == stateReady })
}

// byKey returns the template that a workspace's build is based on.
func byKey(r raftstore.Reader, workspaceID, key string) (*record.Template, bool) {
	if !IsKey(key) {
		return Operators(r, key)
	}
	for _, t := range raftstore.Find(r, record.Templates, "workspace", workspaceID) {
		if t.Key == key {
			return t, true
		}
	}
	return nil, false
}

// forget deletes a template without a row from a host. If it is in use there, or the
// host does not answer, the next pass tries again.
func (k *keeper) forget(ctx context.Context, hostID, name string) {
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	err := k.Hosts.Call(ctx, hostID, func(ctx context.Context, c *hosts.Client) error { return c.DeleteTemplate(ctx, name) })
	if err == nil {
		k.Logger.InfoContext(ctx, "template without a row removed", "template", name, "agent_id", hostID)
	}
}
