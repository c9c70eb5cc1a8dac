package pgsni

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// addressed is a connection that seems to come from another address.
type addressed struct {
	net.Conn
	from net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.from }

func (a addressed) CloseWrite() error { return a.Conn.(*net.TCPConn).CloseWrite() }

// fromAfar is a listener whose clients come from as many addresses as it is told.
type fromAfar struct {
	net.Listener
	addresses uint32
	count     atomic.Uint32
}

func (l *fromAfar) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := l.count.Add(1) % l.addresses
	from := netip.AddrFrom4([4]byte{198, 51, byte(n >> 8), byte(n)})
	return addressed{c, net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 4000))}, nil
}

// floodSize is 10,000 connections, or what the open files allow: each is two.
func floodSize(t *testing.T) int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if n := int(min(limit.Cur, 1<<20)/2) - 200; n < 10_000 {
		t.Logf("%d connections, for want of open files", n)
		return n
	}
	return 10_000
}

// Connections that never log in, from one address and from many, keep nobody out.
func TestTenThousandConnectionsThatNeverLogIn(t *testing.T) {
	for name, addresses := range map[string]uint32{"one address": 1, "many addresses": 50_000} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			router := serveOn(t, &fromAfar{Listener: l, addresses: addresses}, Config{MaxUnauthenticated: 500, MaxUnauthenticatedPerAddress: 100}, only(newFakeServer(t)))
			before := router.open(t, known)
			before.ready()

			flood := make([]net.Conn, 0, 10_000)
			defer func() {
				for _, c := range flood {
					c.Close()
				}
			}()
			for i := range floodSize(t) {
				c, err := net.Dial("tcp", router.addr)
				if err != nil {
					t.Fatalf("after %d: %v", i, err)
				}
				flood = append(flood, c)
				if i%2 == 0 {
					_, _ = c.Write(framedBytes(codeSSL, "")) // and then silence
				}
			}
			began := time.Now()
			during := router.open(t, known)
			during.ready()
			during.query("SELECT 1")
			before.query("SELECT 2")
			t.Logf("a login under the flood took %v", time.Since(began))
			if n := router.Stats().Unauthenticated; n > 500 {
				t.Errorf("%d that are not logged in", n)
			}
		})
	}
}

// Clients that named a database and wait hold their places: whoever comes then is
// turned away, and those who are logged in notice nothing.
func TestTheBoundOfThoseThatWait(t *testing.T) {
	s := asleep(t)
	router := serve(t, Config{MaxUnauthenticatedPerAddress: 3}, s)
	waiting := []*client{router.open(t, known), router.open(t, known), router.open(t, known)}
	eventually(t, "three wait", func() bool { return s.asked.Load() == 3 })
	turnedAway := router.dial(t)
	turnedAway.ended()
	close(s.awake)
	for _, c := range waiting {
		c.ready()
	}
	router.open(t, known).ready()
}

func TestTooManySessions(t *testing.T) {
	router := serve(t, Config{MaxSessions: 1}, only(newFakeServer(t)))
	first := router.open(t, known)
	first.ready()
	router.open(t, known).refused("53300")
	first.query("SELECT 1")
	first.Close()
	eventually(t, "the place is free", func() bool { return router.Stats().Sessions == 0 })
	router.open(t, known).ready()
}

// A guest that its tenant has taken over may say anything. What it says takes no place
// of others for good.
func TestAServerThatSaysTwiceThatALoginIsRight(t *testing.T) {
	s := newFakeServer(t)
	s.before = []pgproto3.BackendMessage{&pgproto3.AuthenticationOk{}}
	router := serve(t, Config{}, only(s))
	c := router.open(t, known)
	for err, ready := error(nil), false; err == nil && !ready; {
		var m pgproto3.BackendMessage
		m, err = c.Receive()
		_, ready = m.(*pgproto3.ReadyForQuery)
	}
	c.Close()
	eventually(t, "the place is free", func() bool { return router.Stats() == Stats{} })
}

