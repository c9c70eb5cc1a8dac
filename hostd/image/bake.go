package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/vmm"
)

// warmUp are the commands that a guest runs before it is stored: the code of
// guestd, of a shell and of the first programs of a sandbox is then in the
// stored RAM, and not on a disk that has yet to be read.
var warmUp = [][]string{
	{"/bin/sh", "-c", "true"},
	{"/bin/sh", "-c", "uname -a; id; ls / /tmp; cat /etc/os-release; command -v bash && bash -c true"},
	{"/bin/sh", "-c", "command -v python3 && python3 -c pass"},
}

const (
	warmTime     = time.Minute
	readyPoll    = 100 * time.Millisecond
	readyAttempt = 5 * time.Second
	// settleTime lets the guest end what it does after the last answer: closing
	// connections, freeing memory, writing back. Every sandbox would do it again.
	settleTime = time.Second
)

// bake boots a build's guest once and stores it.
func (s *Store) bake(ctx context.Context, m manifest, ramdisk ramdisk, r *reporter) error {
	dir, remove, err := s.workDir(ctx)
	if err != nil {
		return err
	}
	defer remove()
	done := filepath.Join(dir, "build")
	state := filepath.Join(done, stateDir)
	if err := os.MkdirAll(state, 0o755); err != nil {
		return err
	}
	t := s.guestOf(m.Definition, m.Kernel, m.Layers)
	t.Initramfs = filepath.Join(done, initramfsFile)
	if err := os.WriteFile(t.Initramfs, ramdisk.data, 0o644); err != nil {
		return err
	}
	vm := VM{Overlay: filepath.Join(done, overlayFile), RAM: filepath.Join(done, ramFile)}
	if err := makeOverlay(ctx, vm.Overlay, t.DiskMB); err != nil {
		return err
	}
	if err := sparse(vm.RAM, int64(t.MemoryMB)<<20); err != nil {
		return err
	}
	r.step(StepBoot, 0, "")
	b, err := s.bootVM(ctx, dir, t, vm)
	if err != nil {
		return err
	}
	defer b.kill()
	err = b.alive(ctx, func(ctx context.Context) error {
		return s.prepare(ctx, b, &m, r)
	})
	if err != nil {
		return err
	}
	r.step(StepStore, 0, "")
	if err := store(ctx, b, state); err != nil {
		return err
	}
	if err := s.finish(ctx, &m, done, vm.RAM, r); err != nil {
		return err
	}
	return s.publish(done, s.path(buildsDir, m.BuildID))
}

// prepare brings a booted guest to where its sandboxes begin.
func (s *Store) prepare(ctx context.Context, b *buildVM, m *manifest, r *reporter) error {
	d := m.Definition
	if err := b.identity(ctx, d.Name, nil); err != nil {
		return err
	}
	if d.Ready != nil {
		r.step(StepBoot, 0.3, "wait until it is ready")
		if err := b.awaitReady(ctx, d); err != nil {
			return err
		}
	}
	r.step(StepBoot, 0.6, "warm up")
	for _, argv := range warmUp {
		// What a template lacks needs no warmth.
		if _, err := b.guest.Run(ctx, guestapi.ExecRequest{Argv: argv, Timeout: warmTime}); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	if err := b.run(ctx, []string{guestapi.ProgramPath, "scrub"}, warmTime, nil); err != nil {
		return fmt.Errorf("clear free memory: %w", err)
	}
	if err := b.guest.Sync(ctx); err != nil {
		return err
	}
	// Again, with all its code and files in memory, and the agent's heap as a
	// sandbox's identity will find it.
	for range 3 {
		if err := b.identity(ctx, d.Name, nil); err != nil {
			return err
		}
	}
	health, err := b.guest.Health(ctx)
	if err != nil {
		return err
	}
	m.OpenConnections = health.Connections
	select {
	case <-time.After(settleTime):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// awaitReady waits for a template's own conditions. A start command that failed
// ends the wait: it would be started again, but not stored that way.
func (b *buildVM) awaitReady(ctx context.Context, d Definition) error {
	limit := time.Duration(d.Ready.TimeoutSeconds) * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w after %s", errNotReady, limit))
	defer cancel()
	for {
		err := b.ready(ctx, d.Ready)
		if err == nil {
			return nil
		}
		if h, e := b.guest.Health(ctx); e == nil && h.Start != nil && !h.Start.Running && h.Start.ExitCode != 0 {
			return fmt.Errorf("%w: the start command ended with exit code %d: %s", errNotReady, h.Start.ExitCode, b.startOutput(ctx))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(readyPoll):
		}
	}
}

func (b *buildVM) ready(ctx context.Context, r *Ready) error {
	ctx, cancel := context.WithTimeout(ctx, readyAttempt)
	defer cancel()
	if r.Port != 0 {
		conn, err := b.lease.Dial(ctx, r.Port)
		if err != nil {
			return fmt.Errorf("port %d: %w", r.Port, err)
		}
		conn.Close()
	}
	if r.Cmd != "" {
		if err := b.run(ctx, []string{"/bin/sh", "-c", r.Cmd}, readyAttempt, nil); err != nil {
			return fmt.Errorf("%q: %w", r.Cmd, err)
		}
	}
	return nil
}

func (b *buildVM) startOutput(ctx context.Context) string {
	res, err := b.guest.Run(ctx, guestapi.ExecRequest{
		Argv: []string{"/usr/bin/tail", "-n", "20", guestapi.StartStdoutPath, guestapi.StartStderrPath},
		Cwd:  "/", Timeout: readyAttempt, OutputLimitBytes: tailBytes,
	})
	if err != nil {
		return ""
	}
	return tail(string(res.Stdout))
}

// store pauses the guest and writes its state. The RAM needs no writing: it is
// the file.
func store(ctx context.Context, b *buildVM, state string) error {
	api := b.process.Client()
	if err := api.Pause(ctx); err != nil {
		return err
	}
	if err := os.Chown(state, b.lease.UID, b.lease.GID); err != nil {
		return err
	}
	if err := api.Snapshot(ctx, vmm.SnapshotConfig{DestinationURL: vmm.FileURL(state)}); err != nil {
		return err
	}
	b.kill()
	return os.Chown(state, os.Geteuid(), os.Getegid())
}

// finish makes the files of a build read-only and durable and writes down what
// they are.
func (s *Store) finish(ctx context.Context, m *manifest, dir, ram string, r *reporter) error {
	f, err := os.OpenFile(ram, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = PunchZeros(f)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("store the RAM: %w", err)
	}
	r.step(StepStore, 0.5, "")
	names := []string{initramfsFile, overlayFile, ramFile}
	entries, err := os.ReadDir(filepath.Join(dir, stateDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		names = append(names, filepath.Join(stateDir, e.Name()))
	}
	m.Files = map[string]fileID{}
	for _, name := range names {
		if m.Files[name], err = s.seal(ctx, filepath.Join(dir, name), name == overlayFile || name == ramFile); err != nil {
			return err
		}
	}
	if err := syncFile(filepath.Join(dir, stateDir)); err != nil {
		return err
	}
	return marshalFile(filepath.Join(dir, manifestFile), m)
}
