package hostapi

import (
	"strings"
	"testing"
)

func TestMountPaths(t *testing.T) {
	longest := "/" + strings.Repeat("x", MaxMountPath-1)
	for p, bad := range map[string]bool{
		"/data": false, "/usr/local": false, longest: false,
		longest + "x": true, "": true, "data": true, "/": true, "/a/../b": true, "/a/": true, "/a\x00": true, "/a\n": true, "/proc/x": true, "/etc": true,
	} {
		if why := BadMountPath(p); (why != "") != bad {
			t.Errorf("%.40q: %q", p, why)
		}
	}
}
