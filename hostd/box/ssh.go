package box

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
)

const (
	sshPort = 22
	// sshDelay is how long a new guest is left alone: to answer a probe it starts
	// a server, which takes from what its user is waiting for.
	sshDelay = 3 * time.Second
	// sshDeference is how much longer it is left alone while it is being used.
	sshDeference = 30 * time.Second
	sshPause     = 100 * time.Millisecond
)

// sshTimeout is how long a server may take to greet. One that is given up too
// soon is started once more by the next probe.
var sshTimeout = timescale.Limit(5 * time.Second)

var sshPatience = timescale.Limit(10 * time.Second) // a guest without an SSH server is the rule

// sshProbes is how many guests a host probes at once: sixteen that were forked
// together would start sixteen servers together.
var sshProbes = max(1, runtime.NumCPU()/2)

// probeSSH tells how long the guest's SSH server, if it has one, took to answer:
// from when the guest ran to the first probe that succeeded, without the time for
// which probes were held back. A restored guest stands ready; one that boots is
// still starting its servers, and is asked from the beginning.
func (h *Host) probeSSH(b *box) {
	rec := b.record()
	ready := rec.StartedAt
	held := h.now()
	if rec.Boot == ledger.BootRestore && !b.stays(h.life, sshDelay) {
		return
	}
	for busy := time.Now(); b.used() && time.Since(busy) < sshDeference; {
		if !b.stays(h.life, sshPause) {
			return
		}
	}
	ready = ready.Add(h.now().Sub(held))
	patience := time.Now().Add(sshPatience)
	for pause := sshPause; time.Now().Before(patience); pause *= 2 {
		queued := time.Now()
		if !h.awaitProbe(b) {
			return
		}
		waited := time.Since(queued)
		ready, patience = ready.Add(waited), patience.Add(waited)
		switch err := h.trySSH(b); {
		case err == nil:
			h.events.Emit(b.id, hostapi.EventSSHReady, "SSH server answers",
				map[string]any{"ssh_ready_ms": max(h.now().Sub(ready), 0).Milliseconds()})
			return
		case errors.Is(err, hosterr.ErrNotFound) || !b.stays(h.life, pause):
			return
		}
	}
}

// stays waits, and reports whether the box is still there.
func (b *box) stays(life context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-b.gone:
	case <-life.Done():
	}
	return false
}

// used reports whether a command or a connection of a caller is in the guest.
func (b *box) used() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.execSlot) > 0 || b.links > 0
}

var errNoSSH = errors.New("it does not greet as an SSH server does")

// awaitProbe waits for the box's turn to be probed, and reports whether it came.
func (h *Host) awaitProbe(b *box) bool {
	select {
	case h.probing <- struct{}{}:
		return true
	case <-b.gone:
	case <-h.life.Done():
	}
	return false
}

// trySSH returns nil once the guest's SSH server has greeted, and ends the box's
// turn. It is a use of the slot like any other, so that the slot is nobody else's
// while it lasts.
func (h *Host) trySSH(b *box) error {
	defer func() { <-h.probing }()
	l, err := h.enterPlain(h.life, b.id)
	if err != nil {
		return err
	}
	defer l.leave()
	if l.box != b {
		return hosterr.ErrNotFound
	}
	ctx, cancel := context.WithTimeout(l.ctx, sshTimeout)
	defer cancel()
	conn, err := h.slots.Dial(ctx, l.slot, sshPort)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	greeting := make([]byte, 4)
	if _, err := io.ReadFull(conn, greeting); err != nil {
		return err
	}
	if !bytes.Equal(greeting, []byte("SSH-")) {
		return errNoSSH
	}
	return nil
}
