package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const commandRounds = 5

// The templates in which a first command is measured. All except the first may be
// missing.
var commandTemplates = []string{stack.BaseTemplate, "python", "node"}

var firstCommands = []struct{ name, command string }{
	{name: "node_v", command: "node -v"},
	{name: "python3_pass", command: "python3 -c pass"},
}

// measureCommands runs each command as the first one in a new sandbox.
func measureCommands(ctx context.Context, b *bench) error {
	ready, err := readyTemplates(ctx, b)
	if err != nil {
		return err
	}
	for _, template := range commandTemplates {
		if !slices.Contains(ready, template) {
			b.r.note("first_"+template, "not measured: the template is not built (bin/bench -templates builds it first)")
			continue
		}
		progress("first commands in sandboxes of %s", template)
		for _, c := range firstCommands {
			if err := firstCommand(ctx, b, template, c.name, c.command); err != nil {
				return fmt.Errorf("%s in %s: %w", c.command, template, err)
			}
		}
	}
	return nil
}

// readyTemplates returns the templates that every host has.
func readyTemplates(ctx context.Context, b *bench) ([]string, error) {
	admin, err := b.s.Admin()
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	agents, _, err := admin.ListAgents(ctx, api.Page{})
	if err != nil {
		return nil, err
	}
	hosts := map[string]int{}
	for _, a := range agents {
		for _, t := range a.Templates {
			if t.Status == string(api.TemplateReady) {
				hosts[t.Name]++
			}
		}
	}
	var ready []string
	for name, n := range hosts {
		if n == len(agents) {
			ready = append(ready, name)
		}
	}
	return ready, nil
}

func firstCommand(ctx context.Context, b *bench, template, name, command string) error {
	var exec, whole []time.Duration
	for round := range commandRounds + 1 {
		if err := pause(ctx, refill/8); err != nil {
			return err
		}
		began := time.Now()
		made, err := b.c.CreateSandbox(ctx, api.CreateSandbox{Template: template}, "")
		if err != nil {
			return err
		}
		took, err := b.exec(ctx, made.ID, command)
		if err != nil {
			return err
		}
		if round > 0 { // the first one makes the host read the disk
			exec, whole = append(exec, took), append(whole, time.Since(began))
		}
		if err := b.c.DeleteSandbox(ctx, made.ID); err != nil {
			return err
		}
	}
	prefix := "first_" + template + "_" + name
	b.r.add(prefix+"_p50", ms(quantile(exec, 0.5)), "ms")
	b.r.add(prefix+"_max", ms(quantile(exec, 1)), "ms")
	b.r.add(prefix+"_with_create_p50", ms(quantile(whole, 0.5)), "ms")
	return nil
}
