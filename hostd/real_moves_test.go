package hostd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// rid makes box ids.
func rid(c byte, i int) string { return strings.Repeat(string(c), 25) + string(rune('a'+i)) }

func (h *host) try(id string, spec hostapi.BoxSpec) (hostapi.Box, error) {
	spec.Generation, spec.WorkspaceID = 1, "ws"
	return h.client.PutBox(h.t.Context(), id, spec)
}

func (h *host) make(id string, spec hostapi.BoxSpec) hostapi.Box {
	h.t.Helper()
	b, err := h.try(id, spec)
	if err != nil {
		h.t.Fatalf("put %+v: %v", spec, err)
	}
	return b
}

// witness is a process that holds what a guest has in memory: an open file that
// has no name any more, a counter that counts, a tmpfs.
const witness = `mkdir -p /mnt/t && mount -t tmpfs none /mnt/t && echo on-tmpfs > /mnt/t/f && sync
cat > /root/witness.py <<'X'
import os, time
f = open('/root/gone', 'w+'); f.write('unlinked'); f.flush(); os.unlink('/root/gone')
big = bytearray(os.urandom(1 << 20)) * 32
n = 0
while True:
    n += 1
    f.seek(0)
    with open('/dev/shm/witness.tmp', 'w') as o:
        o.write('%d %s %d %d' % (os.getpid(), f.read(), n, len(big)))
    os.rename('/dev/shm/witness.tmp', '/dev/shm/witness')
    time.sleep(0.05)
X
setsid python3 /root/witness.py </dev/null >/dev/null 2>&1 &
while ! [ -s /dev/shm/witness ]; do sleep 0.05; done`

// sees checks that the witness lives on, and returns its pid and its count.
func (h *host) sees(id string) (pid, count int) {
	h.t.Helper()
	out := h.sh(id, "cat /mnt/t/f; cat /dev/shm/witness; sleep 0.3; echo; cat /dev/shm/witness")
	var tmpfs, file string
	var big, pid2, count2 int
	if _, err := fmt.Sscan(out, &tmpfs, &pid, &file, &count, &big, &pid2, &file, &count2, &big); err != nil {
		h.t.Fatalf("the witness says %q: %v", out, err)
	}
	if tmpfs != "on-tmpfs" || file != "unlinked" || big != 32<<20 || pid != pid2 || count2 <= count {
		h.t.Errorf("the witness says %q", out)
	}
	return pid, count2
}

