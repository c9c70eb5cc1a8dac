package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// captures are the complete captures, and those that are being made or fetched.
// A capture appears under its name on disk as a whole, so what is found there at
// the start is complete; everything else goes.
type captures struct {
	mu   sync.Mutex
	byID map[string]*capture
}

// capture is one of them. done is closed when it is complete, or failed.
type capture struct {
	id   string
	done chan struct{}
	err  error

	marking sync.Mutex // held while the manifest is written anew; taken before captures.mu

	info    hostapi.Capture
	users   int           // creates, uploads: its files stay
	deleted bool          // as soon as it has no users
	gone    chan struct{} // closed when that is over, where it is given up for room
	used    time.Time     // when a box was last made of it, or it was made
	stored  time.Time     // when it was last put into the store; zero of one that came from there
}

func newCaptures() *captures { return &captures{byID: map[string]*capture{}} }

// begin returns the capture of an id, and whether it is the caller's to make.
func (cs *captures) begin(id string) (c *capture, mine bool, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.byID[id]; c != nil {
		if c.deleted {
			return nil, false, fmt.Errorf("%w: capture %s is being deleted", hosterr.ErrInUse, id)
		}
		return c, false, nil
	}
	c = &capture{id: id, done: make(chan struct{})}
	cs.byID[id] = c
	return c, true, nil
}

// end says how the making of a capture went.
func (cs *captures) end(c *capture, info hostapi.Capture, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.info, c.err = info, err
	if err != nil {
		delete(cs.byID, c.id)
	}
	close(c.done)
}

// complete returns a capture that can be used, or nil. The caller holds mu.
func (cs *captures) complete(id string) *capture {
	c := cs.byID[id]
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

func (cs *captures) pin(id string) *capture {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.complete(id)
	if c != nil {
		c.users++
	}
	return c
}

// unpin reports whether the caller is to remove the capture.
func (cs *captures) unpin(c *capture) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.users--
	return c.deleted && c.users == 0
}

