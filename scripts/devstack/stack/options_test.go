package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStacksOfDifferentRangesShareNothing(t *testing.T) {
	type owner struct{ hostRange, host int }
	cidrs, uids := map[string]owner{}, map[int]owner{}
	for hostRange := range 8 {
		o := Options{HostRange: hostRange}
		for host := range 8 {
			me := owner{hostRange, host}
			cidr, uid := o.slotCIDR(host), o.baseUID(host)
			if cidr != cidr.Masked() {
				t.Errorf("%v: %s has host bits", me, cidr)
			}
			if other, taken := cidrs[cidr.String()]; taken {
				t.Errorf("%v and %v share %s", me, other, cidr)
			}
			if other, taken := uids[uid]; taken {
				t.Errorf("%v and %v share uid %d", me, other, uid)
			}
			cidrs[cidr.String()], uids[uid] = me, me
		}
	}
}

// The client's module is inside the clone and has a go.mod too.
func TestFindRootFromTheClientsModule(t *testing.T) {
	t.Chdir("../../../controlplane/api")
	root, err := FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "Makefile")); err != nil {
		t.Error(err)
	}
}

func TestBadPortBase(t *testing.T) {
	for _, bad := range []string{"x", "0", "-1", "70000", "65530"} {
		t.Setenv("BERTH_PORT_BASE", bad)
		if _, err := (Options{Root: t.TempDir()}).withDefaults(); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("BERTH_PORT_BASE=%s: got %v", bad, err)
		}
	}
}
