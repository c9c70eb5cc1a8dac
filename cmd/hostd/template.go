package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/hostd"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/vmm"
)

func templateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "Build, list, verify and remove templates",
		Long: `A template is described by a file template.yaml. To build it, hostd creates its
root file system, boots a guest from it and stores the guest with its memory.
Sandboxes start from that. A template is built again only if something that it
was built from has changed.`,
	}
	build := &cobra.Command{
		Use: "build FILE...", Short: "Build templates, unless they are up to date", Args: cobra.MinimumNArgs(1),
		Example: "  hostd template build templates/base/template.yaml",
	}
	store := build.Flags().Bool("store", false, "put their files into the snapshot store, too, which the daemon does otherwise while it runs")
	build.RunE = func(cmd *cobra.Command, args []string) error { return buildTemplates(cmd, args, *store) }
	cmd.AddCommand(
		build,
		&cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List templates", Args: cobra.NoArgs, RunE: listTemplates},
		&cobra.Command{
			Use: "verify NAME...", Short: "Read every file of a template and compare its checksum", Args: cobra.MinimumNArgs(1), RunE: verifyTemplates,
		},
		&cobra.Command{
			Use: "rm NAME...", Short: "Remove templates; running sandboxes keep running", Args: cobra.MinimumNArgs(1), RunE: removeTemplates,
		},
	)
	return cmd
}

// withStore opens the store for one command.
func withStore(cmd *cobra.Command, do func(*image.Store) error) (err error) {
	cfg, err := config()
	if err != nil {
		return err
	}
	return withStoreOf(cmd, cfg, do)
}

func withStoreOf(cmd *cobra.Command, cfg hostd.Config, do func(*image.Store) error) (err error) {
	store, closeStore, err := hostd.TemplateStore(cmd.Context(), cfg, hostd.NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	return do(store)
}

func buildTemplates(cmd *cobra.Command, args []string, toStore bool) error {
	var defs []image.Definition
	for _, path := range args {
		if fi, err := os.Stat(path); err == nil && fi.IsDir() {
			path = filepath.Join(path, "template.yaml")
		}
		d, err := image.ReadDefinition(path)
		if err != nil {
			return err
		}
		defs = append(defs, d)
	}
	cfg, err := config()
	if err != nil {
		return err
	}
	if toStore && cfg.SnapshotStore == "" {
		return errors.New("--store: BERTH_SNAPSHOT_STORE names no snapshot store")
	}
	return withStoreOf(cmd, cfg, func(store *image.Store) error {
		for _, d := range defs {
			show := &progress{out: cmd.OutOrStdout()}
			began := time.Now()
			t, err := store.Ensure(cmd.Context(), store.Fit(d), show.tell)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "template %s is ready after %s: build %s, %d CPU, %d MB memory, %d MB on disk\n",
				t.Name, time.Since(began).Round(100*time.Millisecond), t.BuildID, t.CPU, t.MemoryMB, t.SizeBytes>>20)
			if !toStore {
				continue
			}
			if err := storeTemplate(cmd, cfg, store, t); err != nil {
				return err
			}
		}
		return nil
	})
}

// storeTemplate does not say anything about a template that is stored already.
func storeTemplate(cmd *cobra.Command, cfg hostd.Config, store *image.Store, t image.Template) error {
	slow := time.AfterFunc(time.Second, func() { fmt.Fprintf(cmd.OutOrStdout(), "template %s is being stored for other hosts …\n", t.Name) })
	stats, err := hostd.StoreTemplate(cmd.Context(), cfg, store, t.BuildID)
	slow.Stop()
	if err != nil {
		return fmt.Errorf("store template %s: %w", t.Name, err)
	}
	if stats.NewChunks > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "template %s is stored after %s: %d MB\n", t.Name, stats.Took.Round(100*time.Millisecond), stats.NewBytes>>20)
	}
	return nil
}

// progress prints a line for each step of a build, and one every few seconds
// within a step.
type progress struct {
	out  io.Writer
	step string
	last time.Time
}

func (p *progress) tell(now image.Progress) {
	const pace = 3 * time.Second
	if now.Step == p.step && time.Since(p.last) < pace {
		return
	}
	p.step, p.last = now.Step, time.Now()
	fmt.Fprintf(p.out, "%3d %%  %6s  %-10s  %s\n", now.Percent, now.Elapsed.Round(100*time.Millisecond), now.Step, now.Detail)
}

func listTemplates(cmd *cobra.Command, _ []string) error {
	return withStore(cmd, func(store *image.Store) error {
		list, err := store.List()
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "NAME\tBUILD\tCPU\tMEMORY MB\tDISK MB\tSIZE MB\tENGINE\tKERNEL\tCREATED")
		for _, t := range list {
			fmt.Fprintf(w, "%s\t%.12s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", t.Name, t.BuildID, t.CPU, t.MemoryMB, t.DiskMB, t.SizeBytes>>20,
				vmm.ShortEngine(t.Engine), t.KernelVersion, t.CreatedAt.Format(time.RFC3339))
		}
		return errors.Join(w.Flush(), err)
	})
}

func verifyTemplates(cmd *cobra.Command, args []string) error {
	return withStore(cmd, func(store *image.Store) error {
		var errs []error
		for _, name := range args {
			if err := store.Verify(cmd.Context(), name); err != nil {
				errs = append(errs, err)
				continue
			}
			fmt.Fprintf(cmd.OutOrStdout(), "template %s is whole\n", name)
		}
		return errors.Join(errs...)
	})
}

func removeTemplates(cmd *cobra.Command, args []string) error {
	return withStore(cmd, func(store *image.Store) error {
		for _, name := range args {
			if err := store.Remove(cmd.Context(), name); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "template %s is removed\n", name)
		}
		return nil
	})
}
