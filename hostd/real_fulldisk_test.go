package hostd_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// TestRealFullDisk: a volume has what it was promised on a disk that somebody else
// fills, and one that is full is an error of whoever writes, and not the end of a
// sandbox.
func TestRealFullDisk(t *testing.T) {
	h := newHost(t)
	h.env = append(h.env, "BERTH_DISK_HEADROOM_MB=0")
	dir := filepath.Join(h.data, "volumes")
	must(t, os.MkdirAll(dir, 0o711))
	must(t, syscall.Mount("none", dir, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	h.start()
	const vol = "vol-full"
	_, err := h.client.PutVolume(t.Context(), vol, hostapi.VolumeSpec{WorkspaceID: "ws", SizeMB: 48})
	must(t, err)
	if _, err := h.client.PutVolume(t.Context(), "vol-more", hostapi.VolumeSpec{WorkspaceID: "ws", SizeMB: 48}); !hostapi.HasCode(err, hostapi.CodeNoDisk) {
		t.Errorf("more than there is: %v", err)
	}
	id := rid('w', 0)
	h.make(id, hostapi.BoxSpec{Template: "base", Volumes: []hostapi.VolumeAttach{{ID: vol, MountPath: "/data"}}})
	h.sh(id, "echo kept > /data/kept && sync")
	// Somebody else fills the disk.
	f, err := os.Create(filepath.Join(dir, ".fill"))
	must(t, err)
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 1<<20))
	}
	if got := h.sh(id, "dd if=/dev/urandom of=/data/big bs=1M count=20 conv=fsync >/dev/null 2>&1 || echo refused"); got != "" {
		t.Errorf("20 MB that the volume was promised, on a disk that somebody filled: %q", got)
	}
	if got := h.sh(id, "dd if=/dev/urandom of=/data/more bs=1M count=40 conv=fsync >/dev/null 2>&1 || echo refused"); got != "refused" {
		t.Errorf("60 MB on a volume of 48: %q", got)
	}
	h.sh(id, "echo it runs > /root/f && cat /data/kept")
	if b, err := h.client.GetBox(t.Context(), id); err != nil || b.Status != hostapi.StatusRunning {
		t.Errorf("box = %+v, %v", b, err)
	}
	must(t, h.client.DeleteBox(t.Context(), id, 1))
	must(t, h.client.DeleteVolume(t.Context(), vol))
}
