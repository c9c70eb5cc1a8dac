package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/nodecert"
)

// An exchange of the CA has three steps, each a change of the files of one replica's directory,
// which are then copied to the others:
//
//  1. AddAuthority: FileCACert has a second certificate, and FileCAKey a second key. Everybody
//     accepts certificates of both, and the first one signs.
//  2. UseAuthority: the second one signs.
//  3. RemoveAuthority: the first one is gone.
//
// A crash between the two files leaves what the step, done again, completes.

// Authority is one of a replica's authorities.
type Authority struct {
	ID       string // nodecert.CAID
	Signs    bool
	NotAfter time.Time
	Key      bool // its key is there
}

// Errors of the steps.
var (
	ErrUnknownAuthority = errors.New("there is no such CA")
	ErrSigns            = errors.New("this CA signs")
)

// files is what a replica's directory says of authorities.
type files struct {
	dir  string
	cas  []*x509.Certificate
	keys []*ecdsa.PrivateKey // the first one signs
	own  bool                // and its certificates alone are renewed
	root []byte
}

func readFiles(dir string) (*files, error) {
	raw, err := readAll(dir, FileCACert, FileCAKey)
	if err != nil {
		return nil, err
	}
	f := &files{dir: dir}
	if _, err = parseKeyring(raw[0], raw[1]); err == nil {
		f.cas, err = nodecert.ParseCAs(raw[0])
	}
	if err == nil {
		f.own = onlyOwn(raw[1])
		f.keys, f.root, err = parseKeys(raw[1])
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return f, nil
}

// Authorities lists the authorities of a replica's directory.
func Authorities(dir string) ([]Authority, error) {
	f, err := readFiles(dir)
	if err != nil {
		return nil, err
	}
	var out []Authority
	for _, ca := range f.cas {
		i := f.key(nodecert.CAID(ca))
		out = append(out, Authority{ID: nodecert.CAID(ca), Signs: i == 0, NotAfter: ca.NotAfter, Key: i >= 0})
	}
	return out, nil
}

// AddAuthority adds another authority, which counts and does not sign yet. If there is one
// already, added is false. One that has signed before has to be removed first.
func AddAuthority(dir string, now time.Time) (id string, added bool, err error) {
	f, err := readFiles(dir)
	if err != nil {
		return "", false, err
	}
	signs := certOf(f.cas, f.keys[0])
	for _, ca := range f.cas {
		switch {
		case ca == signs:
		case !ca.NotBefore.After(signs.NotBefore):
			return "", false, fmt.Errorf("CA %s is still there from before: the exchange ends with its removal", nodecert.CAID(ca))
		case f.key(nodecert.CAID(ca)) < 0:
			return "", false, fmt.Errorf("CA %s is in %s without its key: copy both files from where it was made, or remove it", nodecert.CAID(ca), FileCACert)
		default:
			return nodecert.CAID(ca), false, nil
		}
	}
	// Always another key: one that is there without a certificate may be of a CA of long ago,
	// which was removed because somebody had seen it.
	f.dropOrphans()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", false, fmt.Errorf("generate CA key: %w", err)
	}
	f.keys = append(f.keys, key)
	if err := f.saveKeys(); err != nil { // first: a key without a certificate does nothing
		return "", false, err
	}
	if first := signs.NotBefore.Add(clockSkew + time.Second); now.Before(first) {
		now = first // which of two is the newer one shows in their dates
	}
	ca, err := selfSigned(key, now)
	if err != nil {
		return "", false, err
	}
	f.cas = append(f.cas, ca)
	return nodecert.CAID(ca), true, f.saveCAs()
}

// UseAuthority lets an authority sign. If it does already, changed is false.
func UseAuthority(dir, id string) (changed bool, err error) { return useAuthority(dir, id, false) }

// UseAuthorityAlone is UseAuthority after a theft of the key of the one before: certificates of
// others count until they are removed, and are not renewed, because the thief may have made them.
func UseAuthorityAlone(dir, id string) (changed bool, err error) { return useAuthority(dir, id, true) }

