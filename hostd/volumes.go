package hostd

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/hostd/volume"
)

// openVolumes finds the host's volumes. Who has which is what the records of
// boxes say, each written before its box attached anything.
func openVolumes(cfg Config, records *ledger.Ledger, promised func() int64, makeRoom func(func() (int64, error)) error, log *slog.Logger) (*volume.Store, error) {
	return volume.Open(volume.Config{
		Dir: filepath.Join(cfg.DataDir, "volumes"), HeadroomMB: cfg.DiskHeadroomMB, Attached: attached(records.Boxes()), Promised: promised, MakeRoom: makeRoom,
		Log: log,
	})
}

// attached says which box has each volume. A create that was cut off, or whose
// box was deleted before it ran, may have named a volume that another box has,
// which would have been its end.
func attached(boxes []ledger.Record) map[string]string {
	rank := map[ledger.State]int{ledger.Deleting: 1, ledger.Creating: 2}
	slices.SortStableFunc(boxes, func(a, b ledger.Record) int { return rank[b.State] - rank[a.State] })
	out := map[string]string{}
	for _, rec := range boxes {
		for _, v := range rec.Volumes {
			out[v.ID] = rec.ID // the last one: it ran
		}
	}
	return out
}

// spareFiles is how many files there must be room for, which are more than a sandbox has.
const spareFiles = 256

// freeBytes is what an unprivileged user may still write below a path: nothing, where hardly a
// file can be made.
func freeBytes(path string) (int64, error) {
	st, err := statfs(path)
	if err != nil || lacksFiles(st) {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// lacksFiles reports whether a file system has used up its inodes. Some have no number of them.
func lacksFiles(st syscall.Statfs_t) bool { return st.Files > 0 && st.Ffree < spareFiles }

func statfs(path string) (st syscall.Statfs_t, err error) {
	if err := syscall.Statfs(path, &st); err != nil {
		return st, fmt.Errorf("free space of %s: %w", path, err)
	}
	return st, nil
}
