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

// followTime bounds one call of a host.
var followTime = timescale.Limit(10 * time.Second)

// stateReady is the status of a template that a host can start.
const stateReady = "ready"

// followed is one build that one run of a host's daemon was asked for.
type followed struct{ hostID, bootID, buildID, how string }

// keeper keeps templates, in one term, where they belong.
type keeper struct {
	*Flows
	asked map[followed]time.Time // until when hosts that were asked for builds are left alone
}

// Loops are what keeps templates where they belong.
func (s *Templates) Loops(*loops.Term) []loops.Loop {
	k := &keeper{Flows: s.Flows, asked: map[followed]time.Time{}}
	return []loops.Loop{{Name: "templates", Run: k.run}}
}

// run keeps templates where they belong until ctx ends: every host has what one
// has built, and forgets what has no row any more. It looks at the whole state
// each time; that a host was asked already only spares it the question.
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
	// A backup that was restored may not know the latest.
	keeps := loops.Kept(view) > 0
	for id, s := range k.Hosts.Sessions() {
		hb := s.Heartbeat
		if !hb.Ready || hb.Draining {
			continue
		}
		for _, state := range hb.Templates {
			if IsKey(state.Name) && !known[state.Name] && !keeps {
				k.forget(ctx, id, state.Name)
			}
		}
		for _, t := range templates {
			if t.BuildID != "" && t.Status == record.TemplateReady {
				k.follow(ctx, view, id, hb, t)
			}
		}
	}
}

// follow asks a host for the build that a template means: to fetch it, or, where
// that cannot be, to build it as well.
func (k *keeper) follow(ctx context.Context, view raftstore.Reader, hostID string, hb hostapi.Heartbeat, t *record.Template) {
	b, ok := raftstore.Get(view, record.Builds, t.BuildID)
	if !ok || isAt(hb, t.Key, b) {
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
				return c.DeleteBuild(ctx, b.ID) // so that it is not met again
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
		k.asked[asked] = now.Add(10 * k.cfg.Again) // most likely it never will
		k.Logger.WarnContext(ctx, "host does not take a template", "template", t.Key, "agent_id", hostID, "error", err)
	}
}

// missing notes that a product is not in the snapshot store. A host that has it
// puts it there again, and says so; where there is none, it is built anew.
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

// sourceOf says how a host comes by a build, if it can now.
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
		return spec, "", false // it will be in the store, or nobody knows how it was built
	}
	spec, err := k.open(b)
	if err != nil {
		k.Logger.ErrorContext(ctx, "specification of a template cannot be opened", "build_id", b.ID, "error", err)
		return spec, "", false
	}
	return spec, "build", can(view, hb, b, spec) // what it is made from comes first
}

// isStoring reports whether a host that has a build is there to put it into the
// snapshot store.
func (k *keeper) isStoring(digest string) bool {
	for _, s := range k.Hosts.Sessions() {
		if s.Heartbeat.Store && slices.ContainsFunc(s.Heartbeat.Templates, func(t hostapi.TemplateState) bool { return t.BuildID == digest }) {
			return true
		}
	}
	return false
}

// isAt reports whether a template means a build's product on a host.
func isAt(hb hostapi.Heartbeat, key string, b *record.Build) bool {
	return slices.ContainsFunc(hb.Templates, func(s hostapi.TemplateState) bool {
		return s.Name == key && s.Status == stateReady &&
			slices.ContainsFunc(b.Products, func(p record.Product) bool { return p.Digest == s.BuildID })
	})
}

// can reports whether a host has all that a build takes.
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
			return isAt(hb, t.Key, parent)
		}
	}
	return slices.ContainsFunc(hb.Templates, func(t hostapi.TemplateState) bool { return t.Name == spec.From && t.Status == stateReady })
}

// byKey finds the template that a workspace's build is made from.
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

// forget removes from a host a template that has no row. One that is in use
// there, or a host that does not answer, is asked again the next time.
func (k *keeper) forget(ctx context.Context, hostID, name string) {
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	err := k.Hosts.Call(ctx, hostID, func(ctx context.Context, c *hosts.Client) error { return c.DeleteTemplate(ctx, name) })
	if err == nil {
		k.Logger.InfoContext(ctx, "template without a row removed", "template", name, "agent_id", hostID)
	}
}
