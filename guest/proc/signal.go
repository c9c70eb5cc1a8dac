package proc

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// SignalName is a signal's name without SIG: "KILL", "RTMIN+2".
func SignalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return "RTMIN" + realtimeSuffix(int(s))
}

// rtMin is the C library's SIGRTMIN: it keeps the kernel's first two for itself.
const rtMin = 34

func realtimeSuffix(n int) string {
	switch {
	case n > rtMin:
		return "+" + strconv.Itoa(n-rtMin)
	case n < rtMin:
		return "-" + strconv.Itoa(rtMin-n)
	}
	return ""
}

// ParseSignal reads a name, with or without SIG, in any case. 0 is no signal.
func ParseSignal(name string) syscall.Signal {
	name = strings.ToUpper(name)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	return unix.SignalNum(name)
}

// ExitCode is how a shell reports a process's end: its exit code, or 128+n and
// the name of signal n.
func ExitCode(status syscall.WaitStatus) (int, string) {
	if status.Signaled() {
		return 128 + int(status.Signal()), SignalName(status.Signal())
	}
	return status.ExitStatus(), ""
}
