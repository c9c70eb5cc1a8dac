package hostd_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// serve starts the daemon and waits until it is ready, whatever templates it has.
func (h *host) serve() {
	h.t.Helper()
	log, err := os.OpenFile(h.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(h.t, err)
	defer log.Close()
	h.cmd = exec.Command(filepath.Join(h.bin, "hostd"), "serve")
	h.cmd.Env, h.cmd.Stdout, h.cmd.Stderr = h.env, log, log
	must(h.t, h.cmd.Start())
	await(h.t, "the daemon is ready", 30*time.Second, func() error {
		info, err := h.client.Info(h.t.Context())
		if err == nil && !info.Ready {
			err = errors.New("not ready")
		}
		return err
	})
}

// TestRealSnapshotOnAnotherHost starts a sandbox from the snapshot store on a
// host that has neither the capture nor the template.
func TestRealSnapshotOnAnotherHost(t *testing.T) {
	h := newHost(t)
	store := filepath.Join(filepath.Dir(h.data), "snapshots")
	h.env = append(h.env, "BERTH_SNAPSHOT_STORE=file://"+store)
	h.start()
	id := rid('s', 0)
	h.make(id, hostapi.BoxSpec{Template: "base"})
	h.sh(id, witness)
	h.sh(id, "head -c 5000000 /dev/urandom > /root/data && sha256sum /root/data > /root/sum && sync")
	pid, _ := h.sees(id)
	for _, name := range []string{"snap-1", "snap-2"} {
		_, err := h.client.PutCapture(t.Context(), name, hostapi.CaptureSpec{BoxID: id, Generation: 1, Memory: true})
		must(t, err)
		began := time.Now()
		c, err := h.client.StoreCapture(t.Context(), name)
		must(t, err)
		t.Logf("%s stored in %s", name, time.Since(began).Round(time.Millisecond))
		if !c.Stored {
			t.Errorf("capture = %+v", c)
		}
	}
	must(t, h.client.DeleteBox(t.Context(), id, 1))
	h.kill()
	h.run("purge")

	// Another host: nothing of the first one is there.
	fresh := t.TempDir()
	for d := fresh; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755))
	}
	h.data = filepath.Join(fresh, "data")
	h.env = append(h.env, "BERTH_DATA_DIR="+h.data, "BERTH_TEMPLATE_DIR="+filepath.Join(fresh, "templates"))
	h.serve()
	for i, name := range []string{"snap-1", "snap-2"} {
		child := rid('t', i)
		began := time.Now()
		h.make(child, hostapi.BoxSpec{Capture: name})
		t.Logf("%s fetched and started in %s", name, time.Since(began).Round(time.Millisecond))
		if p, _ := h.sees(child); p != pid {
			t.Errorf("the witness has pid %d, and had %d", p, pid)
		}
		h.sh(child, "sha256sum -c /root/sum")
	}
	// From its disk alone, too.
	cold := rid('t', 2)
	h.make(cold, hostapi.BoxSpec{Capture: "snap-1", Boot: hostapi.BootCold})
	h.sh(cold, "sha256sum -c /root/sum")

	// One that is damaged is refused by name, and leaves nothing.
	for _, name := range []string{"snap-1", "snap-2"} {
		must(t, h.client.DeleteCapture(t.Context(), name, false))
	}
	must(t, os.Truncate(filepath.Join(store, "snapshots", "snap-1"), 1000))
	if _, err := h.try(rid('t', 3), hostapi.BoxSpec{Capture: "snap-1"}); !hostapi.HasCode(err, hostapi.CodeBadSnapshot) || !strings.Contains(err.Error(), "snap-1") {
		t.Errorf("a damaged snapshot: %v", err)
	}
	must(t, h.client.DeleteCapture(t.Context(), "snap-2", true))
	if _, err := h.try(rid('t', 4), hostapi.BoxSpec{Capture: "snap-2"}); !hostapi.HasCode(err, hostapi.CodeNoSnapshot) {
		t.Errorf("a deleted snapshot: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(h.data, "captures", "*")); len(left) > 0 {
		t.Errorf("left of captures: %v", left)
	}
}

func TestRealVolumes(t *testing.T) {
	h := newHost(t)
	h.start()
	const vol = "vol-realtest"
	_, err := h.client.PutVolume(t.Context(), vol, hostapi.VolumeSpec{WorkspaceID: "ws", SizeMB: 256})
	must(t, err)
	spec := hostapi.BoxSpec{Template: "base", Volumes: []hostapi.VolumeAttach{{ID: vol, MountPath: "/data"}}}
	first := rid('v', 0)
	h.make(first, spec)
	h.sh(first, "findmnt -no FSTYPE /data | grep -qx ext4 && head -c 20000000 /dev/urandom > /data/f && sha256sum /data/f > /data/sum && sync")
	v, err := h.client.Volume(t.Context(), vol)
	must(t, err)
	if v.AttachedTo != first || v.UsedBytes < 20_000_000 {
		t.Errorf("volume = %+v", v)
	}
	if _, err := h.try(rid('v', 1), spec); !hostapi.HasCode(err, hostapi.CodeInUse) {
		t.Errorf("a second box with it: %v", err)
	}
	if err := h.client.DeleteVolume(t.Context(), vol); !hostapi.HasCode(err, hostapi.CodeInUse) {
		t.Errorf("delete of an attached volume: %v", err)
	}
	// It sleeps and wakes with its box, and is its box's after a restart.
	_, err = h.client.Hibernate(t.Context(), first)
	must(t, err)
	h.kill()
	h.start()
	if v, err := h.client.Volume(t.Context(), vol); err != nil || v.AttachedTo != first {
		t.Errorf("after a restart: %+v, %v", v, err)
	}
	box, err := h.client.Wake(t.Context(), first)
	must(t, err)
	h.sh(first, "sha256sum -c /data/sum && echo more > /data/g && sync -f /data/g")
	// What was flushed outlives a VMM that is killed.
	must(t, syscall.Kill(box.VMMPID, syscall.SIGKILL))
	must(t, h.client.DeleteBox(t.Context(), first, 1))
	second := rid('v', 2)
	h.make(second, spec)
	if got := h.sh(second, "sha256sum -c /data/sum >/dev/null && cat /data/g"); got != "more" {
		t.Errorf("the next box reads %q", got)
	}
	must(t, h.client.DeleteBox(t.Context(), second, 1))
	for range 2 {
		must(t, h.client.DeleteVolume(t.Context(), vol))
	}
	if left, _ := filepath.Glob(filepath.Join(h.data, "volumes", "*")); len(left) > 0 {
		t.Errorf("left of volumes: %v", left)
	}
}

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
