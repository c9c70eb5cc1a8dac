// Package wal is the way of WAL between PostgreSQL and the host, which fetches what
// is to be archived and brings what is to be replayed: a guest calls nobody.
package wal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/timescale"
)

// Errors of an archive.
var (
	ErrStopping   = errors.New("PostgreSQL is being stopped")
	ErrNotStored  = errors.New("the host has not stored it")
	ErrNotOffered = errors.New("no such WAL file waits")
	ErrOtherBytes = errors.New("the file has other bytes")
)

// offerLimit is how long archive_command waits before it fails, and is called again.
var offerLimit = timescale.Limit(5 * time.Minute)

// Slow is after how long without an answer an archive usually counts as failing.
var Slow = timescale.Limit(30 * time.Second)

// remembered is how many stored files are known by their bytes, so that the answer to
// a call that was lost can be given again.
const remembered = 64

// Archive offers WAL to the host and lets PostgreSQL go on when it is stored.
type Archive struct {
	data string        // PostgreSQL's data directory
	slow time.Duration // without an answer it counts as failing

	mu       sync.Mutex
	closed   bool // nothing is offered: a restore is not done
	stopping bool
	offers   []*offer // oldest first
	stored   map[string]string
	others   map[string]bool // files that are another database's to archive
	order    []string        // of stored
	last     string
	lastAt   time.Time
	changed  chan struct{} // closed at the next change
}

type offer struct {
	file  pgapi.WALFile
	path  string
	since time.Time
	done  chan struct{} // closed once it is stored
}

// NewArchive returns the archive of a data directory, which counts as failing when a
// file has waited for longer than slow.
func NewArchive(data string, slow time.Duration) *Archive {
	return &Archive{data: data, slow: slow, stored: map[string]string{}, changed: make(chan struct{})}
}

// Hold says whether files are kept back: until a restore has succeeded, nothing that
// it writes may be archived.
func (a *Archive) Hold(hold bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = hold
	if hold {
		a.offers, a.stored, a.order, a.others, a.last, a.lastAt = nil, map[string]string{}, nil, nil, "", time.Time{}
	}
	a.notify()
}

// Adopt begins the archive of a new database on the data of another one, of which the
// disk is a copy: what that one has yet to archive is let go, for no base backup of the
// new one will ask for it, and the histories of all timelines are archived anew, for
// each of them will.
func (a *Archive) Adopt() error {
	pending, err := a.Pending()
	if err != nil {
		return err
	}
	a.letGo(pending)
	dir := filepath.Join(a.data, "pg_wal", "archive_status")
	done, err := filepath.Glob(filepath.Join(dir, "*.history.done"))
	if err != nil {
		return err
	}
	for _, path := range done {
		if err := os.Rename(path, strings.TrimSuffix(path, ".done")+".ready"); err != nil {
			return err
		}
	}
	return atomicfile.Sync(dir)
}

// letGo has PostgreSQL take files for archived. A guestpg that comes after this one
// does not know of it, and they are archived then: they are the same bytes, and in the
// way of nothing.
func (a *Archive) letGo(files []Pending) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.others = map[string]bool{}
	for _, f := range files {
		if w, err := pgapi.ParseWALName(f.Name); err == nil && w.Kind != pgapi.WALHistory {
			a.others[f.Name] = true
		}
	}
	kept := a.offers[:0]
	for _, o := range a.offers {
		if a.others[o.file.Name] {
			close(o.done)
		} else {
			kept = append(kept, o)
		}
	}
	a.offers = kept
	a.notify()
}

// Stopping ends what waits in Offer: a server that stops waits for it.
func (a *Archive) Stopping(stopping bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopping = stopping
	a.notify()
}

