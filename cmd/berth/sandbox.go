package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) sandbox() *cobra.Command {
	g := group("sandbox", "Create sandboxes and run commands in them",
		`A sandbox is a microVM created from a template. Its id is a credential: anyone
who has it can reach the sandbox's public ports through its preview URL.`,
		a.sandboxCreate(), a.sandboxList(), a.sandboxGet(), a.sandboxExec(), a.sandboxCommand(), a.sandboxRemove())
	g.Aliases = []string{"sandboxes", "sb"}
	return g
}

func (a *app) sandboxCreate() *cobra.Command {
	var (
		template, key, snapshot, object string
		preview                         string
		metadata, env, volumes          []string
		cold, quiet, persistent         bool
		ttl                             span
	)
	cmd := &cobra.Command{
		Use:   "create [TEMPLATE]",
		Short: "Create a sandbox and print its id",
		Long: `Create a sandbox, wait until it is running, and print its id.

Only the id goes to stdout; messages go to stderr. The template determines CPU,
memory and disk.

berth sends an idempotency key, so that it can repeat the create at another
replica without creating two sandboxes. Ctrl-C deletes the sandbox, unless you
chose the key yourself.`,
		Example: `  berth sandbox create
  id=$(berth sandbox create base --ttl 1h)
  berth sandbox create --env LANG=C.UTF-8 --env HTTP_PROXY --metadata job=42
  berth sandbox create --metadata-json '{"job": {"id": 42}}' --json`,
		Args: wants(0, 1, "TEMPLATE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if cmd.Flags().Changed("template") && template != args[0] {
					return usage(cmd, "two templates: %q and %q", args[0], template)
				}
				template = args[0]
			}
			in := api.CreateSandbox{Template: template, TTLSeconds: ttl.seconds, FromSnapshot: snapshot}
			if cold {
				in.Boot = new(api.BootCold)
			}
			in.Persistent = persistent
			if preview != "" {
				in.Preview = new(api.PreviewMode(preview))
			}
			for _, v := range volumes {
				name, path, ok := strings.Cut(v, ":")
				if !ok {
					return usage(cmd, "--volume %q: want NAME:/path", v)
				}
				in.Volumes = append(in.Volumes, api.VolumeMount{Name: name, MountPath: path})
			}
			vars, err := assignments(env, a.env)
			if err != nil {
				return usage(cmd, "--env %s", err)
			}
			in.Env = vars
			if in.Metadata, err = metadataOf(metadata, object); err != nil {
				return usage(cmd, "%s", err)
			}
			if snapshot != "" && len(args) == 0 && !cmd.Flags().Changed("template") {
				in.Template = "" // the snapshot's own
			}
			return a.create(cmd.Context(), in, key, quiet)
		},
	}
	f := cmd.Flags()
	f.StringVar(&template, "template", "base", "template to create the sandbox from; the same as the argument; with --from-snapshot, defaults to the snapshot's")
	f.Var(&ttl, "ttl", "delete it after this time (default: never)")
	f.StringArrayVar(&metadata, "metadata", nil, "NAME=VALUE to store with it; repeatable")
	f.StringVar(&object, "metadata-json", "", "a JSON object to store with it, instead of --metadata")
	f.StringArrayVar(&env, "env", nil, "NAME=VALUE for the environment of every command; NAME alone takes your own value; repeatable")
	f.StringVar(&snapshot, "from-snapshot", "", "id of a snapshot to create it from")
	f.StringArrayVar(&volumes, "volume", nil, "NAME:/path: a volume and where to mount it; repeatable")
	f.BoolVar(&persistent, "persistent", false, "when --ttl ends, hibernate it instead of deleting it")
	f.StringVar(&preview, "preview", "", "who can see its ports: public (default), or token (see berth port token)")
	f.StringVar(&key, "idempotency-key", "", "for 24 hours, the same key and flags get the first answer")
	f.BoolVar(&cold, "cold", false, "boot the template's kernel instead of restoring its stored state")
	f.BoolVarP(&quiet, "quiet", "q", false, "print only the id")
	return cmd
}

func (a *app) create(ctx context.Context, in api.CreateSandbox, key string, quiet bool) error {
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return err
	}
	ownKey := key == ""
	if ownKey {
		key = "berth-" + rand.Text()
	}
	if in.Template == "" && in.FromSnapshot != "" {
		snap, err := c.GetSnapshot(ctx, in.FromSnapshot)
		if err != nil {
			return err
		}
		in.Template = snap.Template
	}
	stop := func() {}
	if !quiet {
		if stop = a.showTemplateBuild(ctx, c, in); stop == nil {
			stop = spin(a.stderr, "creating a sandbox from "+in.Template)
		}
	}
	start := time.Now()
	sb, err := c.CreateSandbox(ctx, in, key)
	stop()
	if err != nil {
		if ctx.Err() != nil && ownKey {
			a.undo(c, in, key)
		}
		return err
	}
	if a.json {
		return a.printJSON(sb)
	}
	if !quiet {
		a.note("%s from %s on %s after %s", sb.Status, sb.Template, orDash(sb.AgentID), time.Since(start).Round(time.Millisecond))
	}
	fmt.Fprintln(a.stdout, sb.ID)
	return nil
}

// undo deletes the sandbox of an interrupted create, which the service continues
// without its client. The key, which only this call has, finds it. A create that waits
// for its template's build has no sandbox yet, and ends with its client.
func (a *app) undo(c *api.Client, in api.CreateSandbox, key string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if building(ctx, c, in) {
		a.note("berth: the build of template %s goes on without this command; no sandbox was created", in.Template)
		return
	}
	defer spin(a.stderr, "interrupted, deleting the sandbox")()
	sb, err := c.CreateSandbox(ctx, in, key)
	if err == nil {
		err = c.DeleteSandbox(ctx, sb.ID)
	}
	if err != nil && api.StatusOf(err) != http.StatusNotFound {
		a.note("berth: the sandbox may still be created: %s", err)
	}
}

