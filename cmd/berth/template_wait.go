package main

import (
	"context"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// buildPoll is how often a create checks whether its template's build has begun.
const buildPoll = 300 * time.Millisecond

// showTemplateBuild prints the steps of the build that a create waits for, until
// it is stopped; nil if there is no such build.
func (a *app) showTemplateBuild(ctx context.Context, c *api.Client, in api.CreateSandbox) (stop func()) {
	if !building(ctx, c, in) {
		return nil // the create itself reports what is wrong
	}
	a.note("building template %s first, once; this takes minutes", in.Template)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if id := awaitBuild(ctx, c, in.Template); id != "" {
			// The create reports how it ended.
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

// building reports whether a create waits for its template's build.
func building(ctx context.Context, c *api.Client, in api.CreateSandbox) bool {
	if in.FromSnapshot != "" {
		return false
	}
	t, err := c.GetTemplate(ctx, in.Template)
	return err == nil && t.BuildID == "" && (t.Status == api.TemplateUnbuilt || t.Status == api.TemplateBuilding)
}

// awaitBuild returns a template's unfinished build, or "" when ctx ends.
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
