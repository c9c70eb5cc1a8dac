package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// lifecycle are the commands that change a sandbox's status.
func (a *app) lifecycle() []*cobra.Command {
	return []*cobra.Command{
		a.transition("pause", "Stop a sandbox's CPUs and keep its memory", (*api.Client).PauseSandbox),
		a.transition("resume", "Resume a paused sandbox", (*api.Client).ResumeSandbox),
		a.transition("hibernate", "Write a sandbox's memory to disk and end its VM", (*api.Client).HibernateSandbox),
		a.transition("wake", "Restore a hibernated sandbox where it was", (*api.Client).WakeSandbox),
		a.ttl(),
	}
}

func (a *app) transition(verb, short string, do func(*api.Client, context.Context, string) (*api.Sandbox, error)) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " ID…",
		Short:             short,
		Example:           "  berth " + verb + " $id",
		Args:              wants(1, -1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			var changed []*api.Sandbox
			for _, id := range args {
				start := time.Now()
				sb, err := do(c, cmd.Context(), id)
				if err != nil {
					return err
				}
				changed = append(changed, sb)
				a.note("%s is %s after %s", sb.ID, sb.Status, time.Since(start).Round(time.Millisecond))
			}
			switch {
			case a.json && len(changed) == 1:
				return a.printJSON(changed[0])
			case a.json:
				return a.printJSON(changed)
			}
			return nil
		},
	}
}

func (a *app) ttl() *cobra.Command {
	var (
		life       span
		none       bool
		persistent string
	)
	cmd := &cobra.Command{
		Use:   "ttl ID",
		Short: "Show or change when a sandbox expires",
		Long: `Show or change when a sandbox expires, and what happens then: it is deleted, or
hibernated if it is persistent.`,
		Example: `  berth ttl $id
  berth ttl $id --set 2h --persistent=true
  berth ttl $id --none`,
		Args:              wants(1, 1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			var in api.PatchLifecycle
			switch {
			case none && life.seconds != nil:
				return usage(cmd, "give --set or --none, not both")
			case none:
				in.TTLSeconds = api.SetNull[int64]()
			case life.seconds != nil:
				in.TTLSeconds = api.SetTo(*life.seconds)
			}
			if cmd.Flags().Changed("persistent") {
				on := persistent == "true"
				if !on && persistent != "false" {
					return usage(cmd, "--persistent is true or false")
				}
				in.Persistent = api.SetTo(on)
			}
			var out *api.Lifecycle
			if in.TTLSeconds.IsZero() && in.Persistent.IsZero() {
				out, err = c.GetLifecycle(cmd.Context(), args[0])
			} else {
				out, err = c.PatchLifecycle(cmd.Context(), args[0], in)
			}
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(out)
			}
			expires := "never"
			if out.ExpiresAt != nil {
				expires = out.ExpiresAt.String() + " (in " + time.Until(out.ExpiresAt.Time).Round(time.Second).String() + ")"
			}
			return a.fields("status", string(out.Status), "expires", expires, "persistent", yes(out.Persistent))
		},
	}
	f := cmd.Flags()
	f.Var(&life, "set", "time from now until it expires")
	f.BoolVar(&none, "none", false, "it never expires")
	f.StringVar(&persistent, "persistent", "", "true: when it expires, it is hibernated instead of deleted")
	f.Lookup("persistent").NoOptDefVal = "true"
	return cmd
}

func (a *app) snapshot() *cobra.Command {
	return group("snapshot", "Save the memory and disk of sandboxes",
		`A snapshot is a sandbox's memory, device state and disk at one moment. Any
number of sandboxes can be created from it: berth sandbox create --from-snapshot.`,
		a.snapshotCreate(), a.snapshotList(), a.snapshotRemove())
}

func (a *app) snapshotCreate() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "create ID",
		Short: "Take a snapshot of a running sandbox and print its id",
		Example: `  snap=$(berth snapshot create $id --name before-upgrade)
  berth sandbox create --from-snapshot $snap`,
		Args:              wants(1, 1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			stop := spin(a.stderr, "taking a snapshot")
			snap, err := c.CreateSnapshot(cmd.Context(), args[0], api.CreateSnapshot{Name: name}, "berth-"+rand.Text())
			stop()
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(snap)
			}
			where := "only on " + snap.AgentID
			if snap.Stored {
				where = "in the snapshot store"
			}
			a.note("%s, %s; the sandbox was paused for %d ms", size(snap.SizeBytes), where, snap.PauseMS)
			fmt.Fprintln(a.stdout, snap.ID)
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "a name, for display only")
	return cmd
}

func (a *app) snapshotList() *cobra.Command {
	var sandbox string
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List snapshots, newest first",
		Example: "  berth snapshot ls --sandbox $id",
		Args:    wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.Snapshot{}
			for s, err := range c.Snapshots(cmd.Context(), sandbox) {
				if err != nil {
					return err
				}
				all = append(all, s)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"ID", "NAME", "SANDBOX", "TEMPLATE", "SIZE", "STORED", "AGE"}}
			for _, s := range all {
				rows = append(rows, []string{s.ID, orDash(s.Name), s.SandboxID, s.Template, size(s.SizeBytes), yes(s.Stored), age(s.CreatedAt.Time)})
			}
			return a.table(rows)
		},
	}
	cmd.Flags().StringVar(&sandbox, "sandbox", "", "only those of this sandbox")
	return cmd
}

func (a *app) snapshotRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID…", Aliases: []string{"delete"}, Short: "Delete snapshots, and their copies in the store",
		Args: wants(1, -1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(id string) error { return c.DeleteSnapshot(cmd.Context(), id) })
		},
	}
}

