package guestio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
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

// NewGuest is a guest that was just begun.
type NewGuest struct {
	ID      string
	Line    *Line
	Began   time.Time // when it ran
	Booted  bool      // from its kernel; else it was restored
	Removed <-chan struct{}
}

// ProbeSSH tells, in the background, how long the guest's SSH server, if it has
// one, took to answer: from when the guest ran to the first probe that succeeded,
// without the time for which probes were held back. A restored guest stands ready;
// one that boots is still starting its servers, and is asked from the beginning.
func (g *Guests) ProbeSSH(n NewGuest) { g.work.Go(func() { g.probeSSH(n) }) }

func (g *Guests) probeSSH(n NewGuest) {
	ready := n.Began
	held := g.cfg.Now()
	if !n.Booted && !n.waitPresent(g.work.Life(), sshDelay) {
		return
	}
	for busy := time.Now(); n.Line.inUse() && time.Since(busy) < sshDeference; {
		if !n.waitPresent(g.work.Life(), sshPause) {
			return
		}
	}
	ready = ready.Add(g.cfg.Now().Sub(held))
	patience := time.Now().Add(sshPatience)
	for pause := sshPause; time.Now().Before(patience); pause *= 2 {
		queued := time.Now()
		if !g.awaitProbe(n) {
			return
		}
		waited := time.Since(queued)
		ready, patience = ready.Add(waited), patience.Add(waited)
		switch err := g.trySSH(n); {
		case err == nil:
			g.cfg.Emit(n.ID, hostapi.EventSSHReady, "SSH server answers",
				map[string]any{"ssh_ready_ms": max(g.cfg.Now().Sub(ready), 0).Milliseconds()})
			return
		case errors.Is(err, hosterr.ErrNotFound) || !n.waitPresent(g.work.Life(), pause):
			return
		}
	}
}

// waitPresent waits, and reports whether the box is still there.
func (n *NewGuest) waitPresent(life context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-n.Removed:
	case <-life.Done():
	}
	return false
}

var errNoSSH = errors.New("it does not greet as an SSH server does")

// awaitProbe waits for the box's turn to be probed, and reports whether it came.
func (g *Guests) awaitProbe(n NewGuest) bool {
	select {
	case g.probing <- struct{}{}:
		return true
	case <-n.Removed:
	case <-g.work.Life().Done():
	}
	return false
}

// trySSH returns nil once the guest's SSH server has greeted, and ends the box's
// turn. It is a use of the slot like any other, so that the slot is nobody else's
// while it lasts.
func (g *Guests) trySSH(n NewGuest) error {
	defer func() { <-g.probing }()
	l, err := g.boxes.Enter(g.work.Life(), n.ID, Connection)
	if err != nil {
		return err
	}
	defer l.Leave()
	if l.line != n.Line {
		return hosterr.ErrNotFound
	}
	ctx, cancel := context.WithTimeout(l.ctx, sshTimeout)
	defer cancel()
	conn, err := g.cfg.Dial(ctx, l.slot, sshPort)
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
