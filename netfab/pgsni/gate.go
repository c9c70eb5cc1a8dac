package pgsni

import (
	"container/list"
	"net/netip"
	"sync"
)

// gate bounds the connections that are not logged in, in all and by address.
//
// A bound that simply turned the next one away would let whoever holds the
// places keep everybody out. So over a bound the oldest connection makes room
// that has not yet sent its StartupMessage, or its password where the router checks
// that: an honest client needs a few round trips for that, and one that is idle there
// has been for longer. Only where all places are held by clients that wait for their
// database is the next turned away.
//
// A client whose password the router has found right takes none of these places: one
// address may be that of many tenants' clients, and one tenant's that wait must not keep
// the others out. The crowds bound those.
type gate struct {
	max, maxPerAddress int

	mu        sync.Mutex
	count     int        // that are not logged in
	proved    int        // of these, whose password was right
	silent    *list.List // of *visitor, oldest first: those that may be made to leave
	addresses map[netip.Prefix]*address
}

// address is what is known of one remote address that has connections in a place.
type address struct {
	count  int
	silent *list.List
}

// visitor is one connection that is not logged in.
type visitor struct {
	gate  *gate
	from  netip.Prefix
	evict func() // called without the lock

	// Places in the two lists, nil once it may stay.
	inAll, inAddress *list.Element
	proved, gone     bool
}

func newGate(limit, perAddress int) *gate {
	return &gate{
		max: limit, maxPerAddress: perAddress,
		silent: list.New(), addresses: map[netip.Prefix]*address{},
	}
}

// origin is what counts as one address: of IPv6 the 64 bits that one customer
// has at the least.
func origin(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // an error only for the zero Addr, whose prefix is the zero one
	return p
}

// enter lets a connection in, or answers nil. evict must end the connection; it
// may be called at any time until said or leave is.
func (g *gate) enter(from netip.Addr, evict func()) *visitor {
	v := &visitor{gate: g, from: origin(from), evict: evict}
	g.mu.Lock()
	out, ok := g.makeRoom(v.from)
	if ok {
		g.admit(v)
	}
	g.mu.Unlock()
	for _, o := range out {
		o.evict()
	}
	if !ok {
		return nil
	}
	return v
}

// makeRoom takes connections out until one more fits, and returns them.
func (g *gate) makeRoom(from netip.Prefix) (out []*visitor, ok bool) {
	if a := g.addresses[from]; a != nil && a.count >= g.maxPerAddress {
		oldest := a.silent.Front()
		if oldest == nil {
			return nil, false
		}
		out = append(out, oldest.Value.(*visitor))
		g.remove(out[0])
	}
	if g.count-g.proved >= g.max {
		oldest := g.silent.Front()
		if oldest == nil {
			return out, false
		}
		v := oldest.Value.(*visitor)
		g.remove(v)
		out = append(out, v)
	}
	return out, true
}

func (g *gate) admit(v *visitor) {
	a := g.addresses[v.from]
	if a == nil {
		a = &address{silent: list.New()}
		g.addresses[v.from] = a
	}
	g.count++
	a.count++
	v.inAll, v.inAddress = g.silent.PushBack(v), a.silent.PushBack(v)
}

func (g *gate) remove(v *visitor) {
	if v.gone {
		return
	}
	v.gone = true
	g.unlist(v)
	g.count--
	if v.proved {
		g.proved--
		return
	}
	g.leaveAddress(v.from)
}

func (g *gate) leaveAddress(from netip.Prefix) {
	a := g.addresses[from]
	if a.count--; a.count == 0 {
		delete(g.addresses, from)
	}
}

func (g *gate) unlist(v *visitor) {
	if v.inAll == nil {
		return
	}
	g.silent.Remove(v.inAll)
	g.addresses[v.from].silent.Remove(v.inAddress)
	v.inAll, v.inAddress = nil, nil
}

// said notes that the client has said what it must: the connection keeps its place.
func (v *visitor) said() {
	v.gate.mu.Lock()
	defer v.gate.mu.Unlock()
	if !v.gone {
		v.gate.unlist(v)
	}
}

// prove notes that the client's password was right: it gives its place to another.
func (v *visitor) prove() {
	g := v.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if v.gone || v.proved {
		return
	}
	g.unlist(v)
	v.proved = true
	g.proved++
	g.leaveAddress(v.from)
}

// leave gives the place back, because the client is logged in or gone. A second
// call does nothing.
func (v *visitor) leave() {
	v.gate.mu.Lock()
	defer v.gate.mu.Unlock()
	v.gate.remove(v)
}

// size is how many connections are not logged in.
func (g *gate) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count
}

// crowds are the connections that are past their password, by database and by who owns
// that: none may have so many that others get no place.
type crowds struct {
	mu     sync.Mutex
	of     map[string]int // by database
	owners map[string]int // by owner, where that is known
	all    int
}

// enter counts one more, if there may be one: of a database, in all, and of an owner, who
// has no more than the others are left, however many databases that owner has.
func (c *crowds) enter(name, owner string, most, mostInAll int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[name] >= most || c.all >= mostInAll || owner != "" && c.owners[owner] >= mostInAll-c.all {
		return false
	}
	if c.of == nil {
		c.of, c.owners = map[string]int{}, map[string]int{}
	}
	c.of[name]++
	c.owners[owner]++
	c.all++
	return true
}

func (c *crowds) leave(name, owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.of[name]--; c.of[name] == 0 {
		delete(c.of, name)
	}
	if c.owners[owner]--; c.owners[owner] == 0 {
		delete(c.owners, owner)
	}
}
