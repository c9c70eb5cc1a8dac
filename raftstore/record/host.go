package record

// AgentState is what the control plane has concluded about a host. Facts that change
// by the second (capacity, inventory) stay in the leader's memory.
type AgentState string

// A lost agent missed its lease. Its next heartbeat makes it up again.
const (
	AgentUp   AgentState = "up"
	AgentLost AgentState = "lost"
)

// Agent is a host daemon that joined the cluster.
type Agent struct {
	Meta
	Address  string     `json:"address"` // host:port of its HTTPS API
	State    AgentState `json:"state"`
	Draining bool       `json:"draining,omitempty"` // no new sandboxes
}

// Clone returns a copy.
func (a *Agent) Clone() *Agent { c := *a; return &c }
