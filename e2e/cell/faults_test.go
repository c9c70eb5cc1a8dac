package cell

import (
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/e2e/cell/wire"
)

// beyondLease is how long something lasts after which hosts are given up.
const beyondLease = lease + 3*time.Second

// fault breaks something around the leader, and mends it before it returns.
type fault struct {
	name string
	do   func(c *cell, lead *replica)
}

var faults = []fault{
	{"the leader is killed", func(c *cell, lead *replica) {
		lead.kill()
		pause(2 * time.Second)
		c.start(lead)
	}},
	{"the leader is frozen beyond the hosts' lease", func(_ *cell, lead *replica) {
		lead.signal(syscall.SIGSTOP)
		pause(beyondLease)
		lead.signal(syscall.SIGCONT)
	}},
	{"the leader is alone", func(c *cell, lead *replica) {
		c.cut(lead, true, true, 6*time.Second)
	}},
	{"the leader is heard, and hears nothing", func(c *cell, lead *replica) {
		c.cut(lead, false, true, 6*time.Second)
	}},
	{"the leader hears, and is not heard", func(c *cell, lead *replica) {
		c.cut(lead, true, false, 6*time.Second)
	}},
	{"no host reaches the leader", func(c *cell, lead *replica) {
		for _, q := range []wire.Quality{{Cut: true}, {}} {
			c.wire.Set(lead.Machine, c.hosts, q)
			c.wire.Set(c.hosts, lead.Machine, q)
			if q.Cut {
				pause(beyondLease)
			}
		}
	}},
	{"200 ms on every way, and each tenth packet is lost", func(c *cell, _ *replica) {
		c.wire.SetAll(wire.Quality{Delay: 200 * time.Millisecond, Loss: 0.1})
		pause(10 * time.Second)
		c.wire.SetAll(wire.Quality{})
	}},
	{"the leader's disk is full", func(c *cell, lead *replica) {
		if err := lead.fill(); err != nil {
			c.t.Error(err)
		}
		pause(8 * time.Second)
		if err := lead.free(); err != nil {
			c.t.Error(err)
		}
		select {
		case <-lead.exited: // as systemd would
			c.start(lead)
		default:
		}
	}},
}

// cut cuts a replica off the other replicas: what it sends, what is sent to it, or both.
func (c *cell) cut(r *replica, out, in bool, most time.Duration) {
	for _, cut := range []bool{true, false} {
		for _, other := range c.replicas {
			if other == r {
				continue
			}
			c.wire.Set(r.Machine, other.Machine, wire.Quality{Cut: cut && out})
			c.wire.Set(other.Machine, r.Machine, wire.Quality{Cut: cut && in})
		}
		if cut {
			pause(most)
		}
	}
}

// Whatever happens to the leader's machine, clients are told the truth by every replica,
// quotas hold, and nothing is lost or left.
func TestThreeMachinesUnderFaults(t *testing.T) {
	c := newCell(t, program(t))
	l := c.begin()
	pause(3 * time.Second)
	for _, f := range faults {
		before, began := l.calls.Load(), time.Now()
		f.do(c, c.leader())
		during := l.calls.Load() - before
		mended := time.Now()
		c.whole()
		t.Logf("%s: %d calls in %s; the replicas agree %s after that", f.name, during, mended.Sub(began).Round(time.Second), time.Since(mended).Round(time.Millisecond))
		if t.Failed() {
			break
		}
	}
	l.end(t)
}
