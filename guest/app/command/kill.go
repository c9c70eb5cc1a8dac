package command

import (
	"errors"
	"os"
	"runtime"
	"strconv"
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
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrNotExist)
	}
	// pid (name) state …; the name may have any character.
	for i := len(raw) - 1; i > 0; i-- {
		if raw[i] == ')' {
			return i+2 < len(raw) && (raw[i+2] == 'Z' || raw[i+2] == 'X')
		}
	}
	return false
}
