package initd

import (
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/boot"
	"github.com/berth-cloud/berth/guest/disks"
)

// termGrace is how long processes may take to end after SIGTERM.
const termGrace = 2 * time.Second

// fifreeze is FIFREEZE of linux/fs.h, _IOWR('X', 119, int).
const fifreeze = 0xc0045877

// shutDown ends every process, leaves the disk clean and switches the machine
// off. It does not return.
func shutDown(log *slog.Logger) {
	_ = unix.Kill(-1, unix.SIGTERM)
	deadline := time.Now().Add(termGrace)
	for othersRun() && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	_ = unix.Kill(-1, unix.SIGKILL)
	for range 100 {
		if !othersRun() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	unix.Sync()
	if err := disks.UnmountAll(); err != nil {
		log.Error("disk not unmounted before power off", "error", err)
	}
	// Freezing writes the journal back and marks the file system clean, which
	// unmounting would do if the root could be unmounted.
	if err := unix.IoctlSetInt(boot.DiskFD, fifreeze, 0); err != nil {
		log.Error("disk not frozen before power off", "error", err)
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		log.Error("power off refused", "error", err)
	}
	// Without ACPI the kernel halts instead; the VM monitor then ends the VM.
	os.Exit(0)
}

// othersRun reaps, and reports whether process 1 still has children. Orphans become
// its children, so this covers every user process.
func othersRun() bool {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err != nil {
			return false
		}
		if pid == 0 {
			return true
		}
	}
}
