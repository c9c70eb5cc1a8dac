package vmm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Files are handed over to an isolated VMM with the request that names them. Each
// time a directory with a random name appears in its view, with the files under
// names that say what they are for. The mounts are made in the VMM's own namespace:
// they end with it, and the host's mount table stays short.
//
// Paths here are the host's, for a VMM that is isolated and for one that is not.

// Create defines a VM.
func (p *Process) Create(ctx context.Context, cfg VMConfig) error {
	if !p.isolated {
		return p.client.Create(ctx, cfg)
	}
	raw, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("vm.create: %w", err)
	}
	edit, err := ParseConfig(raw)
	if err != nil {
		return fmt.Errorf("vm.create: %w", err)
	}
	h := p.newHandover()
	defer h.close()
	if err := h.config(edit); err != nil {
		return fmt.Errorf("vm.create: %w", err)
	}
	if err := h.deliver(); err != nil {
		return fmt.Errorf("vm.create: %w", err)
	}
	return p.client.call(ctx, http.MethodPut, "vm.create", edit.doc, nil)
}

// Restore makes a VM from a snapshot in a directory, whose files may be links.
// When it fails there is no VM.
func (p *Process) Restore(ctx context.Context, cfg RestoreConfig) error {
	dir, ok := strings.CutPrefix(cfg.SourceURL, FileURL(""))
	if !p.isolated || !ok {
		return p.client.Restore(ctx, cfg)
	}
	h := p.newHandover()
	defer h.close()
	if err := h.snapshot(dir); err != nil {
		return fmt.Errorf("vm.restore: %w", err)
	}
	if err := h.deliver(); err != nil {
		return fmt.Errorf("vm.restore: %w", err)
	}
	cfg.SourceURL = FileURL(h.dir)
	return p.client.Restore(ctx, cfg)
}

// AddDisk adds a disk.
func (p *Process) AddDisk(ctx context.Context, disk DiskConfig) (dev PCIDevice, err error) {
	if !p.isolated {
		return p.client.AddDisk(ctx, disk)
	}
	h := p.newHandover()
	defer h.close()
	defer func() {
		if _, refused := errors.AsType[*Error](err); refused {
			err = errors.Join(err, h.takeBack()) // after another error it may still be added
		}
	}()
	if disk.Path, err = h.file(disk.Path, "disk", !disk.ReadOnly); err == nil {
		err = h.deliver()
	}
	if err != nil {
		return PCIDevice{}, fmt.Errorf("vm.add-disk: %w", err)
	}
	return p.client.AddDisk(ctx, disk)
}

// Snapshot saves the VM into a directory that its user may write to. It is in
// the VMM's view while it is written.
func (p *Process) Snapshot(ctx context.Context, dir string) error {
	if !p.isolated {
		return p.client.Snapshot(ctx, SnapshotConfig{DestinationURL: FileURL(dir)})
	}
	h := p.newHandover()
	defer h.close()
	in, err := h.file(dir, "state", true)
	if err == nil {
		err = h.deliver()
	}
	if err != nil {
		return fmt.Errorf("vm.snapshot: %w", err)
	}
	err = p.client.Snapshot(ctx, SnapshotConfig{DestinationURL: FileURL(in)})
	if e := h.takeBack(); e != nil {
		err = errors.Join(err, fmt.Errorf("vm.snapshot: %w", e))
	}
	return err
}

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// handover is the files that a VMM gets with one request.
type handover struct {
	p      *Process
	dir    string // in the view
	mounts mounts
	text   map[string][]byte // files that are written there, by name
}

func (p *Process) newHandover() *handover {
	random := make([]byte, 8)
	rand.Read(random) // never fails: crypto/rand ends the process first
	return &handover{p: p, dir: filepath.Join(viewHanded, hex.EncodeToString(random)), text: map[string][]byte{}}
}

func (h *handover) close() { h.mounts.close() }

// file hands over a file or a directory of the host, and returns its path in the
// view.
func (h *handover) file(host, name string, write bool) (string, error) {
	if rest, ok := strings.CutPrefix(host, h.p.dir+"/"); ok {
		return filepath.Join(viewRun, rest), nil
	}
	attrs := uint64(mountRead)
	if write {
		attrs = mountWrite
	}
	at := filepath.Join(h.dir, name)
	return at, h.mounts.add(host, at, attrs)
}

// config hands over the files that a configuration names, and puts their paths in
// the view in it.
func (h *handover) config(e *ConfigEdit) error {
	return e.eachFile(func(path, name string, write bool) (string, error) { return h.file(path, name, write) })
}

// snapshot hands over the files of a snapshot.
func (h *handover) snapshot(dir string) error {
	if strings.HasPrefix(dir, h.p.dir+"/") {
		return fmt.Errorf("%s is the VMM's own, which may have changed it", dir)
	}
	edit, err := OpenConfig(filepath.Join(dir, FileConfig))
	if err != nil {
		return err
	}
	if err := h.config(edit); err != nil {
		return err
	}
	if h.text[FileConfig], err = edit.Bytes(); err != nil {
		return err
	}
	for _, name := range []string{FileState, FileMemory} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) && name == FileMemory {
			continue // RAM was a shared file
		}
		if _, err := h.file(path, name, false); err != nil {
			return err
		}
	}
	return nil
}

// deliver attaches all of it in the VMM's view, or nothing.
func (h *handover) deliver() error {
	err := h.attach()
	if err != nil {
		err = errors.Join(err, h.takeBack())
	}
	return err
}

func (h *handover) attach() error {
	return h.p.inView(func() error {
		if err := os.Mkdir(h.dir, 0o755); err != nil {
			return err
		}
		for name, raw := range h.text {
			if err := os.WriteFile(filepath.Join(h.dir, name), raw, 0o644); err != nil {
				return err
			}
		}
		return h.mounts.attach()
	})
}

// takeBack removes all of it from the VMM's view, names included: a view has room for
// a thousand, and some VMMs are saved more often. What is open there stays so.
func (h *handover) takeBack() error {
	err := h.p.inView(func() error {
		var errs []error
		// Never what is below a name: where an unmount failed, that is the host's.
		remove := func(path string) {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		for _, m := range h.mounts {
			// EINVAL: it was not mounted yet.
			if err := unix.Unmount(m.at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", m.at, err))
				continue
			}
			remove(m.at)
		}
		for name := range h.text {
			remove(filepath.Join(h.dir, name))
		}
		remove(h.dir)
		return errors.Join(errs...)
	})
	if err == nil || h.p.ended() {
		return nil
	}
	return fmt.Errorf("take back what it was handed: %w", err)
}

// inView runs a function on a thread whose root is the VMM's. A VMM that its guest
// took over may have entered a namespace that it made; there, too, the function
// reaches only what the VMM could see.
func (p *Process) inView(f func() error) error {
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		rc, err := p.pidfd.SyscallConn()
		if err != nil {
			return err
		}
		var serr error
		if err := rc.Control(func(fd uintptr) { serr = unix.Setns(int(fd), unix.CLONE_NEWNS) }); err != nil {
			return err
		}
		if serr != nil {
			return serr
		}
		unix.Umask(0o022)
		return f()
	})
	if err != nil {
		return fmt.Errorf("in the view of VMM %d: %w", p.rec.PID, err)
	}
	return nil
}

// isIsolated says whether a process has a mount namespace of its own.
func isIsolated(pid int) (bool, error) {
	var ours, theirs unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &ours); err != nil {
		return false, err
	}
	if err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/ns/mnt", &theirs); err != nil {
		return false, err
	}
	return ours.Ino != theirs.Ino, nil
}
