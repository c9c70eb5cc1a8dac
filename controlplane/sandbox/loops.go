package sandbox

import (
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The names of the loops.
const (
	loopInventory   = "sandbox inventory"
	loopUnreachable = "unreachable sandboxes"
	loopTTL         = "sandbox ttl"
	loopHibernate   = "persistent sandboxes"
)

// keeper keeps true, in one term, what must hold of sandboxes.
type keeper struct {
	*loops.Term
	core           *core.Core
	transitions    *Transitions
	hibernateRetry time.Duration // see Config.HibernateRetry
	orphans        *loops.Garbage[orphan]

	mu        sync.Mutex
	notBefore map[string]time.Time // sandboxes not to be hibernated before
}

// Loops are what keeps sandboxes true: hosts hold no box without a row, and rows
// point at no box that is gone; what is on a lost host has failed; what has reached
// its end goes.
func (s *Sandboxes) Loops(t *loops.Term) []loops.Loop {
	k := &keeper{
		Term: t, core: s.core, transitions: s.transitions, hibernateRetry: s.cfg.HibernateRetry, notBefore: map[string]time.Time{},
		orphans: loops.NewGarbage(t, func(o orphan) (what, id, hostID string) { return "box", hostapi.ShortID(o.id), o.hostID }),
	}
	return []loops.Loop{
		{Name: loopInventory, Wake: s.core.Hosts.Changed, Pass: k.inventory},
		{Name: loopUnreachable, Wake: func() <-chan struct{} { return s.core.Store.View().Changed(record.Hosts.Name) }, Pass: k.failUnreachable},
		{Name: loopTTL, Pass: k.ttl},
		{Name: loopHibernate, Pass: k.hibernateExpired},
		resource.Strays(t, Resource, startedByNobody),
	}
}

// startedByNobody reports whether no fork is under way that makes the sandbox.
func startedByNobody(r raftstore.Reader, s *record.Sandbox) bool {
	if s.StartedBy == "" {
		return true
	}
	_, live := flow.Live(r, s.StartedBy)
	return !live
}
