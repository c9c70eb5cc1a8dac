package template

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// followTime bounds one call of a host.
var followTime = timescale.Limit(10 * time.Second)

// followed is one build that one run of a host's daemon was asked for.
type followed struct{ agentID, bootID, buildID string }

// Run keeps templates where they belong until ctx ends: every host builds what
// one has built, and forgets what has no row any more. It looks at the whole
// state each time; that a host was asked already only spares it the question.
func (f *Flows) Run(ctx context.Context) {
	f.told = map[followed]bool{}
	tick := time.NewTicker(f.cfg.Every)
	defer tick.Stop()
	for {
		f.keep(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (f *Flows) keep(ctx context.Context) {
	view := f.cfg.Store.View()
	templates := raftstore.All(view, record.Templates)
	known := map[string]bool{}
	for _, t := range templates {
		known[t.Key] = true
	}
	// A backup that was restored may not know the latest.
	cluster, ok := raftstore.Get(view, record.Clusters, record.ClusterID)
	keeps := ok && cluster.Keep > 0
	for id, s := range f.cfg.Hosts.Sessions() {
		hb := s.Heartbeat
		if !hb.Ready || hb.Draining {
			continue
		}
		for _, state := range hb.Templates {
			if IsKey(state.Name) && !known[state.Name] && !keeps {
				f.forget(ctx, id, state.Name)
			}
		}
		for _, t := range templates {
			if t.BuildID != "" && t.Status == record.TemplateReady {
				f.follow(ctx, view, id, hb, t)
			}
		}
	}
}

// follow asks a host for the build that a template means.
func (f *Flows) follow(ctx context.Context, view raftstore.Reader, agentID string, hb hostapi.Heartbeat, t *record.Template) {
	asked := followed{agentID, hb.BootID, t.BuildID}
	b, ok := raftstore.Get(view, record.Builds, t.BuildID)
	if !ok || f.told[asked] {
		return
	}
	if b.AgentID == agentID && has(hb, hostapi.BuildSpec{From: t.Key}) {
		return // it is the one that has built it
	}
	spec, err := f.open(b)
	if err != nil {
		f.cfg.Logger.ErrorContext(ctx, "specification of a template cannot be opened", "build_id", b.ID, "error", err)
		f.told[asked] = true
		return
	}
	if !has(hb, spec) {
		return // what it is made from comes first
	}
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	err = f.cfg.Hosts.Call(ctx, agentID, func(ctx context.Context, c *hosts.Client) error {
		_, err := c.PutBuild(ctx, b.ID, spec)
		return err
	})
	var refusal *hostapi.Error
	switch {
	case err == nil:
		f.told[asked] = true
	case errors.As(err, &refusal) && refusal.Code != hostapi.CodeDraining && refusal.Code != hostapi.CodeBusy && refusal.Code != hostapi.CodeStaleTerm:
		f.told[asked] = true // it never will
		f.cfg.Logger.WarnContext(ctx, "host does not take a template", "template", t.Key, "agent_id", agentID, "error", err)
	}
}

// forget removes from a host a template that has no row. One that is in use
// there, or a host that does not answer, is asked again the next time.
func (f *Flows) forget(ctx context.Context, agentID, name string) {
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	err := f.cfg.Hosts.Call(ctx, agentID, func(ctx context.Context, c *hosts.Client) error { return c.DeleteTemplate(ctx, name) })
	if err == nil {
		f.cfg.Logger.InfoContext(ctx, "template without a row removed", "template", name, "agent_id", agentID)
	}
}
