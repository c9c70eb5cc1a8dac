package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// warmUp are commands that a guest runs before it is stored, so that the code of
// guestd, of a shell and of a sandbox's first programs is in the stored RAM and need
// not be read from a disk.
var warmUp = [][]string{
	{"/bin/sh", "-c", "true"},
	{"/bin/sh", "-c", "uname -a; id; ls / /tmp; cat /etc/os-release; command -v bash && bash -c true"},
	{"/bin/sh", "-c", "command -v python3 && python3 -c pass"},
}

const (
	readyPoll = 100 * time.Millisecond
	// settleTime lets the guest finish work after its last answer: closing
	// connections, freeing memory, writing back. Otherwise every sandbox would
	// repeat it.
	settleTime = time.Second
)

var dialAttempt = timescale.Limit(5 * time.Second)

// readyAttempt limits one check. A template may use its command to load its
// programs' code into memory, which takes a while under emulation.
var readyAttempt = timescale.Limit(2 * time.Minute)

var warmTime = timescale.Limit(time.Minute)

// buildState boots a build's guest once, stores it, and returns the build's id.
func (s *Store) buildState(ctx context.Context, m manifest, ramdisk ramdisk, r *reporter) (string, error) {
	dir, remove, err := s.workDir(ctx)
	if err != nil {
		return "", err
	}
	defer remove()
	done := filepath.Join(dir, "build")
	if err := s.buildStateInto(ctx, dir, done, &m, ramdisk, r); err != nil {
		return "", err
	}
	return m.BuildID, s.publishBuild(ctx, done, m.BuildID)
}

// publishBuild moves a finished build to its place. It replaces a damaged one.
func (s *Store) publishBuild(ctx context.Context, done, id string) error {
	unlock, err := s.lock(ctx, "build-"+id)
	if err != nil {
		return err
	}
	defer unlock()
	return s.publish(done, s.path(buildsDir, id))
}

func (s *Store) buildStateInto(ctx context.Context, dir, done string, m *manifest, ramdisk ramdisk, r *reporter) error {
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
		return s.prepare(ctx, b, m, r)
	})
	if err != nil {
		return err
	}
	r.step(StepStore, 0, "")
	if err := store(ctx, b, state); err != nil {
		return err
	}
	return s.finish(ctx, m, done, vm.RAM, r)
}

// prepare brings a booted guest to the state in which its sandboxes start.
func (s *Store) prepare(ctx context.Context, b *buildVM, m *manifest, r *reporter) error {
	d := m.Definition
	if err := b.identity(ctx, d.Name, nil); err != nil {
		return err
	}
	if d.Ready != nil {
		r.step(StepBoot, 0.3, "wait until it is ready")
		if err := b.awaitReady(ctx, d, r); err != nil {
			return err
		}
	}
	r.step(StepBoot, 0.6, "warm up")
	if err := b.warmUp(ctx); err != nil {
		return err
	}
	if err := b.run(ctx, []string{guestapi.ProgramPath, "scrub"}, warmTime, nil); err != nil {
		return fmt.Errorf("clear free memory: %w", err)
	}
	if err := b.guest.Sync(ctx); err != nil {
		return err
	}
	health, err := b.guest.Health(ctx)
	if err != nil {
		return err
	}
	if err := b.startFailed(ctx, health); err != nil {
		return err
	}
	m.OpenConnections = health.Connections
	if err := b.freeze(ctx); err != nil {
		return err
	}
	return pause(ctx, settleTime)
}

// warmUp runs the commands that warm up a guest. They are the template's own
// programs, which may print without end, so their output is discarded.
func (b *buildVM) warmUp(ctx context.Context) error {
	for _, argv := range warmUp {
		// The exit code does not matter: the template may not have the program.
		if _, err := b.guest.Exec(ctx, guestapi.ExecRequest{Argv: argv, Timeout: warmTime}, guestclient.Streams{}); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// awaitReady waits for a template's conditions. It ends if the start command fails:
// it would be restarted, but must not be stored that way. A start command that
// succeeded may have left a daemon.
func (b *buildVM) awaitReady(ctx context.Context, d Definition, r *reporter) error {
	limit := timescale.Limit(time.Duration(d.Ready.TimeoutSeconds) * time.Second)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w after %s", errNotReady, limit))
	defer cancel()
	told := ""
	for {
		err := b.ready(ctx, d.Ready)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			r.output(StepBoot, 0.3, told)
		}
		if h, e := b.guest.Health(ctx); e == nil {
			if err := b.startFailed(ctx, h); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return b.notReady(context.Cause(ctx), err)
		case <-time.After(readyPoll):
		}
	}
}

// notReady returns what was awaited, and the end of the start command's output.
func (b *buildVM) notReady(cause, last error) error {
	ctx, cancel := context.WithTimeout(context.Background(), dialAttempt)
	defer cancel()
	if out := b.startOutput(ctx); out != "" {
		return fmt.Errorf("%w: %w; the start command's output ends: %s", cause, last, out)
	}
	return fmt.Errorf("%w: %w", cause, last)
}

// startFailed returns an error if the start command failed, even if it has been
// restarted since.
func (b *buildVM) startFailed(ctx context.Context, h guestapi.Health) error {
	if h.Start == nil || h.Start.ExitCode == 0 && h.Start.Restarts == 0 {
		return nil
	}
	return fmt.Errorf("%w: the start command ended with exit code %d: %s", errNotReady, h.Start.ExitCode, b.startOutput(ctx))
}

func (b *buildVM) ready(ctx context.Context, r *Ready) error {
	if r.Port != 0 {
		dctx, cancel := context.WithTimeout(ctx, dialAttempt)
		defer cancel()
		conn, err := b.lease.Dial(dctx, r.Port)
		if errors.Is(err, syscall.ECONNREFUSED) { // it may listen on loopback alone
			conn, err = b.guest.Connect(dctx, r.Port)
		}
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

// startOutput returns the end of the start command's output, on both streams.
func (b *buildVM) startOutput(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, dialAttempt)
	defer cancel()
	var out strings.Builder
	lines := 0
	err := b.guest.Logs(ctx, guestclient.LogQuery{Tail: startLines}, func(l guestapi.LogLine) error {
		if lines++; lines > startLines {
			return errManyLines
		}
		out.WriteString(l.Line + "\n")
		return nil
	})
	if err != nil {
		return ""
	}
	return tail(out.String())
}

// startLines is how many lines of the start command's output are reported.
const startLines = 20

// errManyLines ends a log that has more lines than requested.
var errManyLines = errors.New("more lines than were asked for")

// store pauses the guest and writes its state. The RAM is in its file already.
func store(ctx context.Context, b *buildVM, state string) error {
	if err := b.process.Client().Pause(ctx); err != nil {
		return err
	}
	if err := os.Chown(state, b.lease.UID, b.lease.GID); err != nil {
		return err
	}
	if err := b.process.Snapshot(ctx, state); err != nil {
		return err
	}
	b.kill()
	return vmm.Reclaim(state, vmm.FileConfig, vmm.FileState)
}

// finish makes the files of a build read-only and durable, and writes the manifest,
// which names the build.
func (s *Store) finish(ctx context.Context, m *manifest, dir, ram string, r *reporter) error {
	f, err := os.OpenFile(ram, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = punchZeros(f)
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
	if err := atomicfile.Sync(filepath.Join(dir, stateDir)); err != nil {
		return err
	}
	if m.BuildID, err = m.contentID(); err != nil {
		return err
	}
	return marshalFile(filepath.Join(dir, manifestFile), m)
}
