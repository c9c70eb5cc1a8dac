// Package volume keeps the volumes of a host: file systems that outlive boxes.
//
//	<dir>/<id>/disk.img      an ext4, whose size is reserved, which belongs to the user of the VMM
//	                         that it is attached to, else to root
//	<dir>/<id>/volume.json   what it is
//	<dir>/.<id>-…            one that is being made or removed; gone after a start
//
// The directories are root's: a VMM that a guest has taken over can write to
// its image, and can put nothing else in its place. Which box has which volume
// is not written down here: the ledger's records of boxes say so, and are
// handed to Open.
package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

const (
	imageFile = "disk.img"
	infoFile  = "volume.json"
	format    = 1

	// MinSizeMB is what an ext4 with a journal and some room takes.
	MinSizeMB = 16
	// MaxSizeMB bounds what one volume promises.
	MaxSizeMB = 1 << 20
	// maxID is what a guest can tell a disk by: the length of a virtio serial
	// number.
	maxID = 20
)

// Config is what a Store works with.
type Config struct {
	Dir string
	// HeadroomMB must stay free on the file system, after all volumes have
	// grown to their sizes.
	HeadroomMB int
	// Attached are the boxes that have volumes, by volume.
	Attached map[string]string
	// Promised, where it is not nil, is what others may still take of the disk, in
	// bytes.
	Promised func() int64
	// MakeRoom runs check, which says how many bytes are missing, and again if it
	// could do something for them; the default does nothing.
	MakeRoom func(check func() (missing int64, err error)) error
	Log      *slog.Logger
	// DiskFree returns the bytes free for an unprivileged user under a path;
	// the default asks the kernel.
	DiskFree func(path string) (int64, error)
	// Used returns how many bytes of an image are written; the default looks at all
	// pieces of it.
	Used func(image string) int64
	Now  func() time.Time
}

// Store has every volume of this host.
type Store struct {
	cfg Config
	// making is held by whoever makes or removes a volume: what one promises
	// the next one must count. It is a channel so that waiting for it can end.
	making chan struct{}

	mu      sync.Mutex
	volumes map[string]*volume
	looking chan struct{} // closed at the end of the look at all images that is under way; nil: none is
	lookAt  time.Time     // not before
}

// volume is one that is complete.
type volume struct {
	info
	attachedTo string // box
	used       int64  // bytes, as was found last
}

// info is volume.json.
type info struct {
	Format      int       `json:"format"`
	ID          string    `json:"id"`
	WorkspaceID string    `json:"workspace_id"`
	SizeMB      int       `json:"size_mb"`
	CreatedAt   time.Time `json:"created_at"`
}

// Open finds the volumes that are there, and removes what a crash left of
// others. A volume that cannot be read is left alone, and is not there.
func Open(cfg Config) (*Store, error) {
	if cfg.DiskFree == nil {
		cfg.DiskFree = diskFree
	}
	if cfg.Used == nil {
		cfg.Used = usedBytes
	}
	if cfg.MakeRoom == nil {
		cfg.MakeRoom = func(check func() (int64, error)) error { _, err := check(); return err }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Store{cfg: cfg, making: make(chan struct{}, 1), volumes: map[string]*volume{}}
	// VMMs pass through, and may not list.
	if err := errors.Join(os.MkdirAll(cfg.Dir, 0o700), os.Chmod(cfg.Dir, 0o700)); err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			if err := os.RemoveAll(filepath.Join(cfg.Dir, e.Name())); err != nil {
				return nil, fmt.Errorf("volumes: remove a half-made one: %w", err)
			}
			continue
		}
		in, err := s.read(e.Name())
		if err != nil {
			cfg.Log.Error("volume cannot be read", "volume_id", e.Name(), "error", err)
			continue
		}
		v := &volume{info: in, attachedTo: cfg.Attached[in.ID]}
		if v.attachedTo == "" {
			// As a crash between a box's end and its detach leaves it.
			if err := s.own(in.ID, 0, 0); err != nil {
				return nil, err
			}
		}
		s.volumes[in.ID] = v
		if err := reserve(s.image(in.ID), int64(in.SizeMB)<<20); err != nil {
			cfg.Log.Warn("a volume's whole size cannot be kept for it", "volume_id", in.ID, "error", err)
		}
	}
	return s, nil
}

