package vmm

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// beAsNice lets the nice value that a VMM inherits count. The VMM has a session of its
// own, and where the kernel groups sessions (autogroup) a nice value counts within one
// alone, and the session has another. Other kernels lack the file.
func beAsNice(pid int) {
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // the kernel's: 20 - nice
	if nice := 20 - priority; err == nil && nice > 0 {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte(strconv.Itoa(nice)), 0)
	}
}
