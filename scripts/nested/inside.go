package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/vmm"
)

// inside runs the parts in the outer guest, in the directory of its second disk.
func inside(ctx context.Context) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := readSettings(filepath.Join(root, settingsFile)); err != nil {
		return err
	}
	tmp := filepath.Join(root, "tmp")
	for _, dir := range []string{tmp, trustDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(root, "trust")); err == nil {
		if err := command(ctx, "cp", "-r", filepath.Join(root, "trust")+"/.", trustDir); err != nil {
			return err
		}
	}
	for name, value := range map[string]string{
		vmm.EnvVMM:          filepath.Join(root, "bin", vmm.KindCloudHypervisor),
		"BERTH_KERNEL":      filepath.Join(root, ".berth", "kernel", "vmlinux"),
		"BERTH_PROBE":       filepath.Join(root, "bin", "probe"),
		"BERTH_TEST_GUESTS": "1",
		// The outer guest has one processor, and all of a guest's memory is written often.
		"BERTH_APP_CPU":       "1",
		"BERTH_APP_MEMORY_MB": "512",
		"TMPDIR":              tmp, // on ext4: the engine treats files on a tmpfs differently
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	go func() {
		for range time.Tick(aliveInterval) {
			fmt.Println(aliveLine)
		}
	}()
	parts := strings.Split(os.Getenv("NESTED_PARTS"), ",")
	var errs []error
	if slices.Contains(parts, partSuite) {
		if err := suite(ctx, root); err != nil {
			errs = append(errs, fmt.Errorf("the suite: %w", err))
		}
	}
	if slices.Contains(parts, partStack) {
		o := stack.Options{Replicas: 1, HostMemoryMB: hostMemoryMB}
		if err := onStack(ctx, root, o, perform); err != nil {
			errs = append(errs, fmt.Errorf("the stack: %w", err))
		}
	}
	if slices.Contains(parts, partDatabases) {
		// With one replica there is neither clone, failover nor rotation.
		o := stack.Options{Replicas: 3, HostMemoryMB: hostMemoryMB, Templates: []string{stack.BaseTemplate, template.Postgres}, ReplicaEnv: databaseSettings}
		if err := onStack(ctx, root, o, performDatabases); err != nil {
			errs = append(errs, fmt.Errorf("databases: %w", err))
		}
	}
	if slices.Contains(parts, partApps) {
		o := stack.Options{Replicas: 1, HostMemoryMB: hostMemoryMB, Templates: []string{stack.BaseTemplate, template.App}, ReplicaEnv: appSettings}
		if err := onStack(ctx, root, o, performApps); err != nil {
			errs = append(errs, fmt.Errorf("apps: %w", err))
		}
	}
	return errors.Join(errs...)
}

// readSettings sets the environment from the lines of a file.
func readSettings(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

func suite(ctx context.Context, root string) error {
	args := []string{"-test.v", "-test.count=1", "-test.timeout=5h"}
	if run := os.Getenv("NESTED_RUN"); run != "" {
		args = append(args, "-test.run", run)
	}
	return command(ctx, filepath.Join(root, "bin", "conformance.test"), args...)
}

// onStack starts a stack with one host, performs operations on it, and prints how
// long each took.
func onStack(ctx context.Context, root string, o stack.Options, perform func(context.Context, *stack.Stack, *table) error) (err error) {
	o.Root, o.Hosts, o.Notify = root, 1, say
	began := time.Now()
	if err := stack.Prepare(ctx, o, false, os.Stdout); err != nil {
		return fmt.Errorf("build the templates: %w", err)
	}
	t := &table{}
	t.add("build the templates, with their layers present", time.Since(began), "")
	began = time.Now()
	s, err := stack.Start(ctx, o)
	if err != nil {
		return fmt.Errorf("start the stack: %w", err)
	}
	t.add("start the stack", time.Since(began), "")
	defer func() {
		if err != nil {
			showLogs(s.Logs)
		}
		err = errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
		t.print(os.Stdout)
	}()
	return perform(ctx, s, t)
}

// hostMemoryMB is enough for a parent and four children of base.
const hostMemoryMB = 5000

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// showLogs prints the end of each daemon's log.
func showLogs(dir string) {
	const most = 6000
	files, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err == nil {
			fmt.Printf("the end of %s:\n%s\n", filepath.Base(path), raw[max(0, len(raw)-most):])
		}
	}
}
