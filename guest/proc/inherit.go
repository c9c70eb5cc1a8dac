package proc

import (
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A command starts with the default action for every signal but the C library's
// own, and with none blocked, whatever this process was started with. Exec resets
// handlers, but keeps ignored signals and the mask of the thread that forks. A
// shell without job control makes background jobs ignore interrupts, for example,
// and nohup ignores hang-ups.

// catchIgnored catches and drops the signals that this process was started to
// ignore. The effect here is the same, and children do not inherit it.
var catchIgnored = sync.OnceFunc(func() {
	status, _ := os.ReadFile("/proc/self/status")
	dropped := make(chan os.Signal, 1)
	for _, sig := range ignored(string(status)) {
		signal.Notify(dropped, sig)
	}
})

// ignored reads SigIgn of a /proc/PID/status, without what only a C library may
// handle.
func ignored(status string) (signals []syscall.Signal) {
	for line := range strings.Lines(status) {
		if mask, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			bits, _ := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			bits &^= libcSignals
			for i := range 64 {
				if bits&(1<<i) != 0 {
					signals = append(signals, syscall.Signal(i+1))
				}
			}
		}
	}
	return signals
}

// libcSignals are 32 and 33, by which C libraries cancel threads and change their
// user. Go cannot catch them; a C library that uses them sets its own handlers.
const libcSignals = 1<<31 | 1<<32

// forkExec is syscall.ForkExec from a thread that blocks no signal. (Go's
// runtime blocks all for the fork itself, and gives the child the mask from
// before.)
func forkExec(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	catchIgnored()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none, before unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &before); err != nil {
		return 0, err
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	return syscall.ForkExec(path, argv, attr)
}
