package record

import "time"

// HostState is what the control plane has concluded about a host. Facts that change
// by the second (capacity, inventory) stay in the leader's memory.
type HostState string

// A lost host missed its lease. Its next heartbeat makes it up again.
const (
	HostUp   HostState = "up"
	HostLost HostState = "lost"
)

// Host is a host daemon that joined the cluster.
type Host struct {
	Meta
	Address  string    `json:"address"` // host:port of its HTTPS API
	State    HostState `json:"state"`
	Draining bool      `json:"draining,omitempty"` // no new sandboxes
	// Evacuation has what is on it moved to others, while it drains; nil: not.
	Evacuation *Evacuation `json:"evacuation,omitempty"`
}

// Evacuation is how far the emptying of a host has come.
type Evacuation struct {
	Began  time.Time `json:"began"`
	AtOnce int       `json:"at_once"` // sandboxes that move at a time
	Moved  int       `json:"moved"`
	Failed int       `json:"failed,omitempty"` // moves that failed; each is tried once
}

// Clone returns a deep copy.
func (h *Host) Clone() *Host {
	c := *h
	if h.Evacuation != nil {
		e := *h.Evacuation
		c.Evacuation = &e
	}
	return &c
}
