package hostd

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/heartbeat"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/hostd/volume"
	"github.com/berth-cloud/berth/tier"
)

// smallDisk mounts a file system of its own, of which nothing is kept for root,
// and has temporary directories made there.
func smallDisk(t *testing.T, sizeMB int) string {
	t.Helper()
	tier.Root(t)
	image, dir := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "disk")
	try := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, int64(sizeMB)<<20))
	must(t, os.Mkdir(dir, 0o755))
	try("/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", image)
	try("mount", "-o", "loop", image, dir)
	t.Cleanup(func() { try("umount", dir) })
	must(t, os.Mkdir(filepath.Join(dir, "tmp"), 0o755))
	t.Setenv("TMPDIR", filepath.Join(dir, "tmp"))
	return dir
}

// fill writes to a file until its disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	must(t, err)
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} { // to the last byte
		for at, err := f.Seek(0, 2); err == nil; at += int64(size) {
			_, err = f.WriteAt(make([]byte, size), at)
		}
		if err := f.Sync(); err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// A box that fills the host's disk stops no other's volume, no delete, and not the
// ledger; nothing new is taken meanwhile.
func TestABoxThatFillsTheDisk(t *testing.T) {
	smallDisk(t, 192)
	t.Run("", func(t *testing.T) { // whose temporary directories are gone before the disk is
		w := boxtest.NewWorld(t)
		records, err := ledger.Open(w.Paths.Ledger(), "h1")
		must(t, err)
		var boxes *box.Host
		volumes, err := volume.Open(volume.Config{
			Dir: filepath.Join(w.Paths.Data, "volumes"), HeadroomMB: 16, Log: slog.New(slog.DiscardHandler),
			Promised: func() int64 { return boxes.DiskPromised() },
		})
		must(t, err)
		cfg, deps := w.Config(), w.Deps(records)
		cfg.DiskHeadroomMB, cfg.DiskOvercommit, deps.Promised = 16, 20, volumes.Promised
		deps.DiskSize = func(string) (int64, error) { return 1 << 40, nil } // else no box of 1024 MB is taken at all
		boxes = box.New(cfg, deps)
		boxes.Open()
		t.Cleanup(func() { boxes.Close(); must(t, records.Close()) })

		ctx := t.Context()
		const filler, other, late = "aaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccccccc"
		spec := hostapi.BoxSpec{Generation: 1, WorkspaceID: "ws", Template: "base"}
		made, err := volumes.PutVolume(ctx, "vol-1", hostapi.VolumeSpec{WorkspaceID: "ws", SizeMB: 32})
		must(t, err)
		if made.UsedBytes <= 0 || made.UsedBytes > 16<<20 {
			t.Errorf("an empty volume of 32 MB has %d bytes written", made.UsedBytes)
		}
		for _, id := range []string{filler, other} { // each may write 1024 MB, of which 51 are kept
			_, err := boxes.Put(ctx, id, spec)
			must(t, err)
		}
		if _, err := boxes.Put(ctx, late, spec); !errors.Is(err, hosterr.ErrNoDisk) {
			t.Errorf("a third of which 51 MB had to be kept: %v, want ErrNoDisk", err)
		}

		fill(t, w.Paths.Overlay(filler))
		if _, err := boxes.Put(ctx, late, spec); !errors.Is(err, hosterr.ErrNoDisk) {
			t.Errorf("a new box on a full disk: %v, want ErrNoDisk", err)
		}
		if _, err := volumes.PutVolume(ctx, "vol-2", hostapi.VolumeSpec{WorkspaceID: "ws", SizeMB: 16}); !hostapi.HasCode(err, hostapi.CodeNoDisk) {
			t.Errorf("a new volume on a full disk: %v", err)
		}
		image, err := os.OpenFile(filepath.Join(w.Paths.Data, "volumes", "vol-1", "disk.img"), os.O_WRONLY, 0)
		must(t, err)
		for at := int64(0); at < 32<<20; at += 1 << 20 {
			if _, err := image.WriteAt([]byte(strings.Repeat("x", 1<<20)), at); err != nil {
				t.Fatalf("the volume of another has no room: %v", err)
			}
		}
		must(t, errors.Join(image.Sync(), image.Close()))
		// More than what makes the ledger rewrite itself, for which there is no room.
		for i := range 2000 {
			must(t, records.Put(ledger.Record{ID: other[:25] + "z", State: ledger.Failed, Error: fmt.Sprint(i, strings.Repeat("e", 800))}))
		}
		must(t, records.Forget(other[:25]+"z"))
		_, err = boxes.Pause(ctx, other)
		must(t, err)
		must(t, boxes.Delete(ctx, other, 1))
		must(t, boxes.Delete(ctx, filler, 1))
		must(t, volumes.DeleteVolume(ctx, "vol-1"))
		await(t, func() bool { // space comes back when files are gone for good
			_, err := boxes.Put(ctx, late, spec)
			return err == nil
		})
		must(t, boxes.Delete(ctx, late, 1))
	})
}

func await(t *testing.T, cond func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatal("condition did not come true within 20 s")
		case <-tick.C:
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A file system whose inodes are used up has no room, whatever its free bytes are.
func TestADiskWithoutInodesIsFull(t *testing.T) {
	tier.Root(t)
	dir := t.TempDir()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m,nr_inodes=300"))
	t.Cleanup(func() { must(t, syscall.Unmount(dir, 0)) })
	free := func() int64 {
		t.Helper()
		n, err := freeBytes(dir)
		must(t, err)
		return n
	}
	p := &preflight{cfg: Config{DataDir: dir}}
	if _, err := p.disk(); free() == 0 || err != nil {
		t.Errorf("empty, and there is room for %d bytes, %v", free(), err)
	}
	for i := range 100 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	if _, err := p.disk(); free() != 0 || err == nil || !strings.Contains(err.Error(), "inodes") {
		t.Errorf("without inodes there is room for %d bytes, %v", free(), err)
	}
}

// A join on a disk without room ends before it asks for a certificate, which would use up the
// token and the id.
func TestAJoinWithoutRoomSpendsNoToken(t *testing.T) {
	tier.Root(t)
	dir := t.TempDir()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=32k"))
	t.Cleanup(func() { must(t, syscall.Unmount(dir, 0)) })
	err := Join(t.Context(), dir, heartbeat.JoinRequest{Peers: []string{"127.0.0.1:1"}, Token: "bjt_x", CASHA256: strings.Repeat("0", 64), HostID: "h1"})
	if !errors.Is(err, syscall.ENOSPC) { // nobody is asked: nobody listens there
		t.Error(err)
	}
}
