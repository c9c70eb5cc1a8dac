package slot

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What was made before a host came can be removed while the host is there.
func TestANamespaceIsNotCoveredByALaterMount(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "netns")
	if mounted, err := ShareNetNSDir(dir); err != nil || !mounted {
		t.Fatalf("the first one: %t, %v", mounted, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "one")
	if err := makeNetNS(path); err != nil {
		t.Fatal(err)
	}
	var m machine
	if err := m.claimMount(dir); err != nil || len(m.Mounted) > 0 {
		t.Errorf("the next one has mounted %v, %v", m.Mounted, err)
	}
	// Once, and not detached: this is how others remove it.
	if err := unix.Unmount(path, 0); err != nil {
		t.Errorf("unmount it: %v", err)
	}
	if there, err := isNetNS(path); there || err != nil {
		t.Errorf("it is there still: %t, %v", there, err)
	}
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
}
