// Package guestio speaks to the guests of a host's boxes: commands, streams,
// transfers, logs, the console, and the calls that a box's own transitions
// need.
//
// It knows slots and no states. Boxes says which guest can be reached, and for
// how long: each use of a slot is a Link, which ends with the VMM.
package guestio

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/berth-cloud/berth/hostd/background"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Boxes says which guests can be spoken to.
type Boxes interface {
	// Enter begins a use of the slot of a box that runs. The caller calls Leave,
	// after it closed what it opened: the slot does not go back before.
	Enter(ctx context.Context, id string, kind Kind) (*Link, error)
	// Console finds the serial log of a box, whatever its state.
	Console(id string) (Console, error)
}

// Config is what Guests work with. Now and Random have defaults.
type Config struct {
	// Dial connects to a TCP port of the guest in a slot.
	Dial func(ctx context.Context, slot, port int) (net.Conn, error)
	// MaxExecs bounds the commands that run at once in one box.
	MaxExecs int
	// MaxTunnels bounds the connections that callers have to the ports of one box.
	MaxTunnels int
	// MaxUses bounds the commands, transfers, logs and connections to ports of all boxes
	// together; the boxes of one workspace have no more of them than they leave to others.
	// The default is maxUses.
	MaxUses int
	// OutputBudget bounds the input and output that is held in memory for all
	// commands, in bytes. One box may hold a quarter of it, and the boxes of
	// one workspace no more than they leave to others. What exceeds it is
	// dropped, and the result says that it is truncated; a command with input
	// is refused.
	OutputBudget int64
	// GatewayMAC and Nameservers are told to each guest.
	GatewayMAC  net.HardwareAddr
	Nameservers []string
	// Authority has PEM certificates that each guest trusts beside its own; nil: none.
	Authority []byte
	// Emit tells of an event of a box.
	Emit    func(id string, t hostapi.EventType, message string, metadata map[string]any)
	Metrics *Metrics
	Log     *slog.Logger
	Now     func() time.Time
	Random  io.Reader
}

// Guests speaks to every guest of this host.
type Guests struct {
	cfg   Config
	boxes Boxes

	held    *shares       // of the bytes of input and output that are held
	uses    *shares       // of the uses of slots
	probing chan struct{} // capacity sshProbes: who probes a guest's SSH server

	work *background.Group // clocks that are late, probes
}

// New returns the guests of boxes.
func New(cfg Config, boxes Boxes) *Guests {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Random == nil {
		cfg.Random = rand.Reader
	}
	return &Guests{
		cfg: cfg, boxes: boxes, held: newShares(cfg.OutputBudget), uses: newShares(int64(cmp.Or(cfg.MaxUses, maxUses))),
		probing: make(chan struct{}, sshProbes), work: background.New(),
	}
}

// Close ends what goes on in the background, and waits for it.
func (g *Guests) Close() {
	g.work.Close(background.ErrClosing)
}