// Offer holds a file of pg_wal ready until the host has stored it.
func (a *Archive) Offer(ctx context.Context, name string) error {
	if _, err := pgapi.ParseWALName(name); err != nil {
		return err
	}
	path := filepath.Join(a.data, "pg_wal", name)
	file, err := describe(path, name)
	if err != nil {
		return err
	}
	a.mu.Lock()
	if a.stored[name] == file.SHA256 || a.others[name] { // PostgreSQL did not hear of it
		a.mu.Unlock()
		return nil
	}
	o := a.enter(&offer{file: file, path: path, since: time.Now(), done: make(chan struct{})})
	a.mu.Unlock()
	limit := time.NewTimer(offerLimit)
	defer limit.Stop()
	for {
		a.mu.Lock()
		stopping, changed := a.stopping, a.changed
		a.mu.Unlock()
		select {
		case <-o.done:
			return nil
		default:
		}
		if stopping {
			return ErrStopping
		}
		select {
		case <-o.done:
			return nil
		case <-changed:
		case <-limit.C:
			return ErrNotStored
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// enter adds an offer, or returns the same one that is there. One whose command ended
// stays: PostgreSQL will ask again, and the host may have it meanwhile.
func (a *Archive) enter(o *offer) *offer {
	for i, there := range a.offers {
		if there.file.Name != o.file.Name {
			continue
		}
		if there.file.SHA256 == o.file.SHA256 {
			return there
		}
		a.offers = append(a.offers[:i], a.offers[i+1:]...) // another file of that name, after a restore
		break
	}
	a.offers = append(a.offers, o)
	a.notify()
	return o
}

// Next returns the oldest file that waits, and waits for one for a while.
func (a *Archive) Next(ctx context.Context) (pgapi.WALFile, bool) {
	for {
		a.mu.Lock()
		changed := a.changed
		if len(a.offers) > 0 && !a.closed {
			file := a.offers[0].file
			a.mu.Unlock()
			return file, true
		}
		a.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return pgapi.WALFile{}, false
		}
	}
}

// Open opens a file that is offered.
func (a *Archive) Open(name string) (io.ReadCloser, pgapi.WALFile, error) {
	o := a.find(name)
	if o == nil {
		return nil, pgapi.WALFile{}, ErrNotOffered
	}
	f, err := openRegular(o.path)
	return f, o.file, err
}

func (a *Archive) find(name string) *offer {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.offers {
		if o.file.Name == name && !a.closed {
			return o
		}
	}
	return nil
}

// Stored says that the host has a file with these bytes.
func (a *Archive) Stored(name, sha string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, o := range a.offers {
		if o.file.Name != name || a.closed {
			continue
		}
		if o.file.SHA256 != sha {
			return ErrOtherBytes
		}
		a.offers = append(a.offers[:i], a.offers[i+1:]...)
		a.remember(name, sha)
		a.last, a.lastAt = name, time.Now()
		close(o.done)
		a.notify()
		return nil
	}
	switch a.stored[name] {
	case "":
		return ErrNotOffered
	case sha:
		return nil
	}
	return ErrOtherBytes
}

func (a *Archive) remember(name, sha string) {
	a.stored[name] = sha
	a.order = append(a.order, name)
	if len(a.order) > remembered {
		delete(a.stored, a.order[0])
		a.order = a.order[1:]
	}
}

func (a *Archive) notify() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// Status says how far the archive is.
func (a *Archive) Status() pgapi.ArchiveStatus {
	st := pgapi.ArchiveStatus{}
	ready, err := a.Pending()
	if err != nil {
		st.Error = err.Error()
	}
	for _, p := range ready {
		st.Pending++
		st.PendingBytes += p.Size
		if st.OldestPending.IsZero() || p.Since.Before(st.OldestPending) {
			st.OldestPending = p.Since
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	st.LastArchived, st.LastArchivedAt = a.last, a.lastAt
	if len(a.offers) > 0 && time.Since(a.offers[0].since) > a.slow {
		st.FailingSince = a.offers[0].since
		st.Error = fmt.Sprintf("the host has not stored %s", a.offers[0].file.Name)
	}
	return st
}

// Pending is a file that PostgreSQL wants archived.
type Pending struct {
	Name  string
	Size  int64
	Since time.Time
}

// Pending lists what PostgreSQL wants archived, whether it is offered yet or not.
func (a *Archive) Pending() ([]Pending, error) {
	entries, err := os.ReadDir(filepath.Join(a.data, "pg_wal", "archive_status"))
	if err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, err
	}
	var out []Pending
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".ready")
		if !ok {
			continue
		}
		// Either may be gone between two looks.
		st, err := os.Lstat(filepath.Join(a.data, "pg_wal", name))
		if err != nil {
			continue
		}
		out = append(out, Pending{Name: name, Size: st.Size(), Since: st.ModTime()})
	}
	return out, nil
}

// describe reads a file whole.
func describe(path, name string) (pgapi.WALFile, error) {
	f, err := openRegular(path)
	if err != nil {
		return pgapi.WALFile{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return pgapi.WALFile{}, err
	}
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, pgapi.SegmentBytes+1))
	if err != nil {
		return pgapi.WALFile{}, err
	}
	if n > pgapi.SegmentBytes {
		return pgapi.WALFile{}, fmt.Errorf("%s is larger than a WAL segment", name)
	}
	if w, err := pgapi.ParseWALName(name); err == nil && w.Kind == pgapi.WALSegment && n != pgapi.SegmentBytes {
		return pgapi.WALFile{}, fmt.Errorf("%s has %d bytes: want %d", name, n, pgapi.SegmentBytes)
	}
	return pgapi.WALFile{Name: name, Size: n, SHA256: hex.EncodeToString(h.Sum(nil)), WrittenAt: st.ModTime().UTC()}, nil
}
