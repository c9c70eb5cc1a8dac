package conformance_test

import (
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/vmm"
	"github.com/berth-cloud/berth/vmm/conformance"
)

const guestMAC = "52:54:00:be:47:02"

// newNetNS makes a network namespace with a tap that is up, and returns its path.
func newNetNS(t *testing.T, tap string) string {
	t.Helper()
	path := filepath.Join(shortDir(t), "ns")
	must(t, os.WriteFile(path, nil, 0o600))
	done := make(chan error, 1)
	go func() {
		// The thread stays in the new namespace, and ends with the goroutine.
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
				return err
			}
			link := &netlink.Tuntap{
				LinkAttrs: netlink.LinkAttrs{Name: tap},
				Mode:      netlink.TUNTAP_MODE_TAP,
				Flags:     netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
			}
			if err := netlink.LinkAdd(link); err != nil {
				return err
			}
			return netlink.LinkSetUp(link)
		}()
	}()
	must(t, <-done)
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount network namespace: %v", err)
		}
	})
	return path
}

// A network device on a tap that is there, in the namespace that the VMM was
// started in, and its restore on a tap of the same name in another (open_tap in
// net_util/src/open_tap.rs).
func TestConformanceNet(t *testing.T) {
	need(t)
	const tap = "tap0"
	first := newNetNS(t, tap)
	f := newFiles(t)
	cfg := f.config()
	cfg.Net = []vmm.NetConfig{{ID: "net", Tap: tap, MAC: guestMAC}}
	h := launchHost(t, vmm.Launch{Engine: shared.engine, Dir: filepath.Join(shortDir(t), "r"), NetNS: first})
	g, before := boot(t, h, f, cfg)
	hasLink := func(r conformance.Report) bool {
		for _, mac := range r.Links {
			if mac == guestMAC {
				return true
			}
		}
		return false
	}
	if !hasLink(before) {
		t.Fatalf("the guest has links %v", before.Links)
	}
	nets := h.info().Config.Net
	// open_tap_rx_q_0 fills in the tap's address.
	if len(nets) != 1 || nets[0].Tap != tap || nets[0].MAC != guestMAC || nets[0].HostMAC == "" {
		t.Errorf("vm.info shows %+v", nets)
	}
	must(t, h.c.Pause(h.ctx()))
	saved := mkdir(t, f.dir, "saved")
	must(t, snapshotTo(h, saved))
	copySparse(t, f.ram+"-saved", f.ram)
	must(t, h.c.Resume(h.ctx()))
	g.after(before)

	edit := func(f2 files) string {
		return editSnapshot(t, saved, f2, func(e *vmm.ConfigEdit) {
			must(t, e.SetZone(zoneID, f.ram+"-saved", false))
			must(t, e.SetNetTap("net", tap))
		})
	}
	// The tap is in use, and has one queue.
	same := launchHost(t, vmm.Launch{Engine: shared.engine, Dir: filepath.Join(shortDir(t), "r"), NetNS: first})
	err := same.c.Restore(same.ctx(), vmm.RestoreConfig{SourceURL: vmm.FileURL(edit(newFiles(t)))})
	wantError(t, err, http.StatusInternalServerError, "Error from device manager", "Cannot create virtio-net device")
	same.wantNoVM()

	f2 := newFiles(t)
	h2 := launchHost(t, vmm.Launch{Engine: shared.engine, Dir: filepath.Join(shortDir(t), "r"), NetNS: newNetNS(t, tap)})
	restore(t, h2, f2, edit(f2)).await("its link", func(r conformance.Report) bool { return r.Boot == before.Boot && hasLink(r) })
}
