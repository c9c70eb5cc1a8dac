package certs

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Store is the control store.
type Store interface {
	View() *raftstore.Snapshot
	Update(ctx context.Context, fn func(tx *raftstore.Tx) error) error
}

// Sealer encrypts values for the store. A sealed value can be opened only with the context
// that it was sealed with.
type Sealer interface {
	Seal(plaintext, context []byte) ([]byte, error)
	Open(sealed, context []byte) ([]byte, error)
}

// rows is certmagic's storage in the control store. Every replica reads it, but only the
// leader writes, so locks within this process are enough.
type rows struct {
	store  Store
	sealer Sealer
	clock  func() time.Time

	mu    sync.Mutex
	locks map[string]chan struct{} // closed on unlock
}

var _ certmagic.Storage = (*rows)(nil)

func (r *rows) row(key string) (*record.CertFile, error) {
	row, ok := raftstore.Get(r.store.View(), record.CertFiles, key)
	if !ok {
		return nil, fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	return row, nil
}

// Store implements certmagic.Storage.
func (r *rows) Store(ctx context.Context, key string, value []byte) error {
	sealed, err := r.sealer.Seal(value, record.CertFileContext(key))
	if err != nil {
		return err
	}
	return r.store.Update(ctx, func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.CertFiles, &record.CertFile{Meta: record.Meta{ID: key}, ValueSealed: sealed, ModifiedAt: r.clock().UTC()})
		return nil
	})
}

// Load implements certmagic.Storage.
func (r *rows) Load(_ context.Context, key string) ([]byte, error) {
	row, err := r.row(key)
	if err != nil {
		return nil, err
	}
	return r.open(row)
}

func (r *rows) open(row *record.CertFile) ([]byte, error) {
	return r.sealer.Open(row.ValueSealed, record.CertFileContext(row.ID))
}

// Delete implements certmagic.Storage. It also deletes everything below the path key.
func (r *rows) Delete(ctx context.Context, key string) error {
	return r.store.Update(ctx, func(tx *raftstore.Tx) error {
		for _, row := range raftstore.All(tx, record.CertFiles) {
			if row.ID == key || strings.HasPrefix(row.ID, key+"/") {
				raftstore.Delete(tx, record.CertFiles, row.ID)
			}
		}
		return nil
	})
}

// Exists implements certmagic.Storage.
func (r *rows) Exists(ctx context.Context, key string) bool {
	_, err := r.Stat(ctx, key)
	return err == nil
}

// List implements certmagic.Storage.
func (r *rows) List(_ context.Context, path string, recursive bool) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	for _, row := range raftstore.All(r.store.View(), record.CertFiles) {
		rest, ok := strings.CutPrefix(row.ID, path+"/")
		if path == "" {
			rest, ok = row.ID, true
		}
		if !ok {
			continue
		}
		key := row.ID
		if name, _, below := strings.Cut(rest, "/"); below && !recursive {
			key = strings.TrimPrefix(path+"/"+name, "/")
		}
		if !seen[key] {
			seen[key] = true
			out = append(out, key)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return out, nil
}

// Stat implements certmagic.Storage.
func (r *rows) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	row, err := r.row(key)
	if err == nil {
		value, err := r.open(row)
		return certmagic.KeyInfo{Key: key, Modified: row.ModifiedAt, Size: int64(len(value)), IsTerminal: true}, err
	}
	if _, lerr := r.List(ctx, key, true); lerr == nil {
		return certmagic.KeyInfo{Key: key}, nil
	}
	return certmagic.KeyInfo{}, err
}

// Lock implements certmagic.Storage.
func (r *rows) Lock(ctx context.Context, name string) error {
	for {
		r.mu.Lock()
		held := r.locks[name]
		if held == nil {
			r.locks[name] = make(chan struct{})
			r.mu.Unlock()
			return nil
		}
		r.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Unlock implements certmagic.Storage.
func (r *rows) Unlock(_ context.Context, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.locks[name]
	if held == nil {
		return fmt.Errorf("%s is not locked", name)
	}
	close(held)
	delete(r.locks, name)
	return nil
}
