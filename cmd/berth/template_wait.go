package main

import (
	"context"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// buildPoll is how often a create looks whether its template's build has begun.
const buildPoll = 300 * time.Millisecond

// showTemplateBuild shows, beside a create, the steps of the build that it waits
// for, until it is stopped; nil where there is none to wait for.
func (a *app) showTemplateBuild(ctx context.Context, c *api.Client, in api.CreateSandbox) (stop func()) {
	if in.FromSnapshot != "" {
		return nil
	}
	t, err := c.GetTemplate(ctx, in.Template)
	if err != nil || t.BuildID != "" || t.Status != api.TemplateUnbuilt && t.Status != api.TemplateBuilding {
		return nil // the create itself says what is wrong
	}
	a.note("template %s is built first, once; this takes minutes", in.Template)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if id := awaitBuild(ctx, c, in.Template); id != "" {
			// The create says how it ended.
			_, _ = c.FollowBuild(ctx, id, func(l api.BuildLog) error {
				if step, ok := strings.CutPrefix(l.Line, "==> "); ok {
					a.note("  %s", step)
				}
				return nil
			})
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// awaitBuild returns the build of a template that goes on, "" when ctx ends.
func awaitBuild(ctx context.Context, c *api.Client, template string) string {
	tick := time.NewTicker(buildPoll)
	defer tick.Stop()
	for {
		for b, err := range c.Builds(ctx, template) {
			if err == nil && b.FinishedAt == nil {
				return b.ID
			}
			break // the newest comes first
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ""
		}
	}
}
