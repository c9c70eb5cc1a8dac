package initd

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/proc"
)

// The test program stands in for process 1: it takes in the orphans of what it
// starts, and leaves all waiting to the reaper.
func TestMain(m *testing.M) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("os/signal.loop"))
}

func reaping(t *testing.T) *reaper {
	t.Helper()
	r := newReaper()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		r.run(done)
	}()
	t.Cleanup(func() { close(done); <-ended })
	return r
}

func shell(t *testing.T, r *reaper, line string) (int, <-chan syscall.WaitStatus) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := null.Fd()
	pid, ended, err := r.start("/bin/sh", []string{"sh", "-c", line}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{fd, fd, fd}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return pid, ended
}

func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("waited in vain for %s", what)
		panic("not reached")
	}
}

func TestOwnChildrensEndsAreTold(t *testing.T) {
	r := reaping(t)
	for line, want := range map[string]int{"exit 0": 0, "exit 9": 9, "kill -KILL $$": 137} {
		_, ended := shell(t, r, line)
		if got, _ := proc.ExitCode(await(t, line, ended)); got != want {
			t.Errorf("%q ended with %d, want %d", line, got, want)
		}
	}
}

func TestManyShortLivedChildren(t *testing.T) {
	r := reaping(t)
	var all []<-chan syscall.WaitStatus
	for range 50 {
		_, ended := shell(t, r, "exit 3")
		all = append(all, ended)
	}
	for _, ended := range all {
		if got, _ := proc.ExitCode(await(t, "a child", ended)); got != 3 {
			t.Errorf("got %d", got)
		}
	}
}

func TestOrphansAreReaped(t *testing.T) {
	r := reaping(t)
	_, ended := shell(t, r, "for i in 1 2 3 4 5; do (sleep 0.05 &) ; done")
	await(t, "the parent", ended)
	deadline := time.After(10 * time.Second)
	for children(t) {
		select {
		case <-deadline:
			t.Fatal("orphans are left")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// children says whether this process has any, also dead ones.
func children(t *testing.T) bool {
	t.Helper()
	// Orphans become children of the first thread.
	raw, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw)) != ""
}

func TestProgramThatIsMissingIsAnError(t *testing.T) {
	if _, _, err := newReaper().start("/no/such/program", []string{"x"}, &syscall.ProcAttr{}); err == nil {
		t.Error("started")
	}
}

func TestDescriptionOfAnEnd(t *testing.T) {
	r := reaping(t)
	_, ended := shell(t, r, "exit 4")
	if got := describe(await(t, "the shell", ended)); got != "exit code 4" {
		t.Errorf("got %q", got)
	}
	_, ended = shell(t, r, "kill -TERM $$")
	if got := describe(await(t, "the shell", ended)); got != "killed by terminated" {
		t.Errorf("got %q", got)
	}
}

func TestGuestdInitIsProcessOneOnly(t *testing.T) {
	if err := Run(nil); err == nil {
		t.Error("ran as another process")
	}
}