// Captures returns every complete capture, ordered by id.
func (h *Host) Captures() []hostapi.Capture {
	h.captures.mu.Lock()
	defer h.captures.mu.Unlock()
	out := []hostapi.Capture{}
	for id := range h.captures.byID {
		if c := h.captures.complete(id); c != nil {
			out = append(out, c.info)
		}
	}
	slices.SortFunc(out, func(a, b hostapi.Capture) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// GetCapture returns one capture, or hosterr.ErrNoSnapshot.
func (h *Host) GetCapture(id string) (hostapi.Capture, error) {
	if !h.Ready() {
		return hostapi.Capture{}, hosterr.ErrDraining
	}
	h.captures.mu.Lock()
	defer h.captures.mu.Unlock()
	if c := h.captures.complete(id); c != nil {
		return c.info, nil
	}
	return hostapi.Capture{}, hosterr.ErrNoSnapshot
}

// DeleteCapture removes a capture, once it is complete; one that is gone is no
// error. Boxes that were started from it live on, and those that are being
// started get what they need of it.
func (h *Host) DeleteCapture(ctx context.Context, id string) error {
	if !validCaptureID(id) {
		return hosterr.Invalid("capture: not an id")
	}
	if !h.Ready() {
		return hosterr.ErrDraining
	}
	h.captures.mu.Lock()
	c := h.captures.byID[id]
	h.captures.mu.Unlock()
	if c == nil {
		return nil
	}
	if err := wait(ctx, c.done); err != nil {
		return err
	}
	h.captures.mu.Lock()
	mine := h.captures.byID[id] == c && !c.deleted && c.users == 0
	if h.captures.byID[id] == c {
		c.deleted = true
	}
	h.captures.mu.Unlock()
	h.notify()
	if mine {
		return h.dropCapture(c)
	}
	return nil
}

// letGo ends one use of a capture.
func (h *Host) letGo(c *capture) {
	if h.captures.unpin(c) {
		if err := h.dropCapture(c); err != nil {
			h.log.Error("a deleted capture is still there", "capture_id", c.id, "error", err)
		}
	}
}

// dropCapture removes the files of a capture that nobody uses, and forgets it.
func (h *Host) dropCapture(c *capture) error {
	// The name goes first and at once: a crash must not leave half of it.
	gone := filepath.Join(h.paths.Captures(), ".gone-"+c.id)
	err := os.Rename(h.paths.Capture(c.id), gone)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = os.RemoveAll(gone)
	}
	h.captures.mu.Lock()
	defer h.captures.mu.Unlock()
	if err != nil {
		c.deleted, c.gone = false, nil // it can be asked for again
		return fmt.Errorf("remove capture %s: %w", c.id, err)
	}
	delete(h.captures.byID, c.id)
	return nil
}

// OpenCapture returns a complete capture and the directory of its files, which
// stay, also when it is deleted, until release is called.
func (h *Host) OpenCapture(id string) (info hostapi.Capture, dir string, release func(), err error) {
	if !h.Ready() {
		return info, "", nil, hosterr.ErrDraining
	}
	c := h.captures.pin(id)
	if c == nil {
		return info, "", nil, hosterr.ErrNoSnapshot
	}
	return c.info, h.paths.Capture(id), sync.OnceFunc(func() { h.letGo(c) }), nil
}

// MarkStored notes on disk whether a capture is in the snapshot store.
func (h *Host) MarkStored(id string, stored bool) error {
	c := h.captures.pin(id)
	if c == nil {
		return hosterr.ErrNoSnapshot
	}
	defer h.letGo(c)
	c.marking.Lock()
	defer c.marking.Unlock()
	h.captures.mu.Lock()
	same := c.info.Stored == stored
	c.stored = h.now()
	h.captures.mu.Unlock()
	if same {
		return nil
	}
	m, err := readManifest(h.captureFile(id, fileManifest))
	if err != nil {
		return err
	}
	m.Stored = stored
	if err := writeManifest(h.paths.Capture(id), m, true); err != nil {
		return err
	}
	h.captures.mu.Lock()
	c.info.Stored = stored
	h.captures.mu.Unlock()
	h.notify()
	return nil
}

// RecoverCaptures takes over what an earlier daemon captured, and removes what
// it had not completed, or what did not survive a reboot.
func (h *Host) RecoverCaptures() error {
	entries, err := os.ReadDir(h.paths.Captures())
	if err != nil {
		return fmt.Errorf("list captures: %w", err)
	}
	boot := bootID()
	for _, e := range entries {
		path := filepath.Join(h.paths.Captures(), e.Name())
		m, err := readManifest(filepath.Join(path, fileManifest))
		switch {
		case !validCaptureID(e.Name()):
			err = errors.New("it was not complete")
		case err == nil && m.ID != e.Name():
			err = fmt.Errorf("it says that it is %s", m.ID)
		case err == nil && m.TransientBoot != "" && m.TransientBoot != boot:
			err = errors.New("it was not meant to survive a reboot")
		}
		if err != nil {
			h.log.Warn("capture is removed", "capture_id", e.Name(), "error", err)
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove half a capture: %w", err)
			}
			continue
		}
		if err := openToVMMs(path); err != nil {
			return fmt.Errorf("take over a capture: %w", err)
		}
		c, _, err := h.captures.begin(m.ID)
		if err != nil {
			return err
		}
		c.used, c.stored = m.CreatedAt, h.now()
		h.captures.end(c, m.Capture, nil)
	}
	return nil
}

// Files of a capture, beside those of a saved state.
const (
	fileOverlay  = "overlay.img"
	fileManifest = "capture.json"
)

func (h *Host) captureFile(id, name string) string { return filepath.Join(h.paths.Capture(id), name) }

// manifest is capture.json.
type manifest struct {
	Format int `json:"format"`
	hostapi.Capture
	// TransientBoot is the host's boot that a capture does not outlive, of which
	// nothing was flushed.
	TransientBoot string `json:"transient_boot,omitempty"`
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
