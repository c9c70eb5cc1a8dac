package sandbox

import (
	"cmp"
	"slices"

	"github.com/berth-cloud/berth/controlplane/hosts"
)

// looks remembers what the inventory found at each host. Some host's heartbeat arrives at
// any moment, so a pass over all boxes of a large fleet, each time, would be all that the
// leader does.
type looks struct {
	at   map[string]look
	pass uint64
}

// look is what was found at a host.
type look struct {
	version   uint64 // Session.BoxesVersion
	pass      uint64
	orphans   []orphan
	unsettled bool // something did not agree
}

// boxesAPass is how many boxes of hosts that have said nothing new a pass looks at: all of
// a small fleet, and each of a hundred thousand every few seconds. Their rows may have
// changed.
const boxesAPass = 2000

// next returns the hosts that are to be looked at, and forgets those without a session.
func (l *looks) next(sessions map[string]hosts.Session) (ids []string) {
	if l.at == nil {
		l.at = map[string]look{}
	}
	l.pass++
	for id := range l.at {
		if _, there := sessions[id]; !there {
			delete(l.at, id)
		}
	}
	var others []string
	for id, s := range sessions {
		was, known := l.at[id]
		if !known || was.version != s.BoxesVersion || was.unsettled || len(was.orphans) > 0 {
			ids = append(ids, id)
		} else {
			others = append(others, id)
		}
	}
	slices.SortFunc(others, func(a, b string) int { return cmp.Or(cmp.Compare(l.at[a].pass, l.at[b].pass), cmp.Compare(a, b)) })
	left := boxesAPass
	for _, id := range others {
		// A host that reports no boxes counts as one: boxes that the records place there may be missing.
		if left -= 1 + len(sessions[id].Heartbeat.Boxes); left < 0 && len(ids) > 0 {
			break
		}
		ids = append(ids, id)
	}
	return ids
}

func (l *looks) found(hostID string, f look) {
	f.pass = l.pass
	l.at[hostID] = f
}

// orphans returns all that are known.
func (l *looks) orphans() map[orphan]bool {
	all := map[orphan]bool{}
	for _, was := range l.at {
		for _, o := range was.orphans {
			all[o] = true
		}
	}
	return all
}
