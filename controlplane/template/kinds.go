package template

import (
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// kind is what hosts have in common between which the templates make no difference.
type kind struct {
	shelf  uint64
	engine string
	store  bool
}

func kindOf(s hosts.Session) kind {
	return kind{s.Shelf, s.Heartbeat.Versions.Engine, s.Heartbeat.Store}
}

// kinds returns one host of each kind. Every host gets every template, so a fleet at rest
// has one kind: to look at all templates of all hosts would take seconds, each second.
func kinds(sessions map[string]hosts.Session) map[kind]hostapi.Heartbeat {
	out := map[kind]hostapi.Heartbeat{}
	for _, s := range sessions {
		if k := kindOf(s); out[k].HostID == "" {
			out[k] = s.Heartbeat
		}
	}
	return out
}
