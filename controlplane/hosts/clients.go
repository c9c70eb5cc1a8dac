package hosts

import (
	"sync"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Clients contains a replica's clients of hosts, one per host. The leader's work and
// previews share them, and they outlive a leadership.
type Clients struct {
	dial func(hostID, address string) *hostapi.Client

	mu   sync.Mutex
	kept map[string]dialled // by host id
}

type dialled struct {
	address string
	client  *hostapi.Client
}

// NewClients returns Clients that creates clients with dial.
func NewClients(dial func(hostID, address string) *hostapi.Client) *Clients {
	return &Clients{dial: dial, kept: map[string]dialled{}}
}

// maxKept limits the number of clients, including those of removed hosts.
const maxKept = 1024

// At returns the client of a host at an address. It is not bound to a term.
func (c *Clients) At(hostID, address string) *hostapi.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.kept[hostID]; d.client != nil && d.address == address {
		return d.client
	}
	c.hangUp(hostID)
	if len(c.kept) >= maxKept {
		for id := range c.kept {
			c.hangUp(id)
		}
	}
	d := dialled{address: address, client: c.dial(hostID, address)}
	c.kept[hostID] = d
	return d.client
}

// HangUp closes idle connections, so that the next call to a host dials again. Calls
// in progress continue.
func (c *Clients) HangUp(hostID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hangUp(hostID)
}

func (c *Clients) hangUp(hostID string) {
	if d := c.kept[hostID]; d.client != nil {
		d.client.Close()
		delete(c.kept, hostID)
	}
}

// Close closes the idle connections.
func (c *Clients) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.kept {
		d.client.Close()
	}
}
