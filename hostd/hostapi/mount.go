package hostapi

import (
	"path"
	"strings"
)

// Limits of a box's volumes.
const (
	MaxVolumes   = 8
	MaxMountPath = 1024 // bytes
)

// Paths that the guest's kernel, its agent and the start of programs need.
// guest/disks refuses them too, and what links lead to.
var (
	reservedTrees = []string{"/proc", "/sys", "/dev", "/run", "/etc/berth", "/var/log/berth"}
	reservedPaths = []string{
		"/", "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin",
		"/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin", "/var", "/var/log",
	}
)

// BadMountPath returns what is wrong with the path of a volume in the guest, or "".
// The control plane and the host ask it, so that neither takes what the other refuses.
func BadMountPath(p string) string {
	switch {
	case !path.IsAbs(p):
		return "must be an absolute path"
	case len(p) > MaxMountPath, strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "has control characters or is too long"
	case path.Clean(p) != p && p != "/":
		return `must have no "..", "." or "//" in it and no "/" at its end`
	}
	for _, r := range reservedPaths {
		if p == r {
			return "is reserved: " + r
		}
	}
	for _, r := range reservedTrees {
		if PathBelow(p, r) {
			return "is reserved: " + r
		}
	}
	return ""
}

// PathBelow reports whether p is dir or in it.
func PathBelow(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
