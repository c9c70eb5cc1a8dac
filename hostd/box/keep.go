package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// KeptDisk is what kept.json says of a disk that stays for an operator. Its database has
// been restored elsewhere from its archive, which may lack what was committed last.
type KeptDisk struct {
	DatabaseArchive string    `json:"archive"` // "<database id>/<incarnation>"
	WorkspaceID     string    `json:"workspace_id"`
	BuildID         string    `json:"build_id"` // of the template whose disks are below it
	KeptAt          time.Time `json:"kept_at"`
}

const (
	keptNote = "kept.json"
	keptDisk = "overlay.img"
)

// saveDisk moves the disk of a box to where it stays, if it is to. Its VMM has ended. It
// may be called again after a failure or a crash.
func (b *box) saveDisk(ctx context.Context) error {
	rec := b.record()
	if !rec.KeepDisk {
		return nil
	}
	from, dir := b.host.paths.Overlay(b.id), b.host.paths.KeptDisk(b.id)
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		return nil // it is moved, or never was
	}
	note, err := json.Marshal(KeptDisk{DatabaseArchive: rec.Database.Archive.Name, WorkspaceID: rec.WorkspaceID, BuildID: rec.BuildID, KeptAt: b.host.now()})
	if err != nil {
		return fmt.Errorf("keep disk: %w", err)
	}
	to := filepath.Join(dir, keptDisk)
	err = errors.Join(os.MkdirAll(dir, 0o700), os.Lchown(from, os.Getuid(), os.Getgid()), os.Chmod(from, 0o600), atomicfile.Write(filepath.Join(dir, keptNote), note, 0o600))
	if err == nil {
		err = os.Rename(from, to)
	}
	if err = errors.Join(err, atomicfile.Sync(dir), atomicfile.Sync(b.host.paths.Kept())); err != nil {
		return fmt.Errorf("keep disk: %w", err)
	}
	b.host.log.WarnContext(ctx, "disk of a database that was restored elsewhere is kept for an operator", "sandbox_id", b.id,
		"archive", rec.Database.Archive.Name, "path", to, "until", b.host.now().Add(b.host.cfg.KeepDisks))
	return nil
}

// removeKeptDisks removes disks that were kept for long enough.
func (h *Host) removeKeptDisks() {
	entries, err := os.ReadDir(h.paths.Kept())
	if err != nil {
		h.log.Warn("disks that are kept are not looked at", "error", err)
		return
	}
	for _, e := range entries {
		dir := filepath.Join(h.paths.Kept(), e.Name())
		var note KeptDisk
		raw, err := os.ReadFile(filepath.Join(dir, keptNote))
		if err == nil {
			err = json.Unmarshal(raw, &note)
		}
		if err != nil {
			h.log.Warn("a disk that is kept has no note of it, and stays", "path", dir, "error", err)
			continue
		}
		if h.now().Sub(note.KeptAt) < h.cfg.KeepDisks {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			h.log.Warn("a disk that was kept could not be removed", "path", dir, "error", err)
			continue
		}
		h.log.Info("a disk that was kept is removed", "sandbox_id", hostapi.ShortID(e.Name()), "archive", note.DatabaseArchive)
	}
}
