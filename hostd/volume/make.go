package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/atomicfile"
)

// make makes a volume aside and renames it to its place: a crash leaves all of
// it, or a hidden directory that the next Open removes.
func (s *Store) make(ctx context.Context, in *info) (err error) {
	temp, err := os.MkdirTemp(s.cfg.Dir, "."+in.ID+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(temp)
		}
	}()
	image := filepath.Join(temp, imageFile)
	if err := makeImage(ctx, image, in.SizeMB); err != nil {
		return err
	}
	if err := reserve(image, int64(in.SizeMB)<<20); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(temp, infoFile)
	if err := os.WriteFile(name, append(raw, '\n'), 0o600); err != nil {
		return err
	}
	for _, path := range []string{image, name, temp} {
		if err := atomicfile.Sync(path); err != nil {
			return err
		}
	}
	place := filepath.Join(s.cfg.Dir, in.ID)
	if _, err := os.Lstat(place); !isGone(err) {
		// A directory that could not be read as a volume at the start: it may be somebody's data.
		return fmt.Errorf("%s is there and is no volume: look into it, and move it away", place)
	}
	if err := os.Rename(temp, place); err != nil {
		return err
	}
	return atomicfile.Sync(s.cfg.Dir)
}

const (
	blockSize = 4096
	// A journal of the default size, up to 1 GB, would in time all be blocks of
	// the host's disk.
	maxJournalMB   = 64
	smallJournalMB = 4
	// bigMB is from where a volume gets the larger journal.
	bigMB = 1024
)

// makeImage makes a sparse file with an empty ext4. The file is all holes yet, so
// its tables need not be zeroed, now or by the guest's kernel later, which would
// fill the holes.
func makeImage(ctx context.Context, path string, sizeMB int) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(int64(sizeMB)<<20), f.Close()); err != nil {
		return err
	}
	journal := smallJournalMB
	if sizeMB >= bigMB {
		journal = maxJournalMB
	}
	// Nothing is reserved for root: the tenant is root. Never resized, so no
	// blocks are kept for that.
	cmd := exec.CommandContext(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-b", strconv.Itoa(blockSize), "-m", "0",
		"-J", "size="+strconv.Itoa(journal), "-O", "^resize_inode",
		"-E", "assume_storage_prezeroed=1,nodiscard,root_owner=0:0", path)
	// Debian keeps it where an unprivileged PATH does not look.
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("mke2fs is not installed (apt-get install e2fsprogs): %w", err)
	default:
		return fmt.Errorf("mke2fs: %w: %s", err, strings.TrimSpace(string(out)))
	}
}
