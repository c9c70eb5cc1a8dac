package seal

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/berth-cloud/berth/atomicfile"
)

// Keyring is some keys, one of which, the primary, seals. Every replica has
// the same. To rotate: put a keyring with the new key on every replica, then
// one where it is the primary (a key that is sealed with before all have it
// makes values that some cannot open), seal the old values again, and remove
// the old key.
type Keyring struct {
	mu   sync.RWMutex
	keys []key // in the order they were added
	main KeyID
}

// New makes a keyring with one new key.
func New() (*Keyring, error) {
	k := &Keyring{}
	id, err := k.Add()
	if err != nil {
		return nil, err
	}
	return k, k.SetPrimary(id)
}

// Add makes a new key that opens and does not seal yet.
func (k *Keyring) Add() (KeyID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var b [4 + chacha20poly1305.KeySize]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("make key: %w", err)
		}
		id := KeyID(binary.BigEndian.Uint32(b[:4]))
		if _, taken := k.find(id); taken || id == 0 {
			continue
		}
		added, err := newKey(id, bytes.Clone(b[4:]))
		if err != nil {
			return 0, err
		}
		k.keys = append(k.keys, added)
		return id, nil
	}
}

// Rotate adds a key and makes it the primary at once: for a single replica, or
// for a keyring that is put on all of them while they are stopped.
func (k *Keyring) Rotate() (KeyID, error) {
	id, err := k.Add()
	if err != nil {
		return 0, err
	}
	return id, k.SetPrimary(id)
}

// SetPrimary makes a key of the keyring the one that seals.
func (k *Keyring) SetPrimary(id KeyID) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.find(id); !ok {
		return fmt.Errorf("make key %s the primary: %w", id, ErrUnknownKey)
	}
	k.main = id
	return nil
}

// Remove drops a key: what is still sealed with it will never open again. The
// primary cannot be removed.
func (k *Keyring) Remove(id KeyID) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if id == k.main {
		return fmt.Errorf("remove key %s: it is the primary", id)
	}
	i, ok := k.find(id)
	if !ok {
		return fmt.Errorf("remove key %s: %w", id, ErrUnknownKey)
	}
	k.keys = slices.Delete(k.keys, i, i+1)
	return nil
}

// Primary is the key that seals.
func (k *Keyring) Primary() KeyID {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.main
}

// Keys lists the keys, oldest first.
func (k *Keyring) Keys() []KeyID {
	k.mu.RLock()
	defer k.mu.RUnlock()
	ids := make([]KeyID, len(k.keys))
	for i := range k.keys {
		ids[i] = k.keys[i].id
	}
	return ids
}

func (k *Keyring) primary() key {
	k.mu.RLock()
	defer k.mu.RUnlock()
	i, _ := k.find(k.main) // it is there: see SetPrimary and Remove
	return k.keys[i]
}

func (k *Keyring) key(id KeyID) (key, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	i, ok := k.find(id)
	if !ok {
		return key{}, false
	}
	return k.keys[i], true
}

func (k *Keyring) find(id KeyID) (int, bool) {
	i := slices.IndexFunc(k.keys, func(x key) bool { return x.id == id })
	return i, i >= 0
}

// file is a keyring on disk.
type file struct {
	Format  int       `json:"format"`
	Primary string    `json:"primary"`
	Keys    []fileKey `json:"keys"`
}

type fileKey struct {
	ID     string `json:"id"`
	Secret []byte `json:"secret"` // base64
}

const fileFormat = 1

// Load reads a keyring file. One that others may read is refused.
func Load(path string) (*Keyring, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load keyring: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("load keyring: %w", err)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return nil, fmt.Errorf("load keyring: %s has mode %04o and may be read by others; chmod 600 it", path, perm)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("load keyring: %w", err)
	}
	k, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("load keyring %s: %w", path, err)
	}
	return k, nil
}

// Reload makes a keyring what its file says now, and tells whether that is something
// else. A file that cannot be read or understood changes nothing.
func (k *Keyring) Reload(path string) (changed bool, err error) {
	now, err := Load(path)
	if err != nil {
		return false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	same := k.main == now.main && slices.EqualFunc(k.keys, now.keys, func(a, b key) bool {
		return a.id == b.id && bytes.Equal(a.secret, b.secret)
	})
	k.keys, k.main = now.keys, now.main
	return !same, nil
}

const maxFile = 1 << 20 // bytes; thousands of keys

func parse(b []byte) (*Keyring, error) {
	var in file
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, errors.New("more than one JSON value")
	}
	if in.Format != fileFormat {
		return nil, fmt.Errorf("unknown format %d", in.Format)
	}
	k := &Keyring{}
	for _, fk := range in.Keys {
		id, err := ParseKeyID(fk.ID)
		if err != nil {
			return nil, err
		}
		if _, twice := k.find(id); twice {
			return nil, fmt.Errorf("key %s twice", id)
		}
		one, err := newKey(id, fk.Secret)
		if err != nil {
			return nil, err
		}
		k.keys = append(k.keys, one)
	}
	id, err := ParseKeyID(in.Primary)
	if err != nil {
		return nil, fmt.Errorf("primary: %w", err)
	}
	return k, k.SetPrimary(id)
}

// ParseKeyID reads an id as String writes it.
func ParseKeyID(s string) (KeyID, error) {
	var id uint32
	if n, err := fmt.Sscanf(s, "%08x", &id); err != nil || n != 1 || KeyID(id).String() != s || id == 0 {
		return 0, fmt.Errorf("bad key id %q: want 8 hex digits, as controlplane seal-key ls shows them", s)
	}
	return KeyID(id), nil
}

// Save writes a keyring file, readable by its owner alone. A crash leaves the
// old file or the new one.
func (k *Keyring) Save(path string) error {
	k.mu.RLock()
	out := file{Format: fileFormat, Primary: k.main.String()}
	for _, key := range k.keys {
		out.Keys = append(out.Keys, fileKey{key.id.String(), key.secret})
	}
	k.mu.RUnlock()
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return fmt.Errorf("save keyring: %w", err)
	}
	if err := atomicfile.Write(path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("save keyring: %w", err)
	}
	return nil
}
