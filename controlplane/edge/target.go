package edge

import (
	"strconv"

	"github.com/berth-cloud/berth/raftstore/record"
)

// situation is what can be done with a sandbox.
type situation int

const (
	ready situation = iota
	unknown
	busy
	gone
	paused
	asleep
)

// target is where a sandbox is.
type target struct {
	sandbox *record.Sandbox
	address string // of its host
}

// key names a port of one generation of a sandbox at one host: connections that
// are kept open are used again for that alone.
func (t target) key(n Name) string {
	return n.SandboxID + "-" + strconv.FormatUint(t.sandbox.Generation, 10) + ":" + strconv.Itoa(n.Port)
}

func (e *Edge) find(n Name) (target, situation) {
	s, address, ok := e.cfg.Find(n.SandboxID)
	if !ok {
		return target{}, unknown
	}
	t := target{sandbox: s, address: address}
	switch s.Status {
	case record.SandboxRunning:
		if address != "" {
			return t, ready
		}
		return t, gone
	case record.SandboxPaused:
		return t, paused
	case record.SandboxHibernated:
		return t, asleep
	case record.SandboxStarting:
		return t, busy
	}
	return t, gone
}
