package chvemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
	"github.com/berth-cloud/berth/vmm/chvemu/qmp"
)

// commandTimeout bounds one command that QEMU answers at once.
var commandTimeout = timescale.Limit(30 * time.Second)

// startTimeout bounds the time from QEMU's start to its first answer.
var startTimeout = timescale.Limit(30 * time.Second)

// machine is one QEMU process.
type machine struct {
	qmp     *qmp.Client
	version string // of QEMU
	cmd     *exec.Cmd
	stderr  *tailWriter
	// private is the file that the RAM is mapped from privately, or nil. It is
	// held open: what is saved later is a clone of it, whatever its name is then.
	private *os.File

	// done is closed when the process has ended and was waited for.
	done chan struct{}

	mu       sync.Mutex
	reason   string // of the last SHUTDOWN event
	migrated chan string
	removed  func(m *machine, qdev string)
}

// spec says what to start.
type spec struct {
	line commandLine
	// private is the file behind the RAM when it is mapped privately; QEMU must
	// not open it for writing.
	private string
	// keep is passed on and never used: a lock that is to last as long as QEMU.
	keep *os.File
	// removed is called when the guest has released a device, by the goroutine that
	// reads QEMU's answers: it must not wait for one.
	removed func(m *machine, qdev string)
}

// startMachine starts QEMU and waits until it takes commands. QEMU gets copies
// of the files in the specification; the caller closes its own.
func startMachine(ctx context.Context, log *slog.Logger, s spec) (*machine, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	s.line.add("-chardev", "socket,id=qmp,fd="+s.line.file(theirs), "-mon", "chardev=qmp,mode=control")
	if s.keep != nil {
		s.line.file(s.keep)
	}
	m := &machine{
		done: make(chan struct{}), migrated: make(chan string, 1), removed: s.removed,
		stderr: &tailWriter{log: log},
	}
	qemu := vmm.QEMU()
	m.cmd = exec.Command(qemu, s.line.args...)
	m.cmd.Dir = "/"
	m.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	m.cmd.ExtraFiles = s.line.files
	m.cmd.Stdout, m.cmd.Stderr = m.stderr, m.stderr
	// The kernel kills QEMU when the thread that started it ends, for whatever
	// reason; keep holds that thread for as long as QEMU runs.
	if s.private != "" {
		if m.private, err = os.Open(s.private); err != nil {
			ours.Close()
			return nil, err
		}
	}
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go m.keep(s.private, started)
	if err := <-started; err != nil {
		ours.Close()
		m.closePrivate()
		return nil, fmt.Errorf("start %s: %w", qemu, err)
	}
	theirs.Close() // or its end would not be noticed while QEMU starts
	m.qmp, m.version, err = qmp.Connect(ctx, ours, m.event)
	if err == nil {
		// The greeting comes before the machine is built; an answer to this
		// comes after.
		err = m.qmp.Execute(ctx, "query-status", nil, nil)
	}
	if err != nil {
		m.kill()
		return nil, m.explain(err)
	}
	return m, nil
}

// keep starts QEMU, and waits for it, on one thread.
func (m *machine) keep(private string, started chan<- error) {
	// Never unlocked: a filter stays on this thread, which ends with it.
	runtime.LockOSThread()
	if private != "" {
		gate, err := installGate(private)
		if err != nil {
			started <- err
			return
		}
		defer gate.close()
	}
	if err := m.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	_ = m.cmd.Wait() // what it says is in ProcessState
	close(m.done)
}

func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fds[0]), "qmp")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		unix.Close(fds[1])
		return nil, nil, err
	}
	return conn.(*net.UnixConn), os.NewFile(uintptr(fds[1]), "qmp-peer"), nil
}

// event notes what QEMU tells. It runs on the goroutine that reads answers.
func (m *machine) event(e qmp.Event) {
	var data struct {
		Reason string `json:"reason"`
		Status string `json:"status"`
		Device string `json:"device"`
	}
	if len(e.Data) > 0 {
		_ = json.Unmarshal(e.Data, &data) // an event without these fields is not handled
	}
	switch e.Name {
	case "SHUTDOWN":
		m.mu.Lock()
		m.reason = data.Reason
		m.mu.Unlock()
	case "MIGRATION":
		switch data.Status {
		case "completed", "failed", "cancelled":
			select {
			case m.migrated <- data.Status:
			default:
			}
		}
	case "DEVICE_DELETED":
		if data.Device != "" && m.removed != nil {
			m.removed(m, data.Device)
		}
	}
}

// command runs a command of QEMU's.
func (m *machine) command(name string, args, out any, files ...*os.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return m.qmp.Execute(ctx, name, args, out, files...)
}

// kill ends QEMU and waits for it. What the guest wrote is in the host's page
// cache by then, except for writes in flight.
func (m *machine) kill() {
	_ = m.cmd.Process.Kill() // it may have ended
	<-m.done
	if m.qmp != nil {
		m.qmp.Close()
	}
	m.closePrivate()
}

func (m *machine) closePrivate() {
	if m.private != nil {
		m.private.Close()
		m.private = nil
	}
}

// shutdownReason is why the guest ended, as QEMU said: "guest-shutdown",
// "guest-reset", or empty when it said nothing.
func (m *machine) shutdownReason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reason
}

// status is how the process ended. It may be called once done is closed.
func (m *machine) status() syscall.WaitStatus {
	ws, _ := m.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ws
}

// explain adds what QEMU printed to an error that its end caused.
func (m *machine) explain(err error) error {
	if !errors.Is(err, qmp.ErrClosed) && !errors.Is(err, context.DeadlineExceeded) && m.qmp != nil {
		return err
	}
	if text := m.stderr.last(); text != "" {
		return fmt.Errorf("QEMU: %s", text)
	}
	return err
}

// tailWriter sends lines to the log and keeps the last ones.
type tailWriter struct {
	log  *slog.Logger
	mu   sync.Mutex
	tail string
}

func (t *tailWriter) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.tail += string(p)
	if extra := len(t.tail) - 2048; extra > 0 {
		t.tail = t.tail[extra:]
	}
	t.mu.Unlock()
	for line := range strings.Lines(string(p)) {
		t.log.Warn("QEMU says", "text", strings.TrimSpace(line))
	}
	return len(p), nil
}

func (t *tailWriter) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(t.tail)
}
