package vmm

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestANiceHostHasNiceGuests(t *testing.T) {
	if _, err := os.Stat("/proc/self/autogroup"); err != nil {
		t.Skip("this kernel does not group sessions")
	}
	guest := exec.Command("sleep", "60")
	guest.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := guest.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = guest.Process.Kill()
		_ = guest.Wait()
	}()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread, whose nice value this is, ends
		err := unix.Setpriority(unix.PRIO_PROCESS, 0, 7)
		beAsNice(guest.Process.Pid)
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", guest.Process.Pid))
	if err != nil || !strings.HasSuffix(string(raw), " nice 7\n") {
		t.Errorf("its session is %q, %v", raw, err)
	}
}
