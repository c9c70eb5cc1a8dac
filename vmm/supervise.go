package vmm

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// superviseInterval is how often the event monitor's file is looked at for a
// reboot, and the end of the console kept. A kernel takes longer to boot, so that
// no program of the new guest runs for long.
const superviseInterval = 500 * time.Millisecond

// consoleEnd is how much of the console is kept, in bytes.
const consoleEnd = 4 << 10

// rebootWatch finds out from a VMM's events whether its guest rebooted.
type rebootWatch struct {
	seen atomic.Bool

	mu      sync.Mutex
	log     *EventLog
	console string
}

// look reads the events that were added before it began: a VMM that writes without
// end holds up nobody.
func (w *rebootWatch) look() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if st, err := os.Lstat(w.log.path); err == nil {
		w.readTo(st.Size())
	}
	return w.seen.Load()
}

// follow keeps what a guest wrote last to its serial console, and reports whether
// the guest has rebooted. A VMM makes the file anew when its guest reboots, after
// it told of that (vm_reboot in vmm/src/lib.rs): what was read before the events
// were is the rebooted guest's own.
func (w *rebootWatch) follow(serial string) bool {
	end := LogEnd(serial, consoleEnd)
	if w.look() {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.console = end
	return false
}

// readTo reads the events up to an offset, and some after it. A stream that cannot
// be read tells nothing: it is the VMM's own file, and its end is seen in other
// ways. The caller holds the lock.
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

// trim gives back the space of what was read.
func (w *rebootWatch) trim() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = trimLog(w.log.path, w.log.off)
}

// Supervise looks after the VMM until it ends. It is called once, by who started
// or adopted the process.
//
// It kills the VMM once its guest has rebooted, or has before this call. A VMM
// would boot such a guest again in its place, from the kernel (Reset in
// control_loop, vm_reboot in vmm/src/lib.rs; a triple fault is the same to it):
// a machine without the memory and the identity that it is thought to have.
//
// It keeps what the guest said last for LastConsole.
//
// It keeps the files short that grow with what the guest does: the log, the
// serial console's and the events. One that cannot be cut is no file that the
// VMM was given.
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

// LastConsole returns what the guest wrote last to its serial console before it
// rebooted, up to half a second before it did: a kernel that is to be understood
// waits longer than that after it panicked (panic=1). At most 4 KiB.
func (p *Process) LastConsole() string {
	w := p.reboots.Load()
	if w == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.console
}

// Rebooted reports whether the guest has rebooted, which Supervise must have
// been told to look for.
func (p *Process) Rebooted() bool {
	w := p.reboots.Load()
	return w != nil && w.look()
}
