package guard

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// lockMemory keeps the process in memory: what it has touched, what it will touch, and
// all of its program, of which a part that never ran before would be read from a disk.
// It does not lock what is only reserved, which Go does generously.
func lockMemory() error {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("lock memory: %w", err)
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || !strings.HasPrefix(fields[5], "/") {
			continue // not of a file
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err != nil {
			return fmt.Errorf("/proc/self/maps: %q: %w", fields[0], err)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MLOCK, from, to-from, 0); errno != 0 {
			return fmt.Errorf("lock %s: %w", fields[5], errno)
		}
	}
	return nil
}