// read returns a volume that is whole.
func (s *Store) read(id string) (info, error) {
	var in info
	raw, err := os.ReadFile(filepath.Join(s.cfg.Dir, id, infoFile))
	if err != nil {
		return in, err
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return in, fmt.Errorf("%s: %w", infoFile, err)
	}
	if in.Format != format || in.ID != id || !validID(id) {
		return in, fmt.Errorf("%s is of format %d and volume %q", infoFile, in.Format, in.ID)
	}
	st, err := os.Stat(s.image(id))
	if err != nil {
		return in, err
	}
	if want := int64(in.SizeMB) << 20; st.Size() != want {
		return in, fmt.Errorf("%s has %d bytes, not %d", imageFile, st.Size(), want)
	}
	return in, nil
}

func (s *Store) image(id string) string { return filepath.Join(s.cfg.Dir, id, imageFile) }

// PutVolume makes a volume and waits until it is durable. The same id and size
// again answers with the one that is there; a volume is never resized.
func (s *Store) PutVolume(ctx context.Context, id string, spec hostapi.VolumeSpec) (hostapi.Volume, error) {
	switch {
	case !validID(id):
		return hostapi.Volume{}, hosterr.Invalid("volume id: want 1 to %d characters of a-z, 0-9 and '-'", maxID)
	case spec.SizeMB < MinSizeMB || spec.SizeMB > MaxSizeMB:
		return hostapi.Volume{}, hosterr.Invalid("size_mb is %d: want %d to %d", spec.SizeMB, MinSizeMB, MaxSizeMB)
	}
	if err := s.begin(ctx); err != nil {
		return hostapi.Volume{}, err
	}
	defer s.end()
	s.mu.Lock()
	v := s.volumes[id]
	s.mu.Unlock()
	if v != nil {
		if v.SizeMB != spec.SizeMB || v.WorkspaceID != spec.WorkspaceID {
			return hostapi.Volume{}, hosterr.Invalid("volume %s is there with %d MB: a volume is not resized", id, v.SizeMB)
		}
		return s.Volume(id)
	}
	if err := s.admit(spec.SizeMB); err != nil {
		return hostapi.Volume{}, err
	}
	v = &volume{info: info{
		Format: format, ID: id, WorkspaceID: spec.WorkspaceID, SizeMB: spec.SizeMB, CreatedAt: s.cfg.Now().UTC().Truncate(time.Millisecond),
	}}
	began := s.cfg.Now()
	if err := s.make(ctx, &v.info); err != nil {
		if _, full := s.missing(spec.SizeMB); full != nil || errors.Is(err, syscall.ENOSPC) {
			err = noDisk("%s", err.Error())
		}
		return hostapi.Volume{}, fmt.Errorf("make volume %s: %w", id, err)
	}
	s.mu.Lock()
	s.volumes[id] = v
	s.mu.Unlock()
	s.cfg.Log.Info("volume is made", "volume_id", id, "size_mb", spec.SizeMB, "took_ms", s.cfg.Now().Sub(began).Milliseconds())
	return s.Volume(id)
}

// admit refuses a volume that would fill the disk.
func (s *Store) admit(sizeMB int) error {
	return s.cfg.MakeRoom(func() (int64, error) { return s.missing(sizeMB) })
}

// missing is how many bytes are lacking for a volume. It counts by the worst
// case: every promised volume may be filled.
func (s *Store) missing(sizeMB int) (bytes int64, err error) {
	free, err := s.cfg.DiskFree(s.cfg.Dir)
	if err != nil {
		return 0, fmt.Errorf("look for free disk space: %w", err)
	}
	promised := s.Promised()
	if s.cfg.Promised != nil {
		promised += s.cfg.Promised()
	}
	if bytes = int64(sizeMB+s.cfg.HeadroomMB)<<20 + promised - free; bytes > 0 {
		err = noDisk("%d MB are free, %d of them promised to others, and %d must stay free", free>>20, promised>>20, s.cfg.HeadroomMB)
	}
	return bytes, err
}

// Promised is what volumes may still take of the disk, in bytes. Where the file
// system can reserve it is nothing.
func (s *Store) Promised() int64 {
	s.mu.Lock()
	sizes := map[string]int64{}
	for id, v := range s.volumes {
		sizes[id] = int64(v.SizeMB) << 20
	}
	s.mu.Unlock()
	promised := int64(0)
	for id, size := range sizes {
		promised += max(size-takenBytes(s.image(id)), 0)
	}
	return promised
}

