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
	loopPaused      = "sandboxes of paused workspaces"
	loopEvacuate    = "evacuated hosts"
	loopRebalance   = "rebalanced hosts"
	loopEnvs        = "environments"
)

// keeper contains the loops of sandboxes in one term.
type keeper struct {
	*loops.Term
	core           *core.Core
	flows          *Flows
	transitions    *Transitions
	hibernateRetry time.Duration // see Config.HibernateRetry
	orphans        *loops.Garbage[orphan]
	looks          looks  // of the inventory's passes
	began          uint64 // index at which the term began

	// Of failUnreachable: closed when a host's row has changed since its last whole pass.
	hostsChanged <-chan struct{}
	passes       int

	mu        sync.Mutex
	notBefore map[string]time.Time // by sandbox: the earliest time of the next attempt to hibernate it
	untold    map[string][]untold  // by host
}

// Loops returns the loops of sandboxes. They delete boxes without a row, fail
// sandboxes whose box is gone or whose host is lost, and end sandboxes that have
// expired.
func (s *Sandboxes) Loops(t *loops.Term) []loops.Loop {
	k := &keeper{
		Term: t, core: s.core, flows: s.Flows, transitions: s.transitions, hibernateRetry: s.cfg.HibernateRetry, notBefore: map[string]time.Time{}, untold: map[string][]untold{},
		began:   t.Store.View().Index(),
		orphans: loops.NewGarbage(t, func(o orphan) (what, id, hostID string) { return "box", hostapi.ShortID(o.id), o.hostID }),
	}
	return []loops.Loop{
		{Name: loopInventory, Wake: s.core.Hosts.Changed, Pass: k.inventory},
		{Name: loopUnreachable, Wake: func() <-chan struct{} { return s.core.Store.View().Changed(record.Hosts.Name) }, Pass: k.failUnreachable},
		{Name: loopTTL, Pass: k.ttl},
		{Name: loopHibernate, Pass: k.hibernateExpired},
		{Name: loopPaused, Pass: k.hibernatePaused},
		{Name: loopEvacuate, Wake: func() <-chan struct{} { return s.core.Store.View().Changed(record.Hosts.Name) }, Pass: k.evacuate},
		{Name: loopRebalance, Wake: func() <-chan struct{} { return s.core.Store.View().Changed(record.Clusters.Name) }, Pass: k.rebalance},
		{Name: loopEnvs, Every: loops.ExpiryEvery, Pass: k.dropEnvs},
		resource.Strays(t, Resource, startedByNobody),
	}
}

// startedByNobody reports whether no running fork creates the sandbox.
func startedByNobody(r raftstore.Reader, s *record.Sandbox) bool {
	if s.StartedBy == "" {
		return true
	}
	_, live := flow.Live(r, s.StartedBy)
	return !live
}
