package pgsni

import (
	"bytes"
	"crypto/subtle"
	"encoding/binary"
	"io"
	"sync"
)

// CancelKey is what a client shows to cancel its query: 4 bytes of secret until
// protocol 3.0, up to 256 from 3.2 (manual, BackendKeyData).
type CancelKey struct {
	PID    uint32
	Secret []byte
}

// target is what a client's key stands for.
type target struct {
	secret  []byte // the client's
	backend Backend
	real    CancelKey // the server's
}

// keys maps the keys that clients were given to those of their servers. Servers
// of different databases may have given out the same key, and a plaintext cancel
// request names no database: so each client gets a key of the router's own, both
// halves random, and a guess has to hit 63 bits.
type keys struct {
	random io.Reader

	mu    sync.Mutex
	byPID map[uint32]target
}

func newKeys(random io.Reader) *keys { return &keys{random: random, byPID: map[uint32]target{}} }

// issue makes a client's key for a server's, of the same length.
func (k *keys) issue(b Backend, real CancelKey) (CancelKey, error) {
	mine := CancelKey{Secret: make([]byte, len(real.Secret))}
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		var pid [4]byte
		if _, err := io.ReadFull(k.random, pid[:]); err != nil {
			return CancelKey{}, err
		}
		// Clients show it as a process id: positive in a signed integer.
		mine.PID = binary.BigEndian.Uint32(pid[:]) & 0x7fffffff
		if _, taken := k.byPID[mine.PID]; !taken && mine.PID != 0 {
			break
		}
	}
	if _, err := io.ReadFull(k.random, mine.Secret); err != nil {
		return CancelKey{}, err
	}
	k.byPID[mine.PID] = target{secret: mine.Secret, backend: b, real: CancelKey{real.PID, bytes.Clone(real.Secret)}}
	return mine, nil
}

// revoke forgets a key.
func (k *keys) revoke(pid uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byPID, pid)
}

// find is what a key that a client shows stands for.
func (k *keys) find(shown CancelKey) (target, bool) {
	k.mu.Lock()
	t, ok := k.byPID[shown.PID]
	k.mu.Unlock()
	return t, ok && subtle.ConstantTimeCompare(t.secret, shown.Secret) == 1
}

func (k *keys) size() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.byPID)
}
