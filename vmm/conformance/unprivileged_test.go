package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-cloud/berth/vmm"
	"github.com/berth-cloud/berth/vmm/conformance"
)

// A VMM that runs as a user of its own, without capabilities, restores from
// captured RAM that it may read and not write (open_backing_file in
// vmm/src/memory_manager.rs opens a private zone's file for reading), in a
// network namespace, on a tap that is its own and up, and is saved.
func TestConformanceUnprivileged(t *testing.T) {
	need(t)
	const uid = 654321
	g := theGolden(t)
	f, dir := child(t, g, nil)
	for _, path := range []string{shared.dir, g.dir, filepath.Dir(f.dir)} {
		must(t, os.Chmod(path, 0o711))
	}
	must(t, os.Chmod(g.ram, 0o444))
	must(t, os.Chmod(filepath.Join(dir, "state.json"), 0o444))
	saved := mkdir(t, f.dir, "saved")
	for _, path := range []string{f.dir, dir, filepath.Join(dir, "config.json"), saved, f.orders, f.data} {
		must(t, os.Chown(path, uid, uid))
	}
	// Cloud Hypervisor's device belongs to a group.
	var groups []int
	if st, err := os.Stat("/dev/kvm"); err == nil {
		groups = append(groups, int(st.Sys().(*syscall.Stat_t).Gid))
	}
	runtime := shortDir(t)
	must(t, os.Chmod(runtime, 0o711))
	h := launchHost(t, vmm.Launch{
		Engine: shared.engine, Dir: filepath.Join(runtime, "r"), NetNS: newNetNS(t, "tap0"),
		UID: uid, GID: uid, Groups: groups,
	})
	wantNoPrivileges(t, h.p.PID(), uid)
	guest := restore(t, h, f, dir)
	guest.tag("unprivileged")
	must(t, h.c.Pause(h.ctx()))
	must(t, snapshotTo(h, saved))
	must(t, h.c.Resume(h.ctx()))
	guest.tag("went-on")
	h.kill()
	// The order that came after the capture would be carried out again.
	newFile(t, f.orders, diskSize, "")
	must(t, os.Remove(f.serial))
	restore(t, startHost(t), f, saved).await("the saved tag", func(r conformance.Report) bool {
		return r.Boot == g.report.Boot && r.Tag == "unprivileged" && r.Sum == checksum("unprivileged")
	})
}

func wantNoPrivileges(t *testing.T, pid, uid int) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	none := strings.Repeat("0", 16)
	want := map[string]string{
		"Uid":    fmt.Sprintf("%d\t%d\t%d\t%d", uid, uid, uid, uid),
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none, "NoNewPrivs": "1",
	}
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		if w, ok := want[name]; ok && value != w {
			t.Errorf("%s is %q, want %q", name, value, w)
		}
	}
}
