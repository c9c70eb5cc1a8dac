// Package seal encrypts secrets before they enter the replicated log, with a
// key that is not in it.
//
// A sealed value is XChaCha20-Poly1305 under one key of a keyring, and names
// that key. Its context (for example "sandboxes/<id>/env") is authenticated
// with it: a value moved to another row or field does not open.
package seal

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

// Sealer is what the users of secrets need.
type Sealer interface {
	Seal(plaintext, context []byte) ([]byte, error)
	Open(sealed, context []byte) ([]byte, error)
}

var (
	// ErrUnknownKey means that the keyring lacks the key the value was sealed
	// with: this replica has an old or a foreign key file.
	ErrUnknownKey = errors.New("sealed with a key that is not in the keyring")

	// ErrCorrupt means that the value is damaged, was sealed in another
	// context, or is not a sealed value at all.
	ErrCorrupt = errors.New("sealed value does not open")
)

// A sealed value is a version byte, the key's id (4 bytes, big endian), the
// nonce (24 bytes) and the ciphertext with its tag (16 bytes). Version and id
// are authenticated too.
const (
	version    = 1
	headerSize = 1 + 4
	overhead   = headerSize + chacha20poly1305.NonceSizeX + chacha20poly1305.Overhead
)

// KeyID names a key within a keyring.
type KeyID uint32

func (id KeyID) String() string { return fmt.Sprintf("%08x", uint32(id)) }

// key is one key of a keyring.
type key struct {
	id     KeyID
	secret []byte
	aead   cipher.AEAD
}

func newKey(id KeyID, secret []byte) (key, error) {
	aead, err := chacha20poly1305.NewX(secret)
	if err != nil {
		return key{}, fmt.Errorf("key %s: %w", id, err)
	}
	return key{id, secret, aead}, nil
}

// Seal encrypts under the primary key. The nonce is random; 24 bytes of it do
// not repeat.
func (k *Keyring) Seal(plaintext, context []byte) ([]byte, error) {
	primary := k.primary()
	out := make([]byte, headerSize+chacha20poly1305.NonceSizeX, overhead+len(plaintext))
	out[0] = version
	binary.BigEndian.PutUint32(out[1:], uint32(primary.id))
	nonce := out[headerSize:]
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return primary.aead.Seal(out, nonce, plaintext, associated(out[:headerSize], context)), nil
}

// Open decrypts what Seal made in the same context, with whichever key of the
// keyring it names.
func (k *Keyring) Open(sealed, context []byte) ([]byte, error) {
	id, err := KeyOf(sealed)
	if err != nil {
		return nil, err
	}
	with, ok := k.key(id)
	if !ok {
		return nil, fmt.Errorf("open: key %s: %w", id, ErrUnknownKey)
	}
	nonce := sealed[headerSize : headerSize+chacha20poly1305.NonceSizeX]
	body := sealed[headerSize+chacha20poly1305.NonceSizeX:]
	plaintext, err := with.aead.Open(nil, nonce, body, associated(sealed[:headerSize], context))
	if err != nil {
		return nil, fmt.Errorf("open: %w", ErrCorrupt)
	}
	return plaintext, nil
}

// KeyOf tells which key a value was sealed with, so that values under old keys
// can be found and sealed again.
func KeyOf(sealed []byte) (KeyID, error) {
	switch {
	case len(sealed) < overhead:
		return 0, fmt.Errorf("open: %d bytes, at least %d expected: %w", len(sealed), overhead, ErrCorrupt)
	case sealed[0] != version:
		return 0, fmt.Errorf("open: unknown format version %d: %w", sealed[0], ErrCorrupt)
	}
	return KeyID(binary.BigEndian.Uint32(sealed[1:])), nil
}

// associated is what is authenticated beside the ciphertext. The header has a
// fixed size, so that no two pairs give the same bytes.
func associated(header, context []byte) []byte {
	return append(append(make([]byte, 0, len(header)+len(context)), header...), context...)
}