// Two that were let in at once may find one place at the end of their logins.
func TestTooManySessionsAtTheEndOfALogin(t *testing.T) {
	s := asleep(t)
	router := serve(t, Config{MaxSessions: 1}, s)
	a, b := router.open(t, known), router.open(t, known)
	eventually(t, "both wait", func() bool { return s.asked.Load() == 2 })
	close(s.awake)
	refused := 0
	for _, c := range []*client{a, b} {
		m, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := m.(*pgproto3.ErrorResponse); ok && e.Code == "53300" {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("%d of 2 were refused", refused)
	}
}

func TestAcceptGoesOnAfterAFailureThatPasses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	router := serveOn(t, &failing{Listener: l}, Config{}, only(newFakeServer(t)))
	router.open(t, known).ready()
}

// failing is a listener that has no descriptor left at first.
type failing struct {
	net.Listener
	calls atomic.Int32
}

func (f *failing) Accept() (net.Conn, error) {
	if f.calls.Add(1) < 3 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return f.Listener.Accept()
}

func TestAListenerThatFailsEndsServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	router, err := New(Config{Domain: domain, TLS: &tls.Config{Certificates: []tls.Certificate{certs().cert}}}, never(t))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := router.Serve(t.Context(), l); err == nil {
		t.Error("no error")
	}
}

// Strangers who name a database, and a user, and then say no more, keep nobody out.
func TestLoginsThatStopAtThePassword(t *testing.T) {
	v := decoyVerifier([]byte("secret"), known, "alice")
	backend := verifying{newFakeServer(t), func(context.Context, string) (*Verifier, error) { return v, nil }}
	router := serve(t, Config{ChecksLogins: true, MaxUnauthenticated: 4, MaxUnauthenticatedPerAddress: 4}, only(backend))
	var flood []*client
	for i := range 8 {
		name := known
		if i%2 == 0 {
			name = "nothing-here"
		}
		c := router.open(t, name)
		receive[*pgproto3.AuthenticationSASL](c)
		flood = append(flood, c)
	}
	for _, c := range flood[:4] {
		c.ended()
	}
	if n := router.Stats().Unauthenticated; n != 4 {
		t.Errorf("%d that are not logged in, want 4", n)
	}
}

func TestTheCrowdAtOneDatabase(t *testing.T) {
	var c crowds
	for i, want := range []bool{true, true, false} {
		if got := c.enter("a", "", 2, 3); got != want {
			t.Errorf("client %d of at most 2: %v", i+1, got)
		}
	}
	if !c.enter("b", "", 2, 3) {
		t.Error("another database has no room")
	}
	if c.enter("c", "", 2, 3) {
		t.Error("more are inside than may be in all")
	}
	c.leave("a", "")
	if !c.enter("a", "", 2, 3) {
		t.Error("the place is not free")
	}
	c.leave("a", "")
	c.leave("a", "")
	c.leave("b", "")
	if len(c.of)+len(c.owners) != 0 || c.all != 0 {
		t.Errorf("%v %v is left", c.of, c.owners)
	}
}

// A workspace may have any number of databases.
func TestTheCrowdOfOneOwner(t *testing.T) {
	const most = 16
	var c crowds
	take := func(owner string) (n int) {
		for c.enter(fmt.Sprint(owner, n), owner, 2, most) {
			n++
		}
		return n
	}
	one := take("one")
	if two := take("two"); one != most/2 || two != most/4 {
		t.Errorf("of %d places one owner has %d, and another %d of the rest", most, one, two)
	}
	if unknown := take(""); unknown != most/4 {
		t.Errorf("owners that are not known have %d of the rest", unknown)
	}
	c.leave("one0", "one")
	if c.enter("one0", "one", 2, most) {
		t.Error("one has more than is left to others")
	}
	if !c.enter("three0", "three", 2, most) {
		t.Error("the place is not free for another")
	}
}
