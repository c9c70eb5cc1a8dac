package vmm

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// envFake makes the test's own binary a VMM that misbehaves in a chosen way.
const envFake = "BERTH_TEST_FAKE_VMM"

func TestMain(m *testing.M) {
	if mode := os.Getenv(envFake); mode != "" {
		os.Exit(fakeVMM(mode, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// fakeVMM takes the same arguments as a VMM, locks and serves its socket like
// one, and answers nothing but vmm.ping.
func fakeVMM(mode string, args []string) int {
	socket := ""
	for _, a := range args {
		if p, ok := strings.CutPrefix(a, "path="); ok && socket == "" {
			socket = p
		}
	}
	switch mode {
	case "listener":
		if _, err := net.Listen("unix", socket); err != nil {
			return 1
		}
		_ = unix.Pause()
	case "exit":
		fmt.Fprintln(os.Stderr, "cannot start: no such hypervisor")
		return 3
	case "talkative":
		fmt.Fprintln(os.Stderr, strings.Repeat("x", 4*LogMax)+" last words")
	case "silent":
		_ = unix.Pause()
	case "escaped":
		return escapedVMM(socket)
	}
	lock, err := os.OpenFile(socket+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 1
	}
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &lk) != nil {
		fmt.Fprintln(os.Stderr, "the socket is in use")
		return 1
	}
	if mode == "heir" {
		// A child that keeps the lock for a while after this process is killed.
		cmd := exec.Command("sleep", "0.4")
		cmd.ExtraFiles = []*os.File{lock}
		if cmd.Start() != nil {
			return 1
		}
	}
	_ = os.Remove(socket)
	if mode == "impostor" {
		// Another process has the socket.
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = []string{envFake + "=listener"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		_ = cmd.Run()
		return 1
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return 1
	}
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/vmm.ping":
			_ = json.NewEncoder(w).Encode(Pong{Version: "53.0.0", PID: os.Getpid()})
		case "/api/v1/vmm.shutdown":
			os.Exit(7)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	return 0
}
