package record

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
}

// Clone returns a copy.
func (h *Host) Clone() *Host { c := *h; return &c }
