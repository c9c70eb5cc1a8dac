package command

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// killUser kills every process of a user at once. The kernel sends kill(-1) to all that
// the caller may signal, under the lock that a fork needs: of a fork bomb, too, none
// escapes. So the caller must be that user. A thread can be, alone: it is given to
// nobody else, and ends with its goroutine.
func killUser(uid int) error {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if unix.Gettid() == os.Getpid() {
			// The first thread does not end, and whom it is says who may signal all of
			// the program. While it is held here, the next goroutine is on another.
			defer runtime.UnlockOSThread()
			failed <- killUser(uid)
			return
		}
		// syscall.Setresuid would change all threads.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			failed <- errno
			return
		}
		err := unix.Kill(-1, unix.SIGKILL)
		if errors.Is(err, unix.ESRCH) {
			err = nil
		}
		failed <- err
	}()
	return <-failed
}

// processes lists a user's processes that have not ended.
func processes(uid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat("/proc/"+e.Name(), &st); err != nil || int(st.Uid) != uid || ended(pid) {
			continue
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// ended reports whether a process only waits to be reaped.
func ended(pid int) bool {
	state, _, err := stat(pid)
	if err != nil {
		return errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrNotExist)
	}
	return state == "Z" || state == "X"
}

// stat returns the state and the process group of a process.
func stat(pid int) (state string, group int, err error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", 0, err
	}
	// pid (name) state parent group …; the name may have any character.
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(f) < 3 {
		return "", 0, nil
	}
	group, err = strconv.Atoi(f[2])
	return f[0], group, err
}

// inGroup reports whether a process of a group runs.
func inGroup(group int) bool {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if state, of, err := stat(pid); err == nil && of == group && state != "Z" && state != "X" {
			return true
		}
	}
	return false
}
