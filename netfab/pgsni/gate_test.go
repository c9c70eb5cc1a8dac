package pgsni

import (
	"net/netip"
	"testing"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// mustEnter enters a connection, and says where to note that it was put out.
func mustEnter(t *testing.T, g *gate, from string) (*visitor, *bool) {
	t.Helper()
	out := new(bool)
	v := g.enter(addr(from), func() { *out = true })
	if v == nil {
		t.Fatalf("%s was turned away", from)
	}
	return v, out
}

func TestTheOldestSilentConnectionMakesRoom(t *testing.T) {
	g := newGate(2, 10)
	first, firstOut := mustEnter(t, g, "192.0.2.1")
	_, secondOut := mustEnter(t, g, "192.0.2.2")
	_, thirdOut := mustEnter(t, g, "192.0.2.3")
	if !*firstOut || *secondOut || *thirdOut {
		t.Error("not the oldest was put out")
	}
	first.leave() // its goroutine ends later
	first.said()
	if g.size() != 2 {
		t.Errorf("%d inside", g.size())
	}
}

func TestAConnectionThatSaidWhatItWantsKeepsItsPlace(t *testing.T) {
	g := newGate(2, 10)
	first, firstOut := mustEnter(t, g, "192.0.2.1")
	first.said()
	_, secondOut := mustEnter(t, g, "192.0.2.2")
	third, _ := mustEnter(t, g, "192.0.2.3")
	if *firstOut || !*secondOut {
		t.Error("one was put out that had spoken")
	}
	third.said()
	if g.enter(addr("192.0.2.4"), nil) != nil {
		t.Error("let one in where all places are held")
	}
	third.leave()
	mustEnter(t, g, "192.0.2.4")
}

func TestOneAddressMakesRoomForItself(t *testing.T) {
	g := newGate(100, 2)
	_, other := mustEnter(t, g, "192.0.2.9")
	_, firstOut := mustEnter(t, g, "192.0.2.1")
	mustEnter(t, g, "::ffff:192.0.2.1")
	mustEnter(t, g, "192.0.2.1")
	if !*firstOut || *other || g.size() != 3 {
		t.Errorf("first out %v, another's out %v, %d inside", *firstOut, *other, g.size())
	}
}

func TestAnIPv6NetworkIsOneAddress(t *testing.T) {
	if origin(addr("2001:db8::1")) != origin(addr("2001:db8::ffff:2")) {
		t.Error("two addresses of one /64 count apart")
	}
	if origin(addr("2001:db8::1")) == origin(addr("2001:db8:0:1::1")) {
		t.Error("two /64 count as one")
	}
	if origin(addr("192.0.2.1")) == origin(addr("192.0.2.2")) {
		t.Error("two IPv4 addresses count as one")
	}
	origin(netip.Addr{}) // of a connection without one
}

// Behind one address there may be many: those of them whose password was right, and who
// wait for their database, take no place that another needs.
func TestAClientWhosePasswordWasRightGivesItsPlaceToAnother(t *testing.T) {
	g := newGate(2, 1)
	var waiting []*visitor
	for range 3 {
		v, out := mustEnter(t, g, "192.0.2.1")
		v.prove()
		v.prove()
		v.said()
		waiting = append(waiting, v)
		defer func() {
			if *out {
				t.Error("one was put out that waits")
			}
		}()
	}
	last, out := mustEnter(t, g, "192.0.2.1")
	if g.size() != 4 {
		t.Errorf("%d inside", g.size())
	}
	mustEnter(t, g, "192.0.2.1")
	if !*out {
		t.Error("one address has two places")
	}
	last.prove() // its goroutine ends later
	for _, v := range waiting {
		v.leave()
		v.leave()
	}
	if g.size() != 1 || g.proved != 0 || g.addresses[origin(addr("192.0.2.1"))].count != 1 {
		t.Errorf("%d inside, %d of them proved", g.size(), g.proved)
	}
}

func TestTheGateForgetsAddresses(t *testing.T) {
	g := newGate(10, 10)
	a, _ := mustEnter(t, g, "192.0.2.1")
	b, _ := mustEnter(t, g, "192.0.2.1")
	b.said()
	a.leave()
	b.leave()
	b.leave()
	if len(g.addresses) != 0 || g.silent.Len() != 0 || g.size() != 0 {
		t.Errorf("%d addresses, %d silent, %d inside", len(g.addresses), g.silent.Len(), g.size())
	}
}
