package volume

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ box.Volumes = (*Store)(nil)

const id = "vol-abcdefgh"

func open(t *testing.T, dir string, change func(*Config)) *Store {
	t.Helper()
	cfg := Config{Dir: dir, Log: slog.New(slog.DiscardHandler), DiskFree: func(string) (int64, error) { return 100 << 30, nil }}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *Store, id string, sizeMB int) hostapi.Volume {
	t.Helper()
	v, err := s.PutVolume(t.Context(), id, hostapi.VolumeSpec{WorkspaceID: "ws", SizeMB: sizeMB})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAVolumeIsAnEmptyFileSystem(t *testing.T) {
	for _, sizeMB := range []int{MinSizeMB, 256, 4096} {
		s := open(t, t.TempDir(), nil)
		v := put(t, s, id, sizeMB)
		if v.ID != id || v.WorkspaceID != "ws" || v.SizeMB != sizeMB || v.AttachedTo != "" || v.CreatedAt.IsZero() {
			t.Errorf("volume = %+v", v)
		}
		if v.UsedBytes <= 0 || v.UsedBytes > 4<<20 {
			t.Errorf("an empty volume of %d MB has %d bytes written", sizeMB, v.UsedBytes)
		}
		if taken := takenBytes(s.image(id)); taken < int64(sizeMB)<<20 || s.Promised() != 0 {
			t.Errorf("a volume of %d MB has %d bytes of the disk, and %d are promised", sizeMB, taken, s.Promised())
		}
		cmd := exec.Command("e2fsck", "-f", "-n", s.image(id))
		cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("e2fsck: %v\n%s", err, out)
		}
		cmd = exec.Command("dumpe2fs", s.image(id))
		cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), "has_journal") || !strings.Contains(string(out), "ITABLE_ZEROED") {
			t.Errorf("dumpe2fs: %v: want a journal, and tables that the guest need not zero", err)
		}
	}
}

