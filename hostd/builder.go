package hostd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/build"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/snapshot"
	"github.com/berth-cloud/berth/netfab/slot"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// appTemplate is the template in whose guests apps run: its size is a setting.
const appTemplate = "app"

// openImages opens the store of templates. lease is where a build's guest gets its
// network.
func openImages(ctx context.Context, cfg Config, engine vmm.Engine, lease func(context.Context, image.Guest) (image.Lease, error), log *slog.Logger) (*image.Store, error) {
	guestd, err := cfg.guestd()
	if err != nil {
		return nil, err
	}
	return image.Open(ctx, image.Config{
		Dir: cfg.TemplateDir, Engine: engine, Kernel: cfg.Kernel, Guestd: guestd, Lease: lease, Logger: log,
		OCIAllow: cfg.OCIAllow, OCIMaxMB: cfg.OCIMaxMB, GuestCAs: cfg.GuestCAs,
		Sizes: map[string]image.Size{appTemplate: {CPU: cfg.AppCPU, MemoryMB: cfg.AppMemoryMB}},
	})
}

// imageRoom refuses what of an image would fill the disk of the templates.
func (d *Daemon) imageRoom(need int64) error {
	return d.makeRoom(func() (missing int64, err error) {
		free, err := freeBytes(d.cfg.TemplateDir)
		if err != nil {
			return 0, err
		}
		room := free - int64(d.cfg.DiskHeadroomMB)<<20
		if missing = need - room; missing > 0 {
			err = fmt.Errorf("%w: the image takes %d MB or more, and there is room for %d", hosterr.ErrNoDisk, need>>20, max(room, 0)>>20)
		}
		return missing, err
	})
}

// guestd finds the agent that goes into templates: beside the running program,
// where every build and package puts it.
func (c Config) guestd() (string, error) {
	if c.Guestd != "" {
		return c.Guestd, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find guestd: %w", err)
	}
	return filepath.Join(filepath.Dir(self), "guestd"), nil
}

// TemplateStore opens a host's templates for a command. Its builds use the one
// slot that the daemon leaves alone, so the daemon may be running. close gives
// the slot back.
func TemplateStore(ctx context.Context, cfg Config, log *slog.Logger) (store *image.Store, closeStore func() error, err error) {
	e, err := vmm.Detect(ctx, cfg.VMM)
	if err != nil {
		return nil, nil, err
	}
	b := &builder{cfg: cfg, log: log}
	if eng, err := newEngine(e); err == nil {
		b.groups = eng.groups
	}
	store, err = openImages(ctx, cfg, e, b.lease, log)
	return store, b.close, err
}

// StoreTemplate stores the files of a build, for a command. A host that has the build
// then finds nearly all of it in the snapshot store.
func StoreTemplate(ctx context.Context, cfg Config, images *image.Store, buildID string) (snapshot.Stats, error) {
	store, err := snapshot.Open(ctx, cfg.SnapshotStore, snapshot.Options{})
	if err != nil {
		return snapshot.Stats{}, fmt.Errorf("BERTH_SNAPSHOT_STORE: %w", err)
	}
	stats, err := build.NewStored(build.StoredConfig{Snapshots: store, Images: images}).Share(ctx, buildID)
	return stats, errors.Join(err, store.Close())
}

// builder gives a command's builds their slot.
type builder struct {
	cfg    Config
	log    *slog.Logger
	groups []int

	mu     sync.Mutex
	fabric *slot.Fabric
	lock   *os.File // of the slot, against other commands
}

func (b *builder) lease(ctx context.Context, _ image.Guest) (image.Lease, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fabric == nil {
		if err := b.open(ctx); err != nil {
			return image.Lease{}, err
		}
	}
	s, err := b.fabric.Ensure(ctx, b.cfg.Slots)
	if err != nil {
		return image.Lease{}, err
	}
	return image.Lease{
		NetNS: s.NetNSPath, UID: s.UID, GID: s.UID, Groups: b.groups,
		Dial: func(ctx context.Context, port int) (net.Conn, error) { return b.fabric.Dial(ctx, s.Number, port) },
		// The slot stays for the next guest of the build; close removes it.
		Release: func() {},
	}, nil
}

func (b *builder) open(ctx context.Context) error {
	lock, err := b.turn(ctx, filepath.Join(b.cfg.RunDir, "build.lock"))
	if err != nil {
		return err
	}
	// The rules are the host's, the daemon's too: they must deny the replicas
	// whichever process writes them.
	peers := b.cfg.Peers
	if len(peers) == 0 {
		if peers, err = loadPeers(b.cfg.PKIDir); err != nil {
			lock.Close()
			return err
		}
	}
	fabric, err := newFabric(ctx, b.cfg, newReplicas(peers, b.log), b.log)
	if err == nil {
		err = errors.Join(openTun(b.log), fabric.EnsureHost(ctx))
	}
	if err != nil {
		lock.Close()
		return err
	}
	b.fabric, b.lock = fabric, lock
	return nil
}

// turn waits until no other hostd builds templates for this host. Whoever is
// done removes the lock and its directory: they are made again for each try.
func (b *builder) turn(ctx context.Context, path string) (*os.File, error) {
	for warned := false; ; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		dir := filepath.Dir(path)
		if err := os.MkdirAll(dir, 0o711); errors.Is(err, fs.ErrExist) && mayBeDir(dir) {
			continue // it was removed between MkdirAll's attempt and its look
		} else if err != nil {
			return nil, err
		}
		lock, err := lockFile(path)
		switch {
		case err == nil && isAt(lock, path):
			return lock, nil
		case err == nil: // it was removed between our open and our lock
			lock.Close()
			continue
		case errors.Is(err, fs.ErrNotExist): // as was its directory
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, err
		}
		if !warned {
			b.log.Warn("another hostd builds a template for this host; waiting until it is done", "lock", path)
			warned = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another hostd builds a template for this host: %w", errors.Join(context.Cause(ctx), err))
		case <-time.After(lockPause):
		}
	}
}

// mayBeDir reports whether a path is a directory or nothing.
func mayBeDir(path string) bool {
	info, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir()
}

// isAt reports whether an open file is the one that its path names now.
func isAt(f *os.File, path string) bool {
	here, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(here, there)
}

const lockPause = 200 * time.Millisecond

// close removes the slot, and the host's rules with it where no other slot is
// left: a host that only built templates leaves nothing.
func (b *builder) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fabric == nil {
		return nil
	}
	defer b.lock.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timescale.Limit(30*time.Second))
	defer cancel()
	err := b.fabric.Remove(ctx, b.cfg.Slots)
	left, listErr := b.fabric.List(ctx)
	if err = errors.Join(err, listErr); err == nil && len(left) == 0 {
		err = errors.Join(b.fabric.Purge(ctx), os.Remove(b.lock.Name()))
		_ = os.Remove(b.cfg.RunDir) // if it is empty
	}
	return errors.Join(err, b.fabric.Close())
}
