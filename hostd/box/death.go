package box

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/vmm"
)

// watch marks the box failed when its VMM ends by itself.
func (b *box) watch() {
	b.mu.Lock()
	p := b.vmm
	b.mu.Unlock()
	b.host.work.Go(func() {
		select {
		case <-p.Done():
			b.died(p)
		case <-b.host.work.Life().Done():
		}
	})
}

func (b *box) died(p VMM) {
	code, signal, known := exit(p)
	expected, reserved := false, 0
	change := func(r *ledger.Record) bool {
		if b.removal != removalNone || b.vmm != p || r.State == ledger.Failed || r.State == ledger.Hibernated || r.Stopped {
			expected = true
			return false
		}
		// With the state: what is booted again reserves its own.
		reserved, b.reserved = reserved+b.reserved, 0
		r.Enter(ledger.Failed)
		r.FailedAt = b.host.now().UTC()
		r.Error = b.endReason(p)
		if known {
			r.ExitCode = &code
			if signal != 0 {
				r.Signal = signalName(signal)
			}
		}
		return true
	}
	if err := b.commit(change); err != nil {
		// The next start finds the VMM gone; until then memory tells the truth.
		b.host.log.Error("the death of a VMM is not in the ledger", "sandbox_id", b.id, "error", err)
		b.amend(func(r *ledger.Record) { change(r) })
	}
	if expected {
		return
	}
	b.host.memory.add(-reserved)
	b.host.notify()
	b.host.metrics.died()
	b.reportDeath(p)
}

// reportDeath logs the unexpected end of a VMM and emits its event. How a VMM
// ended that an earlier daemon started is not known: only the parent of a
// process learns its exit status.
func (b *box) reportDeath(p VMM) {
	b.mu.Lock()
	reason := b.endReason(p)
	b.mu.Unlock()
	attrs := []any{"event", "vm.died", "sandbox_id", b.id, "generation", b.generation, "reason", reason}
	meta := map[string]any{"exit_code": nil, "signal": nil}
	if code, signal, known := exit(p); known {
		attrs = append(attrs, "exit_code", code, "signal", signalName(signal))
		if signal != 0 {
			meta["signal"] = signalName(signal)
		} else {
			meta["exit_code"] = code
		}
	}
	log, console := b.lastLogs(p)
	if log != "" {
		attrs = append(attrs, "vmm_log", log)
	}
	if console != "" {
		attrs = append(attrs, "console", console)
	}
	b.host.log.Error("VMM died", attrs...)
	b.host.events.Emit(b.id, hostapi.EventVMDied, reason, meta)
}

// guardReason is why a VMM has ended that the guard of the host has killed.
const guardReason = "the guard of its host ended it: the lease was over, and the host's daemon did not end it"

// endReason says why the box's VMM has ended. Its caller has mu.
func (b *box) endReason(p VMM) string {
	switch {
	case b.fenced != "":
		return b.fenced
	case b.rec.Exclusive && b.host.guarded(b.id):
		return guardReason
	}
	return endText(p)
}

// maxLastLogs bounds what is logged of a log of a dead VMM, in bytes.
const maxLastLogs = 4 << 10

// lastLogs returns the ends of a VMM's log and of its guest's console. After a
// kernel panic only the console says why. The VMM is nil if it was not started.
func (b *box) lastLogs(p VMM) (log, console string) {
	log = vmm.LogEnd(b.host.paths.VMMLog(b.id), maxLastLogs)
	if p != nil && p.Rebooted() {
		return log, p.LastConsole()
	}
	return log, vmm.LogEnd(b.host.paths.Serial(b.id), maxLastLogs)
}

// maxLogQuote bounds what an error quotes of each of the two logs, in bytes.
const maxLogQuote = 1 << 10

// withLogs adds to an error of a launch what the guest and its VMM logged last:
// both files are removed with the box. About a bad request or a damaged capture they say
// nothing, and those errors are told to tenants.
func (b *box) withLogs(p VMM, err error) error {
	if err == nil || errors.Is(err, hosterr.ErrInvalid) || errors.Is(err, hosterr.ErrBadSnapshot) {
		return err
	}
	log, console := b.lastLogs(p)
	for _, said := range []struct{ name, text string }{{"VMM's log", log}, {"console", console}} {
		if said.text != "" {
			err = fmt.Errorf("%w; the %s ends with %q", err, said.name, said.text[max(0, len(said.text)-maxLogQuote):])
		}
	}
	return err
}

func signalName(s syscall.Signal) string {
	if s == 0 {
		return ""
	}
	name := unix.SignalName(s)
	if len(name) > 3 && name[:3] == "SIG" {
		return name[3:]
	}
	return fmt.Sprintf("%d", int(s))
}

// exit is how a VMM ended by itself. A VMM whose guest rebooted was killed by
// this daemon, so its signal says nothing.
func exit(p VMM) (code int, signal syscall.Signal, known bool) {
	if p.Rebooted() {
		return 0, 0, false
	}
	return p.Exit()
}

// endText says why a VM has ended, as far as is known.
func endText(p VMM) string {
	code, signal, known := exit(p)
	switch {
	case p.Rebooted():
		return "the guest rebooted, or its kernel crashed"
	case !known:
		return "VMM died: exit status unknown"
	case signal != 0:
		return "VMM died: killed by signal " + signalName(signal)
	default:
		return fmt.Sprintf("VMM died: exit code %d", code)
	}
}
