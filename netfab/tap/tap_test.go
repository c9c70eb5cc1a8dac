package tap

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/tier"
)

// inNetNS runs the test on a thread in a network namespace of its own, which
// ends with the thread.
func inNetNS(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	tier.Root(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		test(t)
	}()
	<-done
}

func TestTapPersistsWithItsOwner(t *testing.T) {
	inNetNS(t, func(t *testing.T) {
		for _, uid := range []int{600001, 600001, 600002} {
			if err := Create("tap0", uid); err != nil {
				t.Error(err)
				return
			}
			link, err := netlink.LinkByName("tap0")
			if err != nil {
				t.Error(err)
				return
			}
			tap, ok := link.(*netlink.Tuntap)
			if !ok || tap.NonPersist || tap.Owner != uint32(uid) || tap.Mode != netlink.TUNTAP_MODE_TAP {
				t.Errorf("tap of %d is %+v", uid, link)
			}
			if tap.Flags&netlink.TUNTAP_VNET_HDR == 0 || tap.Flags&netlink.TUNTAP_NO_PI == 0 || tap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 {
				t.Errorf("tap has flags %x", tap.Flags)
			}
		}
	})
}

func TestOpenTapIsBusy(t *testing.T) {
	inNetNS(t, func(t *testing.T) {
		if err := Create("tap0", 600001); err != nil {
			t.Error(err)
			return
		}
		file, err := Open("tap0")
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := Open("tap0"); !errors.Is(err, ErrBusy) {
			t.Errorf("second Open: %v", err)
		}
		if err := Create("tap0", 600002); !errors.Is(err, ErrBusy) {
			t.Errorf("Create while it is open: %v", err)
		}
		file.Close()
		if file, err = Open("tap0"); err != nil {
			t.Errorf("after it was closed: %v", err)
			return
		}
		file.Close()
	})
}

func TestNameTooLongIsRefused(t *testing.T) {
	if _, err := Open(strings.Repeat("x", 16)); err == nil {
		t.Error("a name of 16 characters was taken")
	}
}
