package proc

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inherited says to this test binary that it is the one that was started with
// signals ignored.
const inherited = "PROC_TEST_INHERITED"

// A shell that runs its background jobs without job control has them ignore
// interrupts, and a parent may have blocked some: a command knows of neither.
func TestCommandsBeginWithTheUsualHandlingOfSignals(t *testing.T) {
	if os.Getenv(inherited) == "" {
		cmd := exec.Command("/bin/sh", "-c", `trap '' HUP INT QUIT TERM TSTP USR1; exec "$0" -test.run='^`+t.Name()+`$' -test.count=1`, os.Args[0])
		cmd.Env = append(os.Environ(), inherited+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if got := run(t, Spec{Argv: sh("kill -INT $$; sleep 1000")}); got.exit.Signal != "INT" {
		t.Errorf("a command that interrupts itself: %+v", got)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var usr2, blocks unix.Sigset_t
	usr2.Val[0] = 1 << (syscall.SIGUSR2 - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &usr2, &blocks); err != nil {
		t.Fatal(err)
	}
	got := run(t, Spec{Argv: []string{"grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"}})
	if !strings.Contains(got.stdout, "SigBlk:\t"+none+"\n") || len(ignored(got.stdout)) > 0 {
		t.Errorf("a command begins with\n%s", got.stdout)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, nil, &usr2); err != nil || usr2.Val[0]&(1<<(syscall.SIGUSR2-1)) == 0 {
		t.Errorf("the thread that forked blocks %x, %v", usr2.Val[0], err)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &blocks, nil); err != nil {
		t.Fatal(err)
	}
}

var none = strings.Repeat("0", 16)
