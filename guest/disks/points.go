package disks

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const mountinfo = "/proc/self/mountinfo"

// maxPoints bounds how many mounts are read; a workload may make any number.
const maxPoints = 100_000

// point is one mount.
type point struct {
	device string // "major:minor"; major 0 is no disk
	path   string
	source string
}

func (p point) disk() bool { return !strings.HasPrefix(p.device, "0:") }

func mountPoints() ([]point, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	return parse(f)
}

// parse reads "id parent major:minor root path options tag… - type source options".
func parse(table io.Reader) ([]point, error) {
	var points []point
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, 1<<20) // overlayfs lists its layers
	for lines.Scan() && len(points) < maxPoints {
		mount, fs, ok := strings.Cut(lines.Text(), " - ")
		m, f := strings.Fields(mount), strings.Fields(fs)
		if !ok || len(m) < 6 || len(f) < 2 {
			continue
		}
		points = append(points, point{device: m[2], path: unescape(m[4]), source: unescape(f[1])})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return points, nil
}

// unescape undoes the kernel's \040 for what would end a field.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && octal(s[i+1], '3') && octal(s[i+2], '7') && octal(s[i+3], '7') {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func octal(c, most byte) bool { return c >= '0' && c <= most }

// Sync flushes every file system. It fails if a disk reports an error.
func Sync() error {
	// This includes loop mounts, but reports no errors.
	unix.Sync()
	points, err := mountPoints()
	failed := errors.Join(err, syncfs("/"))
	seen := map[string]bool{}
	for _, p := range points {
		if p.disk() && !seen[p.device] {
			seen[p.device] = true
			failed = errors.Join(failed, syncfs(p.path))
		}
	}
	return failed
}

func syncfs(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT) {
		return nil // a mount over a file, or below another mount
	}
	if err == nil {
		err = unix.Syncfs(fd)
		_ = unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("flush %s: %w", path, err)
	}
	return nil
}

// UnmountAll unmounts the disks but for the root's, the latest mounted first.
// Disks that are still in use stay mounted.
func UnmountAll() error {
	points, err := mountPoints()
	for _, p := range slices.Backward(points) {
		if p.disk() && p.path != "/" {
			if e := unix.Unmount(p.path, 0); e != nil {
				err = errors.Join(err, fmt.Errorf("unmount %s: %w", p.path, e))
			}
		}
	}
	return err
}
