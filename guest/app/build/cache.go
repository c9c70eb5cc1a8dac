package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/app/command"
)

// Caches of a build are given to the next one, which may be in another guest, as a tar
// whose names are paths from the root. The tenant's own user packs and unpacks it: what
// is in it may be anything.

const (
	// cacheTime bounds the unpacking of caches. Without them a build is only slower.
	cacheTime = 2 * time.Minute
	// maxCacheFiles bounds the files of one cache; one that has more begins anew.
	maxCacheFiles = 200_000
)

// projectCaches are where tools keep caches in a project.
var projectCaches = []string{"node_modules/.cache", ".next/cache"}

// inProject are the caches that are in the source's tree, where they can be put only when
// the packages are installed: npm ci deletes node_modules.
func (b *builder) inProject() (dirs []string) {
	for _, root := range slices.Compact([]string{b.made.Dir, b.WorkDir}) {
		for _, name := range projectCaches {
			dirs = append(dirs, filepath.Join(root, name))
		}
	}
	return dirs
}

// restore unpacks those of the last build's caches that are one of some directories. That
// there are none, or that they cannot be used, is no failure.
func (b *builder) restore(ctx context.Context, dirs ...string) error {
	if b.LastCache == "" {
		return nil
	}
	if _, err := os.Lstat(b.LastCache); err != nil {
		return nil // there is none
	}
	ctx, cancel := context.WithTimeout(ctx, cacheTime)
	defer cancel()
	members, err := membersOf(ctx, b.LastCache, dirs)
	if err == nil && len(members) > 0 {
		argv := append([]string{"tar", "-xf", b.LastCache, "-C", "/", "--no-same-owner", "--"}, members...)
		err = b.tar(ctx, argv)
	}
	if err == nil {
		return nil
	}
	b.say("The caches of the last build cannot be used: %v", err)
	b.forgetCache()
	// A half of a cache may be worse than none. Go's modules cannot be written to.
	line := `for dir; do chmod -R u+w "$dir"; rm -rf "$dir"; done 2>/dev/null`
	var there []string
	for _, dir := range dirs {
		if dir == b.Cache { // which is not the tenant's to delete
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				there = append(there, filepath.Join(dir, e.Name()))
			}
		} else {
			there = append(there, dir)
		}
	}
	ending, stop := context.WithTimeout(context.WithoutCancel(ctx), cacheTime)
	defer stop()
	argv := append([]string{"/bin/sh", "-c", line, "sh"}, there...)
	_, err = b.Runner.Run(ending, command.Command{Argv: argv, Dir: "/", Env: []map[string]string{b.base()}}, io.Discard, io.Discard)
	return err
}

// forgetCache deletes the last build's caches, once they have served.
func (b *builder) forgetCache() {
	if b.LastCache != "" {
		_ = os.Remove(b.LastCache) // it is only room
	}
}

func (b *builder) tar(ctx context.Context, argv []string) error {
	ended, err := b.Runner.Run(ctx, command.Command{Argv: argv, Dir: "/", Env: []map[string]string{b.base()}}, io.Discard, io.Discard)
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return errors.New("it takes too long")
	case !ended.OK():
		return fmt.Errorf("tar %s", ended)
	}
	return nil
}

// membersOf reads a tar to its end, and returns the names in it of those directories that
// it has.
func membersOf(ctx context.Context, file string, dirs []string) (members []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	has := map[string]bool{}
	for archive, files := tar.NewReader(f), 0; ; files++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			for _, dir := range dirs {
				if has[nameOf(dir)] {
					members = append(members, nameOf(dir))
				}
			}
			return members, nil
		case err != nil:
			return nil, errors.New("the archive is damaged")
		case ctx.Err() != nil, files > 8*maxCacheFiles:
			return nil, errors.New("the archive is too large")
		}
		for _, dir := range dirs {
			name := nameOf(dir)
			has[name] = has[name] || path.Clean(h.Name) == name || strings.HasPrefix(h.Name, name+"/")
		}
	}
}

// nameOf is the name of a directory in the archive.
func nameOf(dir string) string { return strings.TrimPrefix(filepath.Clean(dir), "/") }

// keep chooses the caches that the next build gets: of what is there the small ones
// first, as much as may be kept. What has grown beyond that begins anew.
func (b *builder) keep() {
	most := int64(b.in.CacheMB) << 20
	if most <= 0 {
		return
	}
	type cache struct {
		dir  string
		size int64
	}
	var all []cache
	entries, _ := os.ReadDir(b.Cache)
	dirs := b.inProject()
	for _, e := range entries {
		dirs = append(dirs, filepath.Join(b.Cache, e.Name()))
	}
	for _, dir := range dirs {
		st, err := os.Lstat(dir)
		if err != nil || !st.IsDir() {
			continue
		}
		if size, ok := sizeOf(dir); !ok {
			b.say("The cache %s is not kept: it has too many files", dir)
		} else if size > 0 {
			all = append(all, cache{dir, size})
		}
	}
	slices.SortStableFunc(all, func(a, b cache) int { return int(min(max(a.size-b.size, -1), 1)) })
	var total int64
	for _, c := range all {
		if total+c.size > most {
			b.say("The cache %s is not kept: it has %d MB, and all may have %d", c.dir, c.size>>20, b.in.CacheMB)
			continue
		}
		total += c.size
		b.made.Caches = append(b.made.Caches, c.dir)
	}
	b.made.CacheBytes = total
}

// sizeOf is what a directory takes in an archive, in bytes. ok is false if it has too
// many files.
func sizeOf(dir string) (size int64, ok bool) {
	files := 0
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it is left out of the sum alone
		}
		if files++; files > maxCacheFiles {
			return fs.SkipAll
		}
		const block = 512
		size += 2 * block
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return size, err == nil && files <= maxCacheFiles
}

// Pack writes the caches of a build that were chosen to be kept. The app may run already,
// and change what is packed.
func (m Made) Pack(ctx context.Context, r *command.Runner, home string, w io.Writer) error {
	var members []string
	for _, dir := range m.Caches {
		members = append(members, nameOf(dir))
	}
	argv := append([]string{"tar", "-cf", "-", "-C", "/", "--ignore-failed-read", "--warning=no-file-changed"}, members...)
	ended, err := r.Run(ctx, command.Command{Argv: argv, Dir: "/", Env: []map[string]string{m.Environ(home)}}, w, io.Discard)
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ended.Code > 1 || ended.Signal != "": // 1: something has changed meanwhile
		return fmt.Errorf("tar %s", ended)
	}
	return nil
}
