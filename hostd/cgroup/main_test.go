package cgroup

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

const (
	helperEnv = "BERTH_TEST_HELPER" // what a copy of this program does in a group
)

func TestMain(m *testing.M) {
	helper := os.Getenv(helperEnv)
	if helper != "" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
	}
	switch helper {
	case "":
		goleak.VerifyTestMain(m)
	case "spin":
		for i := 0; ; i++ {
			runtime.KeepAlive(i)
		}
	case "eat":
		var all [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += os.Getpagesize() {
				b[i] = 1
			}
			all = append(all, b)
			runtime.KeepAlive(all)
		}
	case "fork":
		// Each copy leaves its session and starts two more, for ever.
		for {
			c := exec.Command("/proc/self/exe")
			c.Stdin = os.Stdin
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if c.Start() == nil {
				_ = c.Process.Release()
			}
		}
	case "sleep":
		_ = unix.Pause()
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// start runs a copy of this program inside the group, as a VMM is started.
func start(t *testing.T, g *Group, helper string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{helperEnv + "=" + helper, "GOMAXPROCS=2"}
	// What outlives a test that was killed sees the end of its input.
	_, err := cmd.StdinPipe()
	check(t, err)
	entry, err := g.Entry()
	check(t, err)
	if entry.V2 != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(entry.V2.Fd())}
	}
	check(t, onOtherThread(func() error {
		for _, dir := range entry.V1 {
			if err := write(dir, "tasks", fmt.Sprint(unix.Gettid())); err != nil {
				return err
			}
		}
		return cmd.Start()
	}))
	check(t, entry.Close())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// onOtherThread runs fn on a thread that ends with it. The main thread, which
// cannot end, would stay in the group.
func onOtherThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with us
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onOtherThread(fn)
			return
		}
		done <- fn()
	}()
	return <-done
}

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}
