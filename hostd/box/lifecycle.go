package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

const (
	// lifecycleTimeout bounds one call to a VMM.
	lifecycleTimeout = 30 * time.Second
	// clockTimeout bounds how long a resume waits for its guest's clock.
	clockTimeout = 3 * time.Second
	// stateTimeout bounds the question to a VMM that may be adopted.
	stateTimeout = 5 * time.Second
	// A serial log longer than serialMax keeps its last serialKeep bytes: the
	// guest decides what it writes, and must not fill the host's memory.
	serialMax  = 1 << 20
	serialKeep = 256 << 10
)

// Pause stops a running box's CPUs; its memory stays. A paused box is left as
// it is.
func (h *Host) Pause(ctx context.Context, id string) (hostapi.Box, error) {
	return h.move(ctx, id, ledger.Running, ledger.Paused, func(ctx context.Context, b *box, p VMM) error {
		return p.Pause(ctx)
	})
}

// Resume lets a paused box run on, and sets its clock. A running box is left as
// it is.
func (h *Host) Resume(ctx context.Context, id string) (hostapi.Box, error) {
	return h.move(ctx, id, ledger.Paused, ledger.Running, func(ctx context.Context, b *box, p VMM) error {
		if err := p.Resume(ctx); err != nil {
			return err
		}
		h.setClock(ctx, b)
		return nil
	})
}

// move takes a box from one state to another under its operation lock. It goes
// on when the caller's context ends: half a move is worse than a late one.
func (h *Host) move(ctx context.Context, id string, from, to ledger.State, act func(context.Context, *box, VMM) error) (hostapi.Box, error) {
	b, err := h.lookup(id)
	if err != nil {
		return hostapi.Box{}, err
	}
	if err := b.acquire(ctx); err != nil {
		return hostapi.Box{}, err
	}
	defer b.release()
	b.mu.Lock()
	state, process, leaving := b.rec.State, b.vmm, b.leaving
	b.mu.Unlock()
	switch {
	case leaving == leaveForget:
		return hostapi.Box{}, ErrNotFound
	case leaving != leaveNot:
		return hostapi.Box{}, fmt.Errorf("%w: it is being deleted", ErrIllegalState)
	case state == to:
		v, _ := b.view()
		return v, nil
	case state != from || process == nil:
		return hostapi.Box{}, fmt.Errorf("%w: it is %s", ErrIllegalState, state)
	}
	actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lifecycleTimeout)
	defer cancel()
	if err := act(actx, b, process); err != nil {
		return hostapi.Box{}, fmt.Errorf("move sandbox from %s to %s: %w", from, to, err)
	}
	err = h.commit(b, func(r *ledger.Record) bool {
		if r.State != from {
			return false // its VMM died meanwhile
		}
		r.State = to
		return true
	})
	if err != nil {
		return hostapi.Box{}, err
	}
	event := map[ledger.State]string{ledger.Paused: "sandbox.paused", ledger.Running: "sandbox.resumed"}[to]
	h.log.Info("sandbox was moved", "event", event, "sandbox_id", id, "from", from, "to", to)
	h.notify()
	v, _ := b.view()
	return v, nil
}

// setClock steps the clock of a guest that stood still, and gives it entropy
// anew. The guest runs either way: a failure is a late clock, not a dead box.
func (h *Host) setClock(ctx context.Context, b *box) {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	b.mu.Lock()
	rec := b.rec
	b.mu.Unlock()
	id, err := newIdentity(&rec, h.random, h.cfg.GatewayMAC, h.cfg.Nameservers)
	if err == nil {
		id.SSHHostKeys = nil // it is the same guest and keeps those it has
		err = h.identify(ctx, rec.Slot, id)
	}
	if err != nil {
		h.log.Warn("clock of a resumed sandbox was not set", "sandbox_id", b.id, "error", err)
	}
}

// watch marks the box failed when its VMM ends by itself.
func (h *Host) watch(b *box) {
	b.mu.Lock()
	p := b.vmm
	b.mu.Unlock()
	h.workers.Go(func() {
		select {
		case <-p.Done():
			h.died(b, p)
		case <-h.life.Done():
		}
	})
}

func (h *Host) died(b *box, p VMM) {
	code, signal, known := p.Exit()
	expected := false
	change := func(r *ledger.Record) bool {
		if b.leaving != leaveNot || b.vmm != p || r.State == ledger.Failed {
			expected = true
			return false
		}
		r.State = ledger.Failed
		r.FailedAt = h.now().UTC()
		r.Error = "VMM died: " + exitText(p)
		if known {
			r.ExitCode = &code
			if signal != 0 {
				r.Signal = signalName(signal)
			}
		}
		return true
	}
	if err := h.commit(b, change); err != nil {
		// The next start finds the VMM gone; until then memory tells the truth.
		h.log.Error("the death of a VMM is not in the ledger", "sandbox_id", b.id, "error", err)
		b.mu.Lock()
		change(&b.rec)
		b.mu.Unlock()
	}
	if expected {
		return
	}
	h.notify()
	h.unreserve(b)
	h.metrics.died()
	attrs := []any{"event", "vm.died", "sandbox_id", b.id, "generation", b.generation}
	if known {
		attrs = append(attrs, "exit_code", code, "signal", signalName(signal))
	}
	h.log.Error("VMM died", attrs...)
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

// trimSerialLogs keeps every box's serial log short.
func (h *Host) trimSerialLogs() {
	for _, b := range h.List() {
		if err := trimLog(h.paths.Serial(b.ID)); err != nil && !errors.Is(err, os.ErrNotExist) {
			h.log.Warn("serial log could not be trimmed", "sandbox_id", b.ID, "error", err)
		}
	}
}

// trimLog gives the space of a long log back from its beginning. The VMM goes
// on writing where it is, so the file gets a hole rather than shorter.
//
// The directory belongs to the VMM's user: what lies under the name may be
// anything, and is looked at only once it is open.
func trimLog(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Blocks*512 <= serialMax {
		return nil
	}
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, st.Size-serialKeep)
}
