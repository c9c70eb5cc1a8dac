// Package capture has the saved states of boxes: captures, on this host (Local) and
// in the snapshot store (Stored), what a saved state is on disk, and the overlays
// that are cloned ahead of need.
package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/background"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Remote is where captures are found that were made on another host.
type Remote interface {
	// Fetch fills dir, which is empty, with the files of a stored capture, and
	// sees to it that the build it was made from is here. It has verified all of
	// them when it returns nil, and that digest, unless it is empty, is their
	// manifest's; hosterr.ErrNoSnapshot, hosterr.ErrBadSnapshot.
	Fetch(ctx context.Context, id, digest, dir string) error
}

// Config is what Local works with.
type Config struct {
	Dir    string // of the captures
	Engine string // noted with each: a state is restored by the engine that saved it
	// Snapshot writes a box's disk, and its memory where it is asked for, into a
	// directory that it makes, and returns how long the box stood still for it.
	Snapshot func(ctx context.Context, dir string, spec *hostapi.CaptureSpec) (ledger.Record, time.Duration, error)
	// Detach makes a saved state one that several VMs at once can be restored from.
	Detach func(dir string) error
	// Remote may be nil: there is no snapshot store.
	Remote Remote
	// Ready reports whether what is here is known.
	Ready func() bool
	// Changed is told that the captures are not what they were.
	Changed func()
	// Took is told how long a capture took.
	Took func(took time.Duration, err error)
	Log  *slog.Logger
	Now  func() time.Time
}

// Local are the complete captures of this host, and those that are being made or
// fetched. A capture appears under its name on disk as a whole, so what is found
// there at the start is complete; everything else goes.
type Local struct {
	cfg      Config
	evicting sync.Mutex // held while captures are evicted to make room; taken before the others
	work     *background.Group

	mu   sync.Mutex
	byID map[string]*capture
}

// capture is one of them. done is closed when it is complete, or failed.
type capture struct {
	id   string
	done chan struct{}
	err  error

	marking sync.Mutex // held while the manifest is written anew; taken before Local.mu

	info    hostapi.Capture
	users   int           // creates, uploads: its files stay
	deleted bool          // as soon as it has no users
	evicted chan struct{} // closed when that is over, where it is evicted to make room
	used    time.Time     // when a box was last made of it, or it was made
	stored  time.Time     // when it was last put into the store; zero of one that came from there
}

// NewLocal returns a host's captures. None is known before Recover.
func NewLocal(cfg Config) *Local {
	return &Local{cfg: cfg, byID: map[string]*capture{}, work: background.New()}
}

// Close waits for the captures that are being made, and ends the fetches.
func (l *Local) Close() { l.work.Close(background.ErrClosing) }

func (l *Local) path(id string) string { return filepath.Join(l.cfg.Dir, id) }

// tmp is the directory of a capture that is being made or fetched.
func (l *Local) tmp(id string) string { return l.path(".tmp-" + id) }

// begin returns the capture of an id, and whether the caller is the first to ask
// for it, and has to make it.
func (l *Local) begin(id string) (c *capture, first bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.byID[id]; c != nil {
		if c.deleted {
			return nil, false, fmt.Errorf("%w: capture %s is being deleted", hosterr.ErrInUse, id)
		}
		return c, false, nil
	}
	c = &capture{id: id, done: make(chan struct{})}
	l.byID[id] = c
	return c, true, nil
}

// end says how the making of a capture went.
func (l *Local) end(c *capture, info hostapi.Capture, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.info, c.err = info, err
	if err != nil {
		delete(l.byID, c.id)
	}
	close(c.done)
}

// complete returns a capture that can be used, or nil. The caller holds mu.
func (l *Local) complete(id string) *capture {
	c := l.byID[id]
	if c == nil || c.deleted {
		return nil
	}
	select {
	case <-c.done:
		return c
	default:
		return nil
	}
}

func (l *Local) pin(id string) *capture {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.complete(id)
	if c != nil {
		c.users++
	}
	return c
}

// unpin reports whether the caller is to remove the capture.
func (l *Local) unpin(c *capture) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.users--
	return c.deleted && c.users == 0
}

