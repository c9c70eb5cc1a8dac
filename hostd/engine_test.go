package hostd

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
)

func TestWhoMayOpenKVM(t *testing.T) {
	for _, c := range []struct {
		name   string
		mode   fs.FileMode
		gid    int
		groups []int
		ok     bool
	}{
		{"the group kvm", 0o660, 104, []int{104}, true},
		{"everybody", 0o666, 0, nil, true},
		{"root alone", 0o600, 0, nil, false},
		{"root alone, and a group that is not let in", 0o600, 104, nil, false},
		{"a group that may only read", 0o640, 104, nil, false},
		{"root's group", 0o660, 0, nil, false},
	} {
		groups, err := kvmGroups(c.mode, c.gid)
		if (err == nil) != c.ok || !slices.Equal(groups, c.groups) {
			t.Errorf("%s: groups %v, %v; want %v, allowed: %t", c.name, groups, err, c.groups, c.ok)
		}
		if err != nil && !strings.Contains(err.Error(), "chmod 0660 /dev/kvm") {
			t.Errorf("%s: %v names no remedy", c.name, err)
		}
	}
}