// metadataOf makes the object out of --metadata or --metadata-json.
func metadataOf(pairs []string, object string) (api.Object, error) {
	if object != "" {
		if len(pairs) > 0 {
			return nil, fmt.Errorf("give --metadata or --metadata-json, not both")
		}
		var o api.Object
		if err := json.Unmarshal([]byte(object), &o); err != nil {
			return nil, fmt.Errorf("--metadata-json: not a JSON object")
		}
		return o, nil
	}
	m, err := assignments(pairs, nil)
	if err != nil {
		return nil, fmt.Errorf("--metadata %w", err)
	}
	if m == nil {
		return nil, nil
	}
	return json.Marshal(m)
}

func (a *app) sandboxList() *cobra.Command {
	var quiet bool
	var member string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List sandboxes, newest first",
		Example: `  berth sandbox ls
  berth sandbox rm $(berth sandbox ls -q)      # all of them
  berth sandbox ls --metadata job=42
  berth sandbox ls --json | jq -r '.[] | select(.status == "failed") | .id'`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			list := c.Sandboxes(cmd.Context())
			if cmd.Flags().Changed("metadata") {
				name, value, ok := strings.Cut(member, "=")
				if !ok || name == "" {
					return usage(cmd, "--metadata %q: want NAME=VALUE", member)
				}
				list = c.SandboxesWith(cmd.Context(), name, value)
			}
			all := []api.Sandbox{}
			for sb, err := range list {
				if err != nil {
					return err
				}
				all = append(all, sb)
			}
			switch {
			case a.json:
				return a.printJSON(all)
			case quiet:
				for _, sb := range all {
					fmt.Fprintln(a.stdout, sb.ID)
				}
				return nil
			}
			rows := [][]string{{"ID", "STATUS", "TEMPLATE", "HOST", "AGE"}}
			for _, sb := range all {
				rows = append(rows, []string{sb.ID, string(sb.Status), sb.Template, orDash(sb.AgentID), age(sb.CreatedAt.Time)})
			}
			return a.table(rows)
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the ids")
	cmd.Flags().StringVar(&member, "metadata", "", "NAME=VALUE: only those that have it in their metadata")
	return cmd
}

func (a *app) sandboxGet() *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show one sandbox",
		Example: `  berth sandbox get $id
  berth sandbox get $id --json | jq -r .status`,
		Args:              wants(1, 1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			sb, err := c.GetSandbox(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(sb)
			}
			return a.fields(describe(sb)...)
		},
	}
}

// describe returns a sandbox's fields as names and values, without empty ones.
func describe(sb *api.Sandbox) []string {
	out := []string{
		"id", sb.ID, "status", string(sb.Status), "template", sb.Template,
		"size", fmt.Sprintf("%d vCPU, %d MB memory, %d MB disk", sb.CPU, sb.MemoryMB, sb.DiskMB),
		"host", orDash(sb.AgentID),
		"created", sb.CreatedAt.String(),
	}
	add := func(name string, value *string) {
		if value != nil && *value != "" {
			out = append(out, name, *value)
		}
	}
	at := func(name string, t *api.Time) {
		if t != nil {
			out = append(out, name, t.String())
		}
	}
	at("started", sb.StartedAt)
	at("expires", sb.ExpiresAt)
	add("error", sb.Error)
	if sb.Owner != nil {
		out = append(out, "owner", sb.Owner.Type+" "+sb.Owner.ID)
	}
	add("from snapshot", sb.FromSnapshot)
	add("forked from", sb.ForkedFrom)
	for _, v := range sb.Volumes {
		out = append(out, "volume", v.Name+" at "+v.MountPath)
	}
	if m := strings.TrimSpace(string(sb.Metadata)); m != "" && m != "{}" {
		out = append(out, "metadata", m)
	}
	add("preview", &sb.PreviewURL)
	return out
}

func (a *app) sandboxRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "rm ID…",
		Aliases: []string{"delete"},
		Short:   "Delete sandboxes, their memory and their disks",
		Example: `  berth sandbox rm $id
  berth sandbox rm $(berth sandbox ls -q)`,
		Args:              wants(1, -1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(id string) error { return c.DeleteSandbox(cmd.Context(), id) })
		},
	}
}

// removeEach removes each of names. If one cannot be removed, it reports why and
// goes on with the others.
func (a *app) removeEach(names []string, remove func(string) error) error {
	type failure struct {
		ID    string `json:"id"`
		Error string `json:"error"`
	}
	removed, failed := []string{}, []failure{}
	for _, name := range names {
		if err := remove(name); err != nil {
			if len(names) == 1 || errors.Is(err, context.Canceled) {
				return err
			}
			failed = append(failed, failure{name, err.Error()})
			a.note("berth: %s: %s", name, err)
			continue
		}
		removed = append(removed, name)
		if !a.json {
			fmt.Fprintln(a.stdout, name)
		}
	}
	if a.json {
		if err := a.printJSON(map[string]any{"deleted": removed, "failed": failed}); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return exit(a.failure)
	}
	return nil
}

// completeSandboxes offers the ids of existing sandboxes.
func (a *app) completeSandboxes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	page, _, err := c.ListSandboxes(ctx, api.Page{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, sb := range page {
		out = append(out, sb.ID+"\t"+sb.Template+", "+string(sb.Status)+", "+age(sb.CreatedAt.Time))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
