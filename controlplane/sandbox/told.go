package sandbox

import (
	"context"
	"maps"
	"slices"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// untold is an event of a sandbox that its host has not been told yet.
type untold struct {
	sandboxID string
	event     hostapi.NewEvent
}

// tell has a later pass post an event on a sandbox. It is lost if this leadership ends
// before.
func (k *keeper) tell(s *record.Sandbox, e hostapi.NewEvent) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.untold[s.HostID] = append(k.untold[s.HostID], untold{s.ID, e})
}

// tellHosts posts what is to be told, one event at a time on each host: a host may
// return with thousands of sandboxes.
func (k *keeper) tellHosts(ctx context.Context) {
	k.mu.Lock()
	ids := slices.Collect(maps.Keys(k.untold))
	k.mu.Unlock()
	for _, hostID := range ids {
		k.Begin(loops.Job{What: "events", Host: hostID}, 1, func() { k.tellHost(ctx, hostID) })
	}
}

func (k *keeper) tellHost(ctx context.Context, hostID string) {
	for {
		next, ok := k.nextUntold(hostID)
		if !ok {
			return
		}
		err := k.post(ctx, hostID, next)
		if ctx.Err() != nil || hosts.Unreachable(err) {
			return // a later pass continues here
		}
		if err != nil {
			k.Logger.WarnContext(ctx, "event could not be told", "type", string(next.event.Type),
				"sandbox_id", hostapi.ShortID(next.sandboxID), "agent_id", hostID, "error", err)
		}
		k.mu.Lock()
		k.untold[hostID] = k.untold[hostID][1:]
		k.mu.Unlock()
	}
}

func (k *keeper) nextUntold(hostID string) (untold, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.untold[hostID]) == 0 {
		delete(k.untold, hostID)
		return untold{}, false
	}
	return k.untold[hostID][0], true
}

func (k *keeper) post(ctx context.Context, hostID string, u untold) error {
	ctx, cancel := context.WithTimeout(ctx, loops.CallTimeout)
	defer cancel()
	return k.core.Hosts.Call(ctx, hostID, func(ctx context.Context, c *hosts.Client) error { return c.PostEvent(ctx, u.sandboxID, u.event) })
}