func TestTheSameVolumeAgainIsTheOneThatIsThere(t *testing.T) {
	s := open(t, t.TempDir(), nil)
	first := put(t, s, id, 64)
	if diff := cmp.Diff(first, put(t, s, id, 64)); diff != "" {
		t.Error(diff)
	}
	for name, spec := range map[string]hostapi.VolumeSpec{
		"larger":            {WorkspaceID: "ws", SizeMB: 65},
		"smaller":           {WorkspaceID: "ws", SizeMB: 63},
		"another workspace": {WorkspaceID: "other", SizeMB: 64},
	} {
		if _, err := s.PutVolume(t.Context(), id, spec); !errors.Is(err, hosterr.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Many at once are one.
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := s.PutVolume(context.Background(), "vol-2", hostapi.VolumeSpec{SizeMB: 64}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if all := s.Volumes(); len(all) != 2 || all[0].ID != "vol-2" || all[1].ID != id {
		t.Errorf("volumes = %+v", all)
	}
}

func TestBadVolumesAreRefused(t *testing.T) {
	s := open(t, t.TempDir(), nil)
	for name, c := range map[string]struct {
		id   string
		size int
	}{
		"no id": {"", 64}, "a path": {"../x", 64}, "hidden": {".x", 64}, "capitals": {"Vol", 64}, "an option": {"-x", 64},
		"longer than a serial number": {strings.Repeat("x", 21), 64},
		"no size":                     {id, 0}, "negative": {id, -1}, "tiny": {id, MinSizeMB - 1}, "huge": {id, MaxSizeMB + 1},
	} {
		if _, err := s.PutVolume(t.Context(), c.id, hostapi.VolumeSpec{SizeMB: c.size}); !errors.Is(err, hosterr.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if all := s.Volumes(); len(all) != 0 {
		t.Errorf("volumes = %+v", all)
	}
	var own *hostapi.Error
	if _, err := s.Volume(id); !errors.As(err, &own) || own.HTTPStatus != http.StatusNotFound || own.Code != hostapi.CodeNotFound {
		t.Errorf("a volume that is not there: %v", err)
	}
}

func TestWhatIsPromisedCanBeFilled(t *testing.T) {
	free := int64(1000) << 20
	s := open(t, t.TempDir(), func(c *Config) {
		c.HeadroomMB = 100
		c.DiskFree = func(string) (int64, error) { return free, nil }
	})
	put(t, s, "vol-1", 500)
	free -= 500 << 20
	refused := func(size int) {
		t.Helper()
		_, err := s.PutVolume(t.Context(), "vol-2", hostapi.VolumeSpec{SizeMB: size})
		var own *hostapi.Error
		if !errors.As(err, &own) || own.HTTPStatus != http.StatusInsufficientStorage || own.Code != hostapi.CodeNoDisk ||
			own.Message != "insufficient host storage for volume" {
			t.Errorf("a volume of %d MB: %v", size, err)
		}
	}
	refused(450)
	s.cfg.Promised = func() int64 { return 20 << 20 }
	refused(390)
	s.cfg.Promised = nil
	put(t, s, "vol-2", 390)
	if err := s.DeleteVolume(t.Context(), "vol-2"); err != nil {
		t.Fatal(err)
	}
	free = 150 << 20
	refused(64)
	s.cfg.MakeRoom = func(check func() (int64, error)) error {
		missing, _ := check()
		free += missing
		_, err := check()
		return err
	}
	put(t, s, "vol-2", 64)
}

// Whoever asked goes to another host then, and nothing here is given up for it.
func TestADiskThatFillsUpIsNamed(t *testing.T) {
	asked, free := 0, int64(1<<40)
	s := open(t, t.TempDir(), func(c *Config) {
		c.DiskFree = func(string) (int64, error) { return free, nil }
		c.MakeRoom = func(check func() (int64, error)) error {
			asked++
			_, err := check()
			free = 0
			if asked > 1 {
				free = 1 << 40
				_, err = check()
			}
			return err
		}
	})
	t.Setenv("PATH", t.TempDir())
	fake := filepath.Join(os.Getenv("PATH"), "mke2fs")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := s.PutVolume(t.Context(), id, hostapi.VolumeSpec{SizeMB: 64})
	var own *hostapi.Error
	if !errors.As(err, &own) || own.Code != hostapi.CodeNoDisk || asked != 1 {
		t.Errorf("put = %v, room was asked for %d times", err, asked)
	}
}

func TestAVolumeThatCannotBeMadeLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.PutVolume(ctx, id, hostapi.VolumeSpec{SizeMB: 64}); !errors.Is(err, context.Canceled) {
		t.Errorf("put = %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	fake := filepath.Join(os.Getenv("PATH"), "mke2fs")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\necho no space >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutVolume(t.Context(), id, hostapi.VolumeSpec{SizeMB: 64}); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("put = %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if all := s.Volumes(); len(all) != 0 {
		t.Errorf("volumes = %+v", all)
	}
}

func TestAVolumeHasOneBoxAtATime(t *testing.T) {
	s := open(t, t.TempDir(), nil)
	put(t, s, id, 64)
	uid, gid := os.Getuid(), os.Getgid()
	path, err := s.Attach(t.Context(), "box1", id, uid, gid)
	if err != nil || path != s.image(id) {
		t.Fatalf("attach = %q, %v", path, err)
	}
	if _, err := s.Attach(t.Context(), "box1", id, uid, gid); err != nil {
		t.Errorf("attach again = %v", err)
	}
	if err := s.Flush(id); err != nil {
		t.Error(err)
	}
	if err := s.Flush("vol-gone"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("flush of a volume that is not there: %v", err)
	}
	if size, err := s.Size(id); err != nil || size != 64<<20 {
		t.Errorf("it has %d bytes, %v", size, err)
	}
	if _, err := s.Size("vol-gone"); !errors.Is(err, hosterr.ErrInvalid) {
		t.Errorf("size of a volume that is not there: %v", err)
	}
	if _, err := s.Attach(t.Context(), "box2", id, uid, gid); !errors.Is(err, hosterr.ErrInUse) {
		t.Errorf("another box: %v", err)
	}
	if err := s.DeleteVolume(t.Context(), id); !errors.Is(err, hosterr.ErrInUse) {
		t.Errorf("delete = %v", err)
	}
	if v, err := s.Volume(id); err != nil || v.AttachedTo != "box1" {
		t.Errorf("volume = %+v, %v", v, err)
	}
	if err := s.Detach("box2", id); err != nil {
		t.Error(err)
	}
	if v, _ := s.Volume(id); v.AttachedTo != "box1" {
		t.Error("a box that does not have it detached it")
	}
	for range 2 {
		if err := errors.Join(s.Detach("box1", id), s.Detach("box1", "vol-gone")); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Attach(t.Context(), "box2", id, uid, gid); err != nil {
		t.Errorf("the next box: %v", err)
	}
	if _, err := s.Attach(t.Context(), "box2", "vol-gone", uid, gid); !errors.Is(err, hosterr.ErrInvalid) {
		t.Errorf("a volume that is not there: %v", err)
	}
}

func TestAnImageBelongsToItsBoxsUser(t *testing.T) {
	tier.Root(t)
	dir := t.TempDir()
	s := open(t, dir, nil)
	put(t, s, id, 64)
	owner := func(want int) {
		t.Helper()
		st := stat(t, s.image(id))
		if int(st.Uid) != want || st.Mode&0o777 != 0o600 {
			t.Errorf("image belongs to %d with mode %o, want %d", st.Uid, st.Mode, want)
		}
		if st := stat(t, filepath.Dir(s.image(id))); st.Uid != 0 || st.Mode&0o777 != 0o700 {
			t.Errorf("directory belongs to %d with mode %o", st.Uid, st.Mode)
		}
	}
	owner(0)
	for _, uid := range []int{600001, 600002} { // a slot may change when a box wakes
		if _, err := s.Attach(t.Context(), "box1", id, uid, 600000); err != nil {
			t.Fatal(err)
		}
		owner(uid)
	}
	// The daemon dies, and the box still has it; or has gone meanwhile.
	s = open(t, dir, func(c *Config) { c.Attached = map[string]string{id: "box1"} })
	owner(600002)
	s = open(t, dir, nil)
	owner(0)
}

func TestARestartFindsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	before := put(t, s, id, 64)
	gone := put(t, s, "vol-gone", 64)
	if err := s.DeleteVolume(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	// As crashes leave it.
	for _, name := range []string{".vol-new-1234", ".vol-old-removed"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o711); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, imageFile), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// As a failing disk leaves it: data that is not ours to remove.
	broken := filepath.Join(dir, "vol-broken")
	if err := os.Mkdir(broken, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, infoFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, func(c *Config) { c.Attached = map[string]string{id: "box1"} })
	before.AttachedTo = "box1"
	if diff := cmp.Diff([]hostapi.Volume{before}, s.Volumes()); diff != "" {
		t.Error(diff)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if _, err := s.PutVolume(t.Context(), "vol-broken", hostapi.VolumeSpec{SizeMB: 64}); err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("in the place of one that cannot be read: %v", err)
	}
	if _, err := os.Stat(broken); err != nil {
		t.Error(err)
	}
}

func TestDeleteMayBeRepeated(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	put(t, s, id, 64)
	for range 2 {
		if err := s.DeleteVolume(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	put(t, s, id, 128) // anew, of any size
}

func TestUsedBytesFollowTheImage(t *testing.T) {
	s := open(t, t.TempDir(), func(c *Config) { c.Now = func() time.Time { return time.Unix(1e9, 0) } })
	before := put(t, s, id, 64)
	f, err := os.OpenFile(s.image(id), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 4<<20), 32<<20); err != nil {
		t.Fatal(err)
	}
	after, err := s.Volume(id)
	if err != nil || after.UsedBytes < before.UsedBytes+4<<20 || after.UsedBytes > before.UsedBytes+5<<20 {
		t.Errorf("used %d bytes, then %d, %v", before.UsedBytes, after.UsedBytes, err)
	}
	if !after.CreatedAt.Equal(time.Unix(1e9, 0)) {
		t.Errorf("made at %s", after.CreatedAt)
	}
}

// A look at an image in millions of pieces takes many seconds. No heartbeat waits for it.
func TestNobodyWaitsForALookThatTakesLong(t *testing.T) {
	release := make(chan struct{})
	var looks atomic.Int32
	s := open(t, t.TempDir(), func(c *Config) {
		c.Used = func(string) int64 {
			if looks.Add(1) == 1 { // what is made
				return 1
			}
			<-release
			return 2
		}
	})
	put(t, s, id, MinSizeMB)
	for range 3 {
		if got := s.Volumes(); len(got) != 1 || got[0].UsedBytes != 1 {
			t.Errorf("while it is looked: %+v", got)
		}
	}
	if n := looks.Load(); n > 2 {
		t.Errorf("%d looks at once", n-1)
	}
	close(release)
	for s.Volumes()[0].UsedBytes != 2 {
		runtime.Gosched()
	}
}

func stat(t *testing.T, path string) syscall.Stat_t {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}
