package pgarchive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
)

// mendWAL puts a file in the place of one that is damaged, of which its writer still
// has the bytes. What was there is kept aside.
func (a *Archive) mendWAL(ctx context.Context, f pgapi.WALFile, r io.Reader, damage error) (int64, error) {
	if errors.Is(damage, ErrOtherFormat) {
		return 0, damage
	}
	if err := a.proveKey(ctx, f.Name); err != nil {
		return 0, errors.Join(damage, err)
	}
	object := walDir + f.Name
	raw, err := a.sealWAL(object, f, r)
	if err != nil {
		return 0, err
	}
	b, key, aside := a.store.bucket, a.prefix()+object, a.prefix()+asideDir+f.Name
	if err := bucket.Retry(ctx, b, func() error { return b.Copy(ctx, key, aside) }); err != nil {
		return 0, fmt.Errorf("keep what is damaged aside: %w", err)
	}
	if err := b.Sync(a.prefix() + asideDir); err != nil {
		return 0, err
	}
	if err := bucket.Retry(ctx, b, func() error { return b.Put(ctx, key, raw) }); err != nil {
		return 0, err
	}
	return int64(len(raw)), b.Sync(a.prefix() + walDir)
}

// proofs is how many objects a key is tried on.
const proofs = 8

var errOtherKey = errors.New("nothing else in the archive opens either, so the key may be wrong")

// proveKey tells an object that is damaged from a key that is wrong, with which all
// objects look damaged: another one opens, or there is no other.
func (a *Archive) proveKey(ctx context.Context, damaged string) error {
	tried, decided := 0, errors.New("no more is needed")
	dir := a.prefix() + walDir
	err := a.store.bucket.List(ctx, dir, "", func(o bucket.Object) error {
		name := strings.TrimPrefix(o.Key, dir)
		if _, err := pgapi.ParseWALName(name); err != nil || name == damaged {
			return nil
		}
		if tried == proofs {
			return decided
		}
		tried++
		switch _, err := a.walHeader(ctx, walDir+name); {
		case err == nil:
			tried = 0
			return decided
		case errors.Is(err, ErrDamaged), errors.Is(err, bucket.ErrNotFound):
			return nil
		default:
			return err
		}
	})
	if err != nil && !errors.Is(err, decided) {
		return err
	}
	if tried > 0 {
		return errOtherKey
	}
	return nil
}