func (a *app) fork() *cobra.Command {
	var (
		count      int
		cold, warm bool
		metadata   []string
		object     string
	)
	cmd := &cobra.Command{
		Use:   "fork ID",
		Short: "Fork a running sandbox and print the children's ids",
		Long: `Fork a running sandbox with its memory: every child continues where the parent
is, with its processes alive and with its own random numbers, names and keys.
The parent is paused for a moment.

With --cold, children get only the parent's disk and boot afresh. With --warm,
there is one child, which takes the parent's place on the network; the parent
stays paused until it is resumed.

If a child does not start, its error is printed, the others keep running, and
the exit code is 1.`,
		Example: `  berth fork $id -n 16
  tree=$(berth fork $id -n 4 --json | jq -r .tree_id)
  berth fork $id --cold`,
		Args:              wants(1, 1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			if cold && warm {
				return usage(cmd, "give --cold or --warm, not both")
			}
			if cold || warm {
				if len(metadata) > 0 || object != "" {
					return usage(cmd, "--cold and --warm take no metadata")
				}
				in := api.Fork{Mode: new(api.ForkCold)}
				if warm {
					in.Mode = new(api.ForkWarm)
				}
				if cmd.Flags().Changed("count") {
					in.Count = &count
				}
				return a.plainFork(cmd.Context(), c, args[0], in)
			}
			in := api.ForkTree{}
			if cmd.Flags().Changed("count") {
				in.Count = &count
			}
			if in.Metadata, err = metadataOf(metadata, object); err != nil {
				return usage(cmd, "%s", err)
			}
			return a.forkTree(cmd.Context(), c, args[0], in)
		},
	}
	f := cmd.Flags()
	f.IntVarP(&count, "count", "n", 2, "number of children, 1 to 16 (default with --cold or --warm: 1)")
	f.BoolVar(&cold, "cold", false, "copy only the disk, and boot the children")
	f.BoolVar(&warm, "warm", false, "create one child in the parent's place")
	f.StringArrayVar(&metadata, "metadata", nil, "NAME=VALUE to store with each child; repeatable; not with --cold or --warm")
	f.StringVar(&object, "metadata-json", "", "a JSON object to store with each child, instead of --metadata")
	return cmd
}

func (a *app) plainFork(ctx context.Context, c *api.Client, id string, in api.Fork) error {
	stop := spin(a.stderr, "forking")
	out, err := c.Fork(ctx, id, in, "berth-"+rand.Text())
	stop()
	if err != nil {
		return err
	}
	if !a.json {
		a.note("%d forked; the parent was paused for %d ms", len(out.Children), out.PauseMS)
		if out.Mode == api.ForkWarm {
			a.note("the parent is paused: berth resume %s", id)
		}
	}
	return a.printForked(out, out.Children, out.Failed)
}

// printForked prints the result of a fork. A child that does not run makes the
// command fail, in either format.
func (a *app) printForked(out any, children []api.Sandbox, failed []api.FailedFork) error {
	if a.json {
		if err := a.printJSON(out); err != nil {
			return err
		}
	} else {
		for _, f := range failed {
			a.note("berth: child %d: %s", f.Index, f.Error)
		}
		for _, child := range children {
			fmt.Fprintln(a.stdout, child.ID)
		}
	}
	if len(failed) > 0 {
		return exit(a.failure)
	}
	return nil
}

func (a *app) forkTree(ctx context.Context, c *api.Client, id string, in api.ForkTree) error {
	start := time.Now()
	stop := spin(a.stderr, "forking")
	out, err := c.ForkTree(ctx, id, in, "berth-"+rand.Text())
	stop()
	if err != nil {
		return err
	}
	if !a.json {
		a.note("%s: %d children after %s; the parent was paused for %d ms", out.TreeID, len(out.Children), time.Since(start).Round(time.Millisecond), out.PauseMS)
	}
	return a.printForked(out, out.Children, out.Failed)
}

func (a *app) promote() *cobra.Command {
	var tree string
	var cleanup bool
	cmd := &cobra.Command{
		Use:   "promote ID",
		Short: "Keep the chosen child of a fork tree",
		Example: `  berth promote $child                 # its siblings keep running
  berth promote $child --cleanup       # its siblings are deleted`,
		Args:              wants(1, 1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			if tree == "" {
				sb, err := c.GetSandbox(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if tree = treeOf(sb); tree == "" {
					return fmt.Errorf("%s is not a child of a fork tree", args[0])
				}
			}
			out, err := c.Promote(cmd.Context(), args[0], api.Promote{TreeID: tree, CleanupSiblings: cleanup})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(out)
			}
			a.note("%s is promoted; siblings deleted: %d", out.Promoted.ID, len(out.Deleted))
			return nil
		},
	}
	cmd.Flags().StringVar(&tree, "tree", "", "id of the tree (default: the sandbox's own)")
	cmd.Flags().BoolVar(&cleanup, "cleanup", false, "delete its siblings")
	return cmd
}

// forkKeys are the fork's own keys in a child's metadata.
type forkKeys struct {
	Tree   string `json:"fork_tree_id"`
	Role   string `json:"fork_tree_role"`
	Parent string `json:"fork_parent_id"`
	Index  int    `json:"fork_index"`
}

func keysOf(sb *api.Sandbox) forkKeys {
	var k forkKeys
	_ = json.Unmarshal(sb.Metadata, &k) // a client's own metadata may have other types there
	return k
}

func treeOf(sb *api.Sandbox) string { return keysOf(sb).Tree }

// size formats a number of bytes for people.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n), "KMGTP"
	i := -1
	for v >= unit && i < len(units)-1 {
		v /= unit
		i++
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + units[i:i+1] + "iB"
}