// Volumes returns every volume, ordered by id. Heartbeats wait for it, and a guest can have
// its image in millions of pieces: what is written to the images is what was found last.
func (s *Store) Volumes() []hostapi.Volume {
	s.look()
	s.mu.Lock()
	out := make([]hostapi.Volume, 0, len(s.volumes))
	for _, v := range s.volumes {
		shown := view(v)
		shown.UsedBytes = v.used
		out = append(out, shown)
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b hostapi.Volume) int { return strings.Compare(a.ID, b.ID) })
	return out
}

const (
	// lookWait is how long a list waits for a look at the images. One that takes longer
	// is not begun again before lookPause times as long.
	lookWait  = 50 * time.Millisecond
	lookPause = 20
)

// look finds how much is written to each image, unless that takes long.
func (s *Store) look() {
	s.mu.Lock()
	if s.looking == nil && !time.Now().Before(s.lookAt) {
		s.looking = make(chan struct{})
		go s.lookOn(slices.Collect(maps.Keys(s.volumes)))
	}
	done := s.looking
	s.mu.Unlock()
	if done == nil {
		return
	}
	wait := time.NewTimer(lookWait)
	defer wait.Stop()
	select {
	case <-done:
	case <-wait.C:
	}
}

func (s *Store) lookOn(ids []string) {
	began := time.Now()
	for _, id := range ids {
		s.found(id, s.cfg.Used(s.image(id)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if took := time.Since(began); took > lookWait {
		s.lookAt = time.Now().Add(lookPause * took)
	}
	close(s.looking)
	s.looking = nil
}

// found notes how much is written to an image.
func (s *Store) found(id string, used int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.volumes[id]; v != nil {
		v.used = used
	}
}

// Volume returns one volume.
func (s *Store) Volume(id string) (hostapi.Volume, error) {
	s.mu.Lock()
	v := s.volumes[id]
	if v == nil {
		s.mu.Unlock()
		return hostapi.Volume{}, notFound(id)
	}
	out := view(v)
	s.mu.Unlock()
	out.UsedBytes = s.cfg.Used(s.image(id))
	s.found(id, out.UsedBytes)
	return out, nil
}

// view is what is known of a volume without a look at its image. The caller holds
// the lock.
func view(v *volume) hostapi.Volume {
	return hostapi.Volume{ID: v.ID, WorkspaceID: v.WorkspaceID, SizeMB: v.SizeMB, AttachedTo: v.attachedTo, CreatedAt: v.CreatedAt}
}

// DeleteVolume removes a volume and waits until it is gone. One that is gone is
// no error; one that a box has is hosterr.ErrInUse.
func (s *Store) DeleteVolume(ctx context.Context, id string) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	s.mu.Lock()
	v := s.volumes[id]
	if v == nil {
		s.mu.Unlock()
		return nil
	}
	if v.attachedTo != "" {
		s.mu.Unlock()
		return fmt.Errorf("%w: volume %s is attached to sandbox %s", hosterr.ErrInUse, id, hostapi.ShortID(v.attachedTo))
	}
	// Before the files: from here nobody can attach it.
	delete(s.volumes, id)
	s.mu.Unlock()
	aside := filepath.Join(s.cfg.Dir, "."+id+"-removed")
	err := os.Rename(filepath.Join(s.cfg.Dir, id), aside)
	if err == nil {
		err = atomicfile.Sync(s.cfg.Dir)
	}
	if err != nil {
		s.mu.Lock()
		s.volumes[id] = v
		s.mu.Unlock()
		return fmt.Errorf("delete volume %s: %w", id, err)
	}
	s.cfg.Log.Info("volume is deleted", "volume_id", id)
	if err := os.RemoveAll(aside); err != nil {
		// The volume is gone; its space comes back with the next start.
		s.cfg.Log.Error("files of a deleted volume stay until the next start", "volume_id", id, "error", err)
	}
	return nil
}

// begin waits for whoever makes or removes a volume.
func (s *Store) begin(ctx context.Context) error {
	select {
	case s.making <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Store) end() { <-s.making }

func validID(id string) bool {
	if id == "" || len(id) > maxID || id[0] == '-' {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// The host's errors of these kinds speak of sandboxes.

func notFound(id string) error {
	return &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such volume on this host", Detail: id, HTTPStatus: http.StatusNotFound}
}

func noDisk(format string, args ...any) error {
	return &hostapi.Error{
		Code: hostapi.CodeNoDisk, Message: "insufficient host storage for volume", Detail: fmt.Sprintf(format, args...),
		HTTPStatus: http.StatusInsufficientStorage,
	}
}

func diskFree(path string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// isGone: somebody else removed it.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }
