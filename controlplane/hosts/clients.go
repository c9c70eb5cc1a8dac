package hosts

import (
	"sync"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Clients are a replica's clients of hosts, one a host, whoever asks: what leads
// and what serves previews on every replica. They outlive a leadership.
type Clients struct {
	dial func(hostID, address string) *hostapi.Client

	mu   sync.Mutex
	kept map[string]dialled // by agent id
}

type dialled struct {
	address string
	client  *hostapi.Client
}

// NewClients keeps what dial makes.
func NewClients(dial func(hostID, address string) *hostapi.Client) *Clients {
	return &Clients{dial: dial, kept: map[string]dialled{}}
}

// maxKept bounds the clients, of hosts that have gone as well.
const maxKept = 1024

// At returns the client of a host at an address, which is bound to no term.
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

// HangUp has the next call of a host dial it anew; what is under way goes on.
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

// Close drops the idle connections to the hosts.
func (c *Clients) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.kept {
		d.client.Close()
	}
}