func TestRealHibernateAndWake(t *testing.T) {
	h := newHost(t)
	h.start()
	id := rid('g', 0)
	h.make(id, hostapi.BoxSpec{Template: "base"})
	h.sh(id, witness)
	pid, count := h.sees(id)
	key, machine := h.sh(id, "cat /etc/ssh/ssh_host_ed25519_key.pub"), h.sh(id, "cat /etc/machine-id")
	for round := range 3 {
		began := time.Now()
		slept, err := h.client.Hibernate(t.Context(), id)
		must(t, err)
		hibernated := time.Since(began)
		if slept.Status != hostapi.StatusHibernated || slept.VMMPID != 0 {
			t.Errorf("hibernated: %+v", slept)
		}
		if left := h.processes(); len(left) > 0 {
			t.Errorf("processes of a hibernated box: %v", left)
		}
		if round == 1 { // the daemon is killed in between
			h.kill()
			h.start()
		}
		if round == 2 { // and the host was rebooted: its namespaces are gone
			h.kill()
			h.loseNetwork()
			h.start()
		}
		began = time.Now()
		_, err = h.client.Wake(t.Context(), id)
		must(t, err)
		woken := time.Since(began)
		h.sh(id, "true")
		t.Logf("hibernate %s, wake %s, first exec %s", hibernated.Round(time.Millisecond), woken.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		p, c := h.sees(id)
		if p != pid || c <= count {
			t.Errorf("round %d: pid %d, count %d; before %d, %d", round, p, c, pid, count)
		}
		count = c
		h.tellsTheTime(id)
		if k, m := h.sh(id, "cat /etc/ssh/ssh_host_ed25519_key.pub"), h.sh(id, "cat /etc/machine-id"); k != key || m != machine {
			t.Errorf("it is somebody else: %q %q", k, m)
		}
	}
	must(t, h.client.DeleteBox(t.Context(), id, 1))
	if left := h.left(id); len(left) > 0 {
		t.Errorf("left after the delete: %s", strings.Join(left, "\n  "))
	}
}

// loseNetwork removes what a reboot does not bring back.
func (h *host) loseNetwork() {
	h.t.Helper()
	found, err := filepath.Glob("/run/netns/berth-" + hostID + "-*")
	must(h.t, err)
	for _, path := range found {
		must(h.t, errors.Join(syscall.Unmount(path, syscall.MNT_DETACH), os.Remove(path)))
	}
}

func TestRealCaptureAndChildren(t *testing.T) {
	h := newHost(t)
	h.env = append(h.env, "BERTH_MEMORY_MB=8192")
	h.start()
	parent := rid('h', 0)
	h.make(parent, hostapi.BoxSpec{Template: "base", Hostname: "parent"})
	h.sh(parent, witness)
	pid, _ := h.sees(parent)
	h.sh(parent, "echo on-disk > /root/kept && sync")
	began := time.Now()
	c, err := h.client.PutCapture(t.Context(), "fork-1", hostapi.CaptureSpec{BoxID: parent, Generation: 1, Memory: true, Transient: true})
	must(t, err)
	t.Logf("capture %s, the parent stood still %d ms, %d MB memory, %d MB disk", time.Since(began).Round(time.Millisecond), c.PauseMS, c.MemoryBytes>>20, c.DiskBytes>>20)
	h.sees(parent)

	const n = 4
	began = time.Now()
	var wg sync.WaitGroup
	boxes := make([]hostapi.Box, n)
	for i := range n {
		wg.Go(func() {
			var err error
			if boxes[i], err = h.try(rid('i', i), hostapi.BoxSpec{Capture: "fork-1"}); err != nil {
				t.Errorf("child %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	t.Logf("%d children in %s\n%s", n, time.Since(began).Round(time.Millisecond), stages(boxes[n-1]))
	all := []string{parent}
	for i := range n {
		id := rid('i', i)
		all = append(all, id)
		if p, _ := h.sees(id); p != pid {
			t.Errorf("child %d: the witness has pid %d, the parent's %d", i, p, pid)
		}
		if got := h.sh(id, "cat /root/kept"); got != "on-disk" {
			t.Errorf("child %d: %q", i, got)
		}
	}
	for what, script := range map[string]string{
		"getrandom":    "python3 -c 'import os; print(os.getrandom(16).hex())'",
		"urandom":      "head -c 16 /dev/urandom | od -An -tx1",
		"uuid":         "cat /proc/sys/kernel/random/uuid",
		"machine id":   "cat /etc/machine-id",
		"hostname":     "hostname",
		"ssh host key": "cat /etc/ssh/ssh_host_ed25519_key.pub",
	} {
		seen := map[string]string{}
		for _, id := range all {
			got := h.sh(id, script)
			if seen[got] != "" || got == "" {
				t.Errorf("%s is %q in %s and %s", what, got, seen[got], id)
			}
			seen[got] = id
		}
	}

	// The capture goes; its children sleep, wake and are forked all the same.
	must(t, h.client.DeleteCapture(t.Context(), "fork-1", false))
	if left, _ := filepath.Glob(filepath.Join(h.data, "captures", "*")); len(left) > 0 {
		t.Errorf("left of the capture: %v", left)
	}
	child := rid('i', 0)
	_, err = h.client.Hibernate(t.Context(), child)
	must(t, err)
	_, err = h.client.Wake(t.Context(), child)
	must(t, err)
	if p, _ := h.sees(child); p != pid {
		t.Errorf("the child that slept has a witness with pid %d", p)
	}
	_, err = h.client.PutCapture(t.Context(), "fork-2", hostapi.CaptureSpec{BoxID: child, Generation: 1, Memory: true})
	must(t, err)
	// The daemon is killed: the capture is still there, and its parent runs.
	h.kill()
	h.start()
	grandchild := rid('j', 0)
	h.make(grandchild, hostapi.BoxSpec{Capture: "fork-2"})
	if p, _ := h.sees(grandchild); p != pid {
		t.Errorf("the grandchild has a witness with pid %d", p)
	}
	booted := rid('j', 1)
	h.make(booted, hostapi.BoxSpec{Capture: "fork-2", Boot: hostapi.BootCold})
	if got := h.sh(booted, "cat /root/kept; ls /dev/shm"); got != "on-disk" {
		t.Errorf("booted from the disk: %q", got)
	}
	must(t, h.client.DeleteCapture(t.Context(), "fork-2", false))
	all = append(all, grandchild, booted)
	for _, id := range all {
		must(t, h.client.DeleteBox(t.Context(), id, 1))
	}
	if left := h.left(all...); len(left) > 0 {
		t.Errorf("left after the deletes: %s", strings.Join(left, "\n  "))
	}
}

func TestRealWarmFork(t *testing.T) {
	h := newHost(t)
	h.start()
	parent, child := rid('k', 0), rid('k', 1)
	was := h.make(parent, hostapi.BoxSpec{Template: "base", Hostname: "parent"})
	h.sh(parent, witness)
	pid, _ := h.sees(parent)
	box := h.make(child, hostapi.BoxSpec{WarmFrom: parent, Hostname: "child"})
	t.Logf("warm fork %s, the parent stood still %d ms when it was saved\n%s", box.CreateDuration, box.PauseMS, stages(box))
	if box.Slot != was.Slot || box.PauseMS == 0 {
		t.Errorf("child = %+v, parent's slot %d", box, was.Slot)
	}
	if p, _ := h.sees(child); p != pid {
		t.Errorf("the child's witness has pid %d", p)
	}
	got, err := h.client.GetBox(t.Context(), parent)
	must(t, err)
	if got.Status != hostapi.StatusPaused {
		t.Errorf("parent = %+v", got)
	}
	h.kill() // the stopped parent is still there afterwards
	h.start()
	resumed, err := h.client.Resume(t.Context(), parent)
	must(t, err)
	if resumed.Slot == box.Slot {
		t.Errorf("both are in slot %d", box.Slot)
	}
	if p, _ := h.sees(parent); p != pid {
		t.Errorf("the parent's witness has pid %d", p)
	}
	if a, b := h.sh(parent, "hostname"), h.sh(child, "hostname"); a != "parent" || b != "child" {
		t.Errorf("hostnames %q, %q", a, b)
	}
	for _, id := range []string{parent, child} {
		must(t, h.client.DeleteBox(t.Context(), id, 1))
	}
	if left := h.left(parent, child); len(left) > 0 {
		t.Errorf("left after the deletes: %s", strings.Join(left, "\n  "))
	}
}

func TestRealRebootOfTheHost(t *testing.T) {
	h := newHost(t)
	h.start()
	kept, lost := rid('l', 0), rid('l', 1)
	must(t, h.volume("vol-reboot"))
	h.make(kept, hostapi.BoxSpec{Template: "base", Persistent: true, Hostname: "kept", Volumes: []hostapi.VolumeAttach{{ID: "vol-reboot", MountPath: "/data"}}})
	h.make(lost, hostapi.BoxSpec{Template: "base"})
	h.sh(kept, "echo on-disk > /root/kept; echo on-volume > /data/kept; sync; sync /data/kept")
	key := h.sh(kept, "cat /etc/ssh/ssh_host_ed25519_key.pub")
	h.kill()
	for _, id := range []string{kept, lost} {
		h.killVM(id)
	}
	must(t, os.RemoveAll(filepath.Join("/run/berth", hostID)))
	await(t, "their processes are gone", 10*time.Second, func() error {
		if left := h.processes(); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	h.loseNetwork()
	h.start()
	await(t, "the persistent box runs again", 60*time.Second, func() error {
		b, err := h.client.GetBox(t.Context(), kept)
		if err != nil || b.Status != hostapi.StatusRunning {
			return fmt.Errorf("%s %s: %w", b.Status, b.Error, err)
		}
		return nil
	})
	if got := h.sh(kept, "cat /root/kept /data/kept; hostname"); got != "on-disk\non-volume\nkept" {
		t.Errorf("after the reboot: %q", got)
	}
	if got := h.sh(kept, "cat /etc/ssh/ssh_host_ed25519_key.pub"); got != key {
		t.Errorf("its host key was %q and is %q", key, got)
	}
	if b, err := h.client.GetBox(t.Context(), lost); err != nil || b.Status != hostapi.StatusFailed {
		t.Errorf("the other box is %s, %v; want failed", b.Status, err)
	}
	// Volumes sleep and wake with it.
	_, err := h.client.Hibernate(t.Context(), kept)
	must(t, err)
	_, err = h.client.Wake(t.Context(), kept)
	must(t, err)
	if got := h.sh(kept, "cat /data/kept; echo more >> /data/kept && sync /data/kept && tail -1 /data/kept"); got != "on-volume\nmore" {
		t.Errorf("the volume after a wake: %q", got)
	}
	for _, id := range []string{kept, lost} {
		must(t, h.client.DeleteBox(t.Context(), id, 1))
	}
	if left := h.left(kept, lost); len(left) > 0 {
		t.Errorf("left after the deletes: %s", strings.Join(left, "\n  "))
	}
	must(t, h.client.DeleteVolume(t.Context(), "vol-reboot"))
}

func (h *host) volume(id string) error {
	_, err := h.client.PutVolume(h.t.Context(), id, hostapi.VolumeSpec{WorkspaceID: "ws", SizeMB: 64})
	return err
}

// killVM ends the VMM of a box, whose daemon is gone.
func (h *host) killVM(id string) {
	h.t.Helper()
	raw, err := os.ReadFile(filepath.Join("/run/berth", hostID, id, "vmm.json"))
	must(h.t, err)
	var pid int
	_, after, _ := strings.Cut(string(raw), `"pid":`)
	if _, err := fmt.Sscan(strings.TrimRight(strings.SplitN(after, ",", 2)[0], "}"), &pid); err != nil || pid <= 1 {
		h.t.Fatalf("%s: no pid", raw)
	}
	must(h.t, syscall.Kill(pid, syscall.SIGKILL))
}
