package hostd

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"

	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/hostd/volume"
)

// openVolumes finds the host's volumes. Who has which is what the records of
// boxes say, each written before its box attached anything.
func openVolumes(cfg Config, records *ledger.Ledger, promised func() int64, makeRoom func(func() (int64, error)) error, log *slog.Logger) (*volume.Store, error) {
	attached := map[string]string{}
	boxes := records.Boxes()
	for _, rec := range boxes {
		for _, v := range rec.Volumes {
			attached[v.ID] = rec.ID
		}
	}
	for _, rec := range boxes {
		// A create that was cut off may have named a volume that another box
		// has, which would have been its end.
		if rec.State != ledger.Creating {
			for _, v := range rec.Volumes {
				attached[v.ID] = rec.ID
			}
		}
	}
	return volume.Open(volume.Config{
		Dir: filepath.Join(cfg.DataDir, "volumes"), HeadroomMB: cfg.DiskHeadroomMB, Attached: attached, Promised: promised, MakeRoom: makeRoom,
		Log: log,
	})
}

// freeBytes is what an unprivileged user may still write below a path.
func freeBytes(path string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}
