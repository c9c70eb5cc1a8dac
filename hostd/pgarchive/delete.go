package pgarchive

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/hostd/bucket"
)

// Delete removes an archive, or all of a database. That nothing is there is no error.
// A fence is left for fenceAge: a writer may live on without anybody's knowing.
func (s *Store) Delete(ctx context.Context, name string) error {
	db, n, of := strings.Cut(name, "/")
	if !databaseName.MatchString(db) || of && !incarnation.MatchString(n) {
		return fmt.Errorf("%w: no archive and no database is named %.80q", ErrInvalid, name)
	}
	names := []string{name}
	var err error
	if !of {
		names, err = s.archivesOf(ctx, db)
	}
	for i := 0; i < len(names) && err == nil; i++ {
		err = s.delete(ctx, names[i])
	}
	if err == nil {
		err = s.forget(ctx)
	}
	if err != nil {
		return fmt.Errorf("delete archive %s: %w", name, err)
	}
	return nil
}

// archivesOf are the names of a database's archives.
func (s *Store) archivesOf(ctx context.Context, db string) ([]string, error) {
	found := map[string]bool{}
	err := s.bucket.Walk(ctx, root+db+"/", func(o bucket.Object) error {
		n, _, _ := strings.Cut(strings.TrimPrefix(o.Key, root+db+"/"), "/")
		if incarnation.MatchString(n) {
			found[db+"/"+n] = true
		}
		return nil
	})
	return slices.Sorted(maps.Keys(found)), err
}

// delete fences an archive, and removes manifests first: what is left of it by a delete
// that was cut off does not look as if it could be restored.
func (s *Store) delete(ctx context.Context, name string) error {
	if err := s.fence(ctx, name); err != nil {
		return err
	}
	// Before anything goes: by it the fence goes in the end.
	key := removedDir + s.now().UTC().Format(dayFormat) + "-" + strings.ReplaceAll(name, "/", "-")
	if err := bucket.Retry(ctx, s.bucket, func() error { return s.bucket.Put(ctx, key, nil) }); err != nil {
		return err
	}
	if err := s.bucket.Sync(removedDir); err != nil {
		return err
	}
	prefix := root + name + "/"
	var dirs, files []string
	if err := s.bucket.Walk(ctx, prefix, func(o bucket.Object) error {
		dir, _, below := strings.Cut(strings.TrimPrefix(o.Key, prefix), "/")
		switch {
		case below:
			dirs = append(dirs, prefix+dir+"/")
		case dir != fenceName:
			files = append(files, o.Key)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := s.bucket.RemoveAll(ctx, prefix+backupsDir); err != nil {
		return err
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if err := s.bucket.RemoveAll(ctx, dir); err != nil {
			return err
		}
	}
	return bucket.RemoveEach(ctx, s.bucket, files)
}

// fenceAge is how long the fence of an archive that was deleted stays: no host is cut
// off for so long and lives on. dayFormat sorts by time.
const (
	fenceAge  = 365 * 24 * time.Hour
	dayFormat = "20060102"
)

// forget removes the fences that are old enough, with what came after them and was
// never acknowledged.
func (s *Store) forget(ctx context.Context) error {
	var old []string
	enough := errors.New("the others are younger")
	end := removedDir + s.now().Add(-fenceAge).UTC().Format(dayFormat)
	err := s.bucket.List(ctx, removedDir, "", func(o bucket.Object) error {
		if o.Key >= end { // they come in the order of their days
			return enough
		}
		old = append(old, o.Key)
		return nil
	})
	if err != nil && !errors.Is(err, enough) {
		return err
	}
	for _, key := range old {
		_, name, _ := strings.Cut(strings.TrimPrefix(key, removedDir), "-")
		if i := strings.LastIndexByte(name, '-'); i >= 0 && databaseName.MatchString(name[:i]) && incarnation.MatchString(name[i+1:]) {
			if err := s.bucket.RemoveAll(ctx, root+name[:i]+"/"+name[i+1:]+"/"); err != nil {
				return err
			}
		}
	}
	return bucket.RemoveEach(ctx, s.bucket, old)
}
