package pki

import (
	"crypto/ecdsa"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/nodecert"
)

// The blocks of FileCAKey. The first private key signs; others are of authorities that do not
// sign yet, or no longer. What secrets are derived from follows them once there was a second
// key, so that these secrets outlive the first; before, it is made of the first key.
const (
	blockKey  = "PRIVATE KEY"
	blockRoot = "BERTH SECRET"

	// The header of the first key by which replicas renew certificates of its CA alone.
	headerRenews = "Berth-Renews"
	renewsOwn    = "own"
)

// parseKeys reads FileCAKey.
func parseKeys(raw []byte) (keys []*ecdsa.PrivateKey, root []byte, err error) {
	blocks, err := nodecert.Blocks(raw)
	if err != nil {
		return nil, nil, err
	}
	for i, b := range blocks {
		switch {
		case b.Type == blockRoot && root == nil && len(b.Bytes) == sha256.Size:
			root = b.Bytes
		case b.Type == blockKey:
			parsed, err := x509.ParsePKCS8PrivateKey(b.Bytes)
			if err != nil {
				return nil, nil, err
			}
			key, ok := parsed.(*ecdsa.PrivateKey)
			if !ok {
				return nil, nil, fmt.Errorf("it is a %T, want an ECDSA key", parsed)
			}
			keys = append(keys, key)
		default:
			return nil, nil, fmt.Errorf("PEM block %d, of type %q, does not belong there", i+1, b.Type)
		}
	}
	if len(keys) == 0 {
		return nil, nil, errors.New("no PEM block with a key")
	}
	if root == nil {
		if root, err = rootOf(keys[0]); err != nil {
			return nil, nil, err
		}
	}
	return keys, root, nil
}

// onlyOwn reports whether FileCAKey says that certificates of the CA that signs are renewed, and
// of no other.
func onlyOwn(raw []byte) bool {
	blocks, err := nodecert.Blocks(raw)
	return err == nil && len(blocks) > 0 && blocks[0].Headers[headerRenews] == renewsOwn
}

// rootOf returns what secrets are derived from: a key cannot be had from it.
func rootOf(key *ecdsa.PrivateKey) ([]byte, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return hkdf.Extract(sha256.New, raw, nil)
}

// encodeKeys writes what parseKeys and onlyOwn read.
func encodeKeys(keys []*ecdsa.PrivateKey, root []byte, own bool) ([]byte, error) {
	var out []byte
	for i, key := range keys {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, fmt.Errorf("encode private key: %w", err)
		}
		block := &pem.Block{Type: blockKey, Bytes: der}
		if own && i == 0 {
			block.Headers = map[string]string{headerRenews: renewsOwn}
		}
		out = append(out, pem.EncodeToMemory(block)...)
	}
	return append(out, pem.EncodeToMemory(&pem.Block{Type: blockRoot, Bytes: root})...), nil
}