func useAuthority(dir, id string, own bool) (changed bool, err error) {
	f, err := readFiles(dir)
	if err != nil {
		return false, err
	}
	i := f.key(id)
	switch {
	case f.cert(id) == nil:
		return false, fmt.Errorf("%w: %q", ErrUnknownAuthority, id)
	case i < 0:
		return false, fmt.Errorf("%s lacks the key of CA %s", filepath.Join(dir, FileCAKey), id)
	case i == 0 && f.own == own:
		return false, nil
	}
	f.own = own
	key := f.keys[i]
	f.keys = append([]*ecdsa.PrivateKey{key}, slices.Delete(f.keys, i, i+1)...)
	return true, f.saveKeys()
}

// RemoveAuthority removes an authority that does not sign: its certificates count no more. With
// it go the keys of those whose certificates are gone already. If there is nothing of it all,
// changed is false.
func RemoveAuthority(dir, id string) (changed bool, err error) {
	f, err := readFiles(dir)
	if err != nil {
		return false, err
	}
	if f.key(id) == 0 {
		return false, fmt.Errorf("%w, %s: let another one sign first", ErrSigns, id)
	}
	// The key first: without it nothing takes the authority up again.
	changed = f.dropOrphans()
	if i := f.key(id); i > 0 {
		f.keys, changed = slices.Delete(f.keys, i, i+1), true
	}
	if changed {
		if err := f.saveKeys(); err != nil {
			return false, err
		}
	}
	if ca := f.cert(id); ca != nil {
		f.cas, changed = slices.DeleteFunc(f.cas, ca.Equal), true
		return changed, f.saveCAs()
	}
	return changed, nil
}

func (f *files) cert(id string) *x509.Certificate {
	if i := slices.Index(nodecert.IDs(f.cas), id); i >= 0 {
		return f.cas[i]
	}
	return nil
}

// key returns the place of an authority's key; -1: it is not there.
func (f *files) key(id string) int {
	ca := f.cert(id)
	return slices.IndexFunc(f.keys, func(k *ecdsa.PrivateKey) bool { return ca != nil && k.PublicKey.Equal(ca.PublicKey) })
}

// dropOrphans drops the keys without a certificate, and reports whether there were any. The
// first key has one.
func (f *files) dropOrphans() bool {
	all := len(f.keys)
	f.keys = slices.DeleteFunc(f.keys, func(k *ecdsa.PrivateKey) bool { return certOf(f.cas, k) == nil })
	return len(f.keys) < all
}

func (f *files) saveKeys() error {
	raw, err := encodeKeys(f.keys, f.root, f.own)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(f.dir, FileCAKey), raw)
}

func (f *files) saveCAs() error {
	return replaceFile(filepath.Join(f.dir, FileCACert), nodecert.EncodeCAs(f.cas))
}

func replaceFile(path string, data []byte) error {
	return ReplaceFile(path, func(next string, mode os.FileMode) error { return atomicfile.Write(next, data, mode) })
}

// ReplaceFile replaces a file of a replica's directory by one that write makes, beside it, by
// package atomicfile. It keeps its owner, who is the replica's user: root changes it. What a
// kill has left of an attempt before, which may be a key, it removes.
func ReplaceFile(path string, write func(next string, mode os.FileMode) error) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	next := path + ".next"
	if err := removeLeft(next); err != nil {
		return err
	}
	if err := write(next, info.Mode().Perm()); err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := os.Chown(next, int(owner.Uid), int(owner.Gid)); err != nil {
			return errors.Join(err, os.Remove(next))
		}
	}
	if err := os.Rename(next, path); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return atomicfile.Sync(filepath.Dir(path))
}

// removeLeft removes a file, and what atomicfile was to make it of.
func removeLeft(path string) error {
	dir, name := filepath.Split(path)
	all, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return err
	}
	for _, f := range all {
		if f.Name() == name || strings.HasPrefix(f.Name(), "."+name+"-") {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