// List returns every complete capture, ordered by id.
func (l *Local) List() []hostapi.Capture {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []hostapi.Capture{}
	for id := range l.byID {
		if c := l.complete(id); c != nil {
			out = append(out, c.info)
		}
	}
	slices.SortFunc(out, func(a, b hostapi.Capture) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Get returns one capture, or hosterr.ErrNoSnapshot.
func (l *Local) Get(id string) (hostapi.Capture, error) {
	if !l.cfg.Ready() {
		return hostapi.Capture{}, hosterr.ErrDraining
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.complete(id); c != nil {
		return c.info, nil
	}
	return hostapi.Capture{}, hosterr.ErrNoSnapshot
}

// Delete removes a capture, once it is complete; one that is gone is no
// error. Boxes that were started from it live on, and those that are being
// started get what they need of it.
func (l *Local) Delete(ctx context.Context, id string) error {
	if !ValidID(id) {
		return hosterr.Invalid("capture: not an id")
	}
	if !l.cfg.Ready() {
		return hosterr.ErrDraining
	}
	for {
		// A capture whose eviction fails is still here, and is deleted below.
		if again, err := l.awaitEviction(ctx, id); err != nil {
			return err
		} else if !again {
			break
		}
	}
	l.mu.Lock()
	c := l.byID[id]
	l.mu.Unlock()
	if c == nil {
		return nil
	}
	if err := wait(ctx, c.done); err != nil {
		return err
	}
	l.mu.Lock()
	idle := l.byID[id] == c && !c.deleted && c.users == 0
	if l.byID[id] == c {
		c.deleted = true
	}
	l.mu.Unlock()
	l.cfg.Changed()
	if idle {
		return l.drop(c)
	}
	return nil
}

// releaseUse ends one use of a capture.
func (l *Local) releaseUse(c *capture) {
	if l.unpin(c) {
		if err := l.drop(c); err != nil {
			l.cfg.Log.Error("a deleted capture is still there", "capture_id", c.id, "error", err)
		}
	}
}

// drop removes the files of a capture that nobody uses, and forgets it.
func (l *Local) drop(c *capture) error {
	// The name goes first and at once: a crash must not leave half of it.
	gone := l.path(".gone-" + c.id)
	err := os.Rename(l.path(c.id), gone)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = os.RemoveAll(gone)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		c.deleted, c.evicted = false, nil // it can be asked for again
		return fmt.Errorf("remove capture %s: %w", c.id, err)
	}
	delete(l.byID, c.id)
	return nil
}

// Open returns a complete capture and the directory of its files, which
// stay, also when it is deleted, until release is called.
func (l *Local) Open(id string) (info hostapi.Capture, dir string, release func(), err error) {
	if !l.cfg.Ready() {
		return info, "", nil, hosterr.ErrDraining
	}
	c := l.pin(id)
	if c == nil {
		return info, "", nil, hosterr.ErrNoSnapshot
	}
	info, dir, release = l.held(c)
	return info, dir, release, nil
}

// held is what whoever pinned a capture needs of it.
func (l *Local) held(c *capture) (info hostapi.Capture, dir string, release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.info, l.path(c.id), sync.OnceFunc(func() { l.releaseUse(c) })
}

// MarkStored notes on disk whether a capture is in the snapshot store.
func (l *Local) MarkStored(id string, stored bool) error {
	c := l.pin(id)
	if c == nil {
		return hosterr.ErrNoSnapshot
	}
	defer l.releaseUse(c)
	c.marking.Lock()
	defer c.marking.Unlock()
	l.mu.Lock()
	same := c.info.Stored == stored
	c.stored = l.cfg.Now()
	l.mu.Unlock()
	if same {
		return nil
	}
	m, err := readManifest(filepath.Join(l.path(id), fileManifest))
	if err != nil {
		return err
	}
	m.Stored = stored
	if err := writeManifest(l.path(id), m, true); err != nil {
		return err
	}
	l.mu.Lock()
	c.info.Stored = stored
	l.mu.Unlock()
	l.cfg.Changed()
	return nil
}

// Recover takes over what an earlier daemon captured, and removes what
// it had not completed, or what did not survive a reboot.
func (l *Local) Recover() error {
	entries, err := os.ReadDir(l.cfg.Dir)
	if err != nil {
		return fmt.Errorf("list captures: %w", err)
	}
	boot := bootID()
	for _, e := range entries {
		path := l.path(e.Name())
		m, err := readManifest(filepath.Join(path, fileManifest))
		switch {
		case !ValidID(e.Name()):
			err = errors.New("it was not complete")
		case err == nil && m.ID != e.Name():
			err = fmt.Errorf("it says that it is %s", m.ID)
		case err == nil && m.TransientBoot != "" && m.TransientBoot != boot:
			err = errors.New("it was not meant to survive a reboot")
		}
		if err != nil {
			l.cfg.Log.Warn("capture is removed", "capture_id", e.Name(), "error", err)
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove half a capture: %w", err)
			}
			continue
		}
		if err := OpenToVMMs(path); err != nil {
			return fmt.Errorf("take over a capture: %w", err)
		}
		c, _, err := l.begin(m.ID)
		if err != nil {
			return err
		}
		c.used, c.stored = m.CreatedAt, l.cfg.Now()
		l.end(c, m.Capture, nil)
	}
	return nil
}

// Files of a capture, beside those of a saved state.
const (
	FileOverlay  = "overlay.img"
	fileManifest = "capture.json"
)

// manifest is capture.json.
type manifest struct {
	Format int `json:"format"`
	hostapi.Capture
	// TransientBoot is the host's boot that a capture does not outlive, of which
	// nothing was flushed.
	TransientBoot string `json:"transient_boot,omitempty"`
	// Identity is that of a box that leaves its host, of which this is all.
	Identity *Identity `json:"identity,omitempty"`
}

const manifestFormat = 1

func readManifest(path string) (manifest, error) {
	var m manifest
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err == nil && m.Format != manifestFormat {
		err = fmt.Errorf("format %d", m.Format)
	}
	if err != nil {
		return m, fmt.Errorf("%w: %s: %w", hosterr.ErrBadSnapshot, path, err)
	}
	return m, nil
}

// writeManifest puts capture.json into a directory, at once or not at all.
func writeManifest(dir string, m manifest, sync bool) error {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	write := atomicfile.Swap
	if sync {
		write = atomicfile.Write
	}
	if err := write(filepath.Join(dir, fileManifest), append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}

// bootID names the host's boot, empty where that cannot be told.
func bootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

const maxID = 64

// ValidID guards the names of captures' directories.
func ValidID(id string) bool {
	if id == "" || len(id) > maxID || id[0] == '-' {
		return false
	}
	for i := range len(id) {
		if c := id[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
