package vmm

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// superviseInterval is how often the event monitor's file is read for a reboot, and
// the end of the console saved. A kernel takes longer to boot, so no program of the
// rebooted guest runs for long.
const superviseInterval = 500 * time.Millisecond

// consoleEnd is how much of the console is kept, in bytes.
const consoleEnd = 4 << 10

// rebootWatch detects from a VMM's events that its guest rebooted.
type rebootWatch struct {
	seen atomic.Bool

	mu      sync.Mutex
	log     *EventLog
	console string
}

// poll reads the events that were added before the call, so that it ends even if the
// VMM writes without end, and reports whether one was a reboot.
func (w *rebootWatch) poll() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if st, err := os.Lstat(w.log.path); err == nil {
		w.readTo(st.Size())
	}
	return w.seen.Load()
}

// follow saves the end of the guest's serial console, and reports whether the guest
// has rebooted. At a reboot a VMM first writes the event, then makes the console's
// file anew (vm_reboot in vmm/src/lib.rs): so a console that is read before the
// events is from before the reboot.
func (w *rebootWatch) follow(serial string) bool {
	end := LogEnd(serial, consoleEnd)
	if w.poll() {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.console = end
	return false
}

// readTo reads the events up to an offset, and some after it. A file that cannot be
// read is ignored: it is the VMM's own, and the VMM's end is noticed in other ways.
// The caller holds the lock.
func (w *rebootWatch) readTo(end int64) {
	for {
		events, _ := w.log.Next()
		for _, e := range events {
			if e.Source == "vm" && e.Event == "rebooting" {
				w.seen.Store(true)
			}
		}
		if len(events) == 0 || w.log.off >= end {
			return
		}
	}
}

// trim frees the space of the events that were read.
func (w *rebootWatch) trim() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = trimLog(w.log.path, w.log.off)
}

// Supervise watches the VMM until it ends. Whoever started or adopted the process
// calls it once.
//
// It kills the VMM once its guest has rebooted, also before this call. A VMM boots
// such a guest again from the kernel (Reset in control_loop, vm_reboot in
// vmm/src/lib.rs; a triple fault counts as one): a guest without the memory and the
// identity that its sandbox should have.
//
// It saves the end of the console for LastConsole.
//
// It trims the files that the guest can make grow: the log, the serial console's and
// the events. One that cannot be trimmed is not a file that the VMM was given.
func (p *Process) Supervise() {
	w := &rebootWatch{log: NewEventLog(p.EventsPath())}
	p.reboots.Store(w)
	go func() {
		tick := time.NewTicker(superviseInterval)
		defer tick.Stop()
		for {
			if w.follow(SerialPath(p.dir)) {
				// It may have ended, and no other error can come of it.
				_ = p.sendSignal(unix.SIGKILL)
				return
			}
			w.trim()
			_ = trimLog(LogPath(p.dir), -1)
			_ = trimLog(SerialPath(p.dir), -1)
			select {
			case <-p.done:
				return
			case <-tick.C:
			}
		}
	}()
}

// LastConsole returns the end of the guest's serial console, at most 4 KiB, as of up
// to half a second before the guest rebooted. A kernel with panic=1 waits longer than
// that after a panic, so its message is there.
func (p *Process) LastConsole() string {
	w := p.reboots.Load()
	if w == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.console
}

// Rebooted reports whether the guest has rebooted. Supervise must have been called.
func (p *Process) Rebooted() bool {
	w := p.reboots.Load()
	return w != nil && w.poll()
}
