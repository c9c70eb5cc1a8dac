package slot

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

const (
	dbDomain = "db.example-1.test"
	dbPort   = 6432
	dbID     = "0b9fd4a2-9c3e-4f0e-8a57-4f3c2c1d0e9f"
)

// router is a service at an address of the host that answers with the address it was
// reached from.
func router(t *testing.T, addr string) (netip.AddrPort, net.Listener) {
	t.Helper()
	l, err := net.Listen("tcp4", addr)
	check(t, err)
	t.Cleanup(func() { l.Close() })
	go serve(l)
	return l.Addr().(*net.TCPAddr).AddrPort(), l
}

func withDatabases(routers ...netip.AddrPort) func(*Config) {
	return func(c *Config) {
		c.Databases = Databases{Routers: routers, Domain: dbDomain, Port: dbPort}
	}
}

func TestGuestReachesDatabasesByItsGateway(t *testing.T) {
	needRoot(t)
	loopback, _ := router(t, "127.0.0.1:0")
	own, _ := router(t, hostUplink+":0")
	private := netip.MustParseAddrPort(privateAddrs[0] + ":80")
	f := newFabric(t, withDatabases(loopback, own, private))
	a, b := ensure(t, f, 0), ensure(t, f, 1)
	g := newGuest(t, a)
	seen := map[string]int{}
	for range 9 {
		from, err := g.get(hostPort(GatewayAddr, dbPort))
		check(t, err)
		seen[from]++
	}
	// A router on the machine sees the slot, one elsewhere the machine.
	if seen[a.NSAddr.String()] != 6 || seen[hostUplink] != 3 {
		t.Errorf("nine connections came from %v, want six from %s and three from %s", seen, a.NSAddr, hostUplink)
	}
	// Those that have an address of their own may also be named.
	for _, r := range []netip.AddrPort{own, private} {
		if _, err := g.get(r.String()); err != nil {
			t.Errorf("router %s: %v", r, err)
		}
	}
	g.works(t)

	g.refused(t, "a router's own port at the gateway", hostPort(GatewayAddr, int(loopback.Port())))
	g.refused(t, "the port at the host's link", hostPort(a.HostAddr, dbPort))
	g.refused(t, "the port at another slot's link", hostPort(b.HostAddr, dbPort))
	g.refused(t, "the port at the machine", hostPort(netip.MustParseAddr(hostUplink), dbPort))
	g.refused(t, "a service beside a router", hostUplink+":8080")
	g.refused(t, "a service of the host's loopback", hostPort(GatewayAddr, 8080))
	g.refused(t, "another port of a router", privateAddrs[0]+":53")
	g.refused(t, "another private address", privateAddrs[1]+":80")
	g.refused(t, "control plane", controlAddr+":80")
}

// The host's kernel takes packets for its loopback from slots that lead to a router
// there. While the host has no rules, none but the translated ones may come.
func TestLoopbackIsClosedWithoutTheHostsRules(t *testing.T) {
	needRoot(t)
	loopback, _ := router(t, "127.0.0.1:0")
	f := newFabric(t, withDatabases(loopback))
	s := ensure(t, f, 0)
	g := newGuest(t, s)
	if _, err := g.get(hostPort(GatewayAddr, dbPort)); err != nil {
		t.Fatal(err)
	}
	heardAt, err := net.ListenPacket("udp4", "127.0.0.1:123") // where the frames go to
	check(t, err)
	defer heardAt.Close()
	conn := &nftables.Conn{}
	conn.FlushRuleset()
	check(t, conn.Flush())
	b := frame(GuestMAC, GuestAddr, "to loopback")
	readdress(b, netip.MustParseAddr("127.0.0.1"))
	_, err = g.wire.Write(b)
	check(t, err)
	_, err = g.wire.Write(frame(GuestMAC, GuestAddr, "after it"))
	check(t, err)
	g.refused(t, "a service of the host", hostPort(GatewayAddr, 8080))
	check(t, heardAt.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	if n, from, err := heardAt.ReadFrom(make([]byte, 100)); err == nil {
		t.Errorf("the host's loopback was sent %d bytes from %s", n, from)
	}
	check(t, f.EnsureHost(t.Context()))
	if _, err := g.get(hostPort(GatewayAddr, dbPort)); err != nil {
		t.Errorf("with the rules again: %v", err)
	}
}

// readdress gives an IPv4 frame of frame another destination.
func readdress(b []byte, to netip.Addr) {
	head := b[14:34]
	copy(head[16:], to.AsSlice())
	head[10], head[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < len(head); i += 2 {
		sum += uint32(head[i])<<8 | uint32(head[i+1])
	}
	for sum>>16 > 0 {
		sum = sum&0xffff + sum>>16
	}
	head[10], head[11] = byte(^sum>>8), byte(^sum)
	b[40], b[41] = 0, 0 // no checksum of the datagram
}

// Without a domain DNS leads guests to the routers, which may be the control plane's
// own machines: of those this port alone is open.
func TestRouterOfTheControlPlane(t *testing.T) {
	f := newFabric(t, func(c *Config) {
		c.Databases = Databases{Routers: []netip.AddrPort{netip.MustParseAddrPort(controlAddr + ":80")}}
	})
	g := newGuest(t, ensure(t, f, 0))
	if _, err := g.get(controlAddr + ":80"); err != nil {
		t.Errorf("router: %v", err)
	}
	g.refused(t, "another port of the control plane", controlAddr+":53")
	g.refused(t, "the gateway", hostPort(GatewayAddr, DefaultDatabasePort))
	g.works(t)
}

func TestConnectionsToDatabasesAreBounded(t *testing.T) {
	needRoot(t)
	stay, err := net.Listen("tcp4", "127.0.0.1:0")
	check(t, err)
	defer stay.Close()
	f := newFabric(t, withDatabases(stay.Addr().(*net.TCPAddr).AddrPort()), func(c *Config) { c.Databases.MaxConnections = 8 })
	a, b := newGuest(t, ensure(t, f, 0)), newGuest(t, ensure(t, f, 1))
	open := func(g *guest) (made []net.Conn) {
		for range 20 {
			c, err := g.dial("tcp", hostPort(GatewayAddr, dbPort), 10*time.Second)
			switch {
			case err == nil:
				t.Cleanup(func() { c.Close() })
				made = append(made, c)
			case !errors.Is(err, unix.ECONNREFUSED):
				t.Fatal(err)
			}
		}
		return made
	}
	for _, g := range []*guest{a, b} { // the one takes nothing from the other
		if n := len(open(g)); n != 8 {
			t.Errorf("%d of 20 connections were let through, want 8", n)
		}
	}
	a.works(t) // all else goes on
}

func TestGuestsAreLedToRoutersThatAnswer(t *testing.T) {
	needRoot(t)
	one, _ := router(t, "127.0.0.1:0")
	two, second := router(t, "127.0.0.1:0")
	f, out := newLoggedFabric(t, withDatabases(one, two))
	g := newGuest(t, ensure(t, f, 0))
	second.Close()
	if !f.lookForRouters(t.Context()) {
		t.Fatal("it is not seen that a router is gone")
	}
	check(t, f.EnsureHost(t.Context()))
	for range 4 {
		if _, err := g.get(hostPort(GatewayAddr, dbPort)); err != nil {
			t.Errorf("with one router: %v", err)
		}
	}
	if f.lookForRouters(t.Context()) {
		t.Error("the same routers are told as others")
	}
	back, err := net.Listen("tcp4", two.String())
	check(t, err)
	defer back.Close()
	go serve(back)
	if !f.lookForRouters(t.Context()) || len(f.serving) != 2 {
		t.Errorf("once it is back, guests are led to %v", f.serving)
	}
	if !strings.Contains(out.String(), "routers of databases that guests are led to") {
		t.Error("nothing of it is logged")
	}
}

func TestNamesOfDatabasesAreAnswered(t *testing.T) {
	needRoot(t)
	r, _ := router(t, "127.0.0.1:0")
	f := newFabric(t, withDatabases(r))
	g := newGuest(t, ensure(t, f, 0))
	n, err := f.Names(0)
	check(t, err)
	closed := false
	defer func() {
		if !closed {
			n.Close()
		}
	}()

	// One socket, as some resolvers have: each question is judged by itself.
	var c *net.UDPConn
	check(t, g.ns.Do(func(ns.NetNS) (err error) {
		c, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(GatewayAddr, 53)))
		return err
	}))
	defer c.Close()
	ask := func(name string, kind dnsmessage.Type) (string, error) {
		check(t, c.SetDeadline(time.Now().Add(2*time.Second)))
		if _, err := c.Write(question(t, name, kind)); err != nil {
			return "", err
		}
		b := make([]byte, 1500)
		n, err := c.Read(b)
		if err != nil {
			return "", err
		}
		if string(b[:n]) == hostUplink { // what the internet answers to anything
			return "upstream", nil
		}
		var m dnsmessage.Message
		check(t, m.Unpack(b[:n]))
		if m.ID != 77 || !m.Response || len(m.Questions) != 1 || m.RCode != dnsmessage.RCodeSuccess {
			return "", fmt.Errorf("answer %v", m)
		}
		for _, a := range m.Answers {
			return netip.AddrFrom4(a.Body.(*dnsmessage.AResource).A).String(), nil
		}
		return "nothing", nil
	}
	name := dbID + "." + dbDomain + "."
	for range 2 {
		for _, c := range []struct {
			name string
			kind dnsmessage.Type
			want string
		}{
			{"example.org.", dnsmessage.TypeA, "upstream"},
			{name, dnsmessage.TypeA, GatewayAddr.String()},
			{name, dnsmessage.TypeAAAA, "nothing"},
			{strings.ToUpper(name), dnsmessage.TypeA, GatewayAddr.String()},
			{dbDomain + ".", dnsmessage.TypeA, "upstream"},
			{dbID + "." + dbDomain + ".org.", dnsmessage.TypeA, "upstream"},
			{dbID + "x." + dbDomain + ".", dnsmessage.TypeA, "upstream"},
			{dbID + ".db.example-2.test.", dnsmessage.TypeA, "upstream"},
			{dbID + "." + strings.Replace(dbDomain, "-", "\r", 1) + ".", dnsmessage.TypeA, "upstream"}, // one bit apart
		} {
			if got, err := ask(c.name, c.kind); err != nil || got != c.want {
				t.Errorf("%s %q: %q, %v; want %q", c.kind, c.name, got, err, c.want)
			}
		}
	}
	g.works(t)

	// Without hostd, it fails at once, and all other names are answered.
	check(t, n.Close())
	closed = true
	if _, err := ask(name, dnsmessage.TypeA); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("nobody answers: %v, want it refused", err)
	}
	g.works(t)
	again, err := f.Names(0)
	check(t, err)
	defer again.Close()
	if got, err := ask(name, dnsmessage.TypeA); err != nil || got != GatewayAddr.String() {
		t.Errorf("answered again: %q, %v", got, err)
	}
	if _, err := f.Names(5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a slot that is not made: %v", err)
	}
}

func question(t *testing.T, name string, kind dnsmessage.Type) []byte {
	t.Helper()
	n, err := dnsmessage.NewName(name)
	check(t, err)
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 77, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}},
	}
	raw, err := m.Pack()
	check(t, err)
	return raw
}

func TestAnswerName(t *testing.T) {
	name := dbID + "." + dbDomain + "."
	plain := question(t, name, dnsmessage.TypeA)
	response := append([]byte{}, plain...)
	response[2] |= 0x80
	update := append([]byte{}, plain...)
	update[2] |= 5 << 3
	chaos := append([]byte{}, plain...)
	chaos[len(chaos)-1] = 3
	for what, c := range map[string]struct {
		message []byte
		silent  bool
		code    dnsmessage.RCode
		answers int
	}{
		"a question":               {message: plain, answers: 1},
		"of any type":              {message: question(t, name, dnsmessage.TypeALL), answers: 1},
		"for text":                 {message: question(t, name, dnsmessage.TypeTXT)},
		"an answer":                {message: response, silent: true},
		"too short":                {message: plain[:11], silent: true},
		"without its question":     {message: plain[:20], code: dnsmessage.RCodeFormatError},
		"an update":                {message: update, code: dnsmessage.RCodeNotImplemented},
		"of another class":         {message: chaos, code: dnsmessage.RCodeRefused},
		"for the domain itself":    {message: question(t, dbDomain+".", dnsmessage.TypeA), code: dnsmessage.RCodeRefused},
		"for what is further down": {message: question(t, "a."+name, dnsmessage.TypeA), code: dnsmessage.RCodeRefused},
		"for another name":         {message: question(t, "example.org.", dnsmessage.TypeA), code: dnsmessage.RCodeRefused},
	} {
		raw := answerName(c.message, dbDomain)
		if c.silent || raw == nil {
			if !c.silent || raw != nil {
				t.Errorf("%s: answered %v", what, raw)
			}
			continue
		}
		var m dnsmessage.Message
		if err := m.Unpack(raw); err != nil || !m.Response || m.ID != 77 || m.RCode != c.code || len(m.Answers) != c.answers {
			t.Errorf("%s: %+v, %v", what, m, err)
		}
	}
}

func TestDatabasesConfig(t *testing.T) {
	good := netip.MustParseAddrPort("10.0.0.1:5432")
	for what, c := range map[string]struct {
		d    Databases
		want string // part of the error
	}{
		"nothing":                   {},
		"routers alone":             {d: Databases{Routers: []netip.AddrPort{good}}},
		"with a domain":             {d: Databases{Routers: []netip.AddrPort{good}, Domain: "DB.example.com", Port: 5433}},
		"a domain alone":            {d: Databases{Domain: "db.example.com"}, want: "no router"},
		"a domain that is none":     {d: Databases{Routers: []netip.AddrPort{good}, Domain: ".example.com"}, want: "host name"},
		"a domain that is too long": {d: Databases{Routers: []netip.AddrPort{good}, Domain: strings.Repeat("a.", 120) + "a"}, want: "host name"},
		"port of DNS":               {d: Databases{Routers: []netip.AddrPort{good}, Port: 53}, want: "port 53"},
		"IPv6":                      {d: Databases{Routers: []netip.AddrPort{netip.MustParseAddrPort("[::1]:5432")}}, want: "IPv4"},
		"any address":               {d: Databases{Routers: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:5432")}}, want: "IPv4"},
		"no port":                   {d: Databases{Routers: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:0")}}, want: "port"},
		"loopback without a domain": {d: Databases{Routers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:5432")}}, want: "gateway"},
		"too many":                  {d: Databases{Routers: make([]netip.AddrPort, 17)}, want: "at most 16"},
		"fewer than no connections": {d: Databases{MaxConnections: -1}, want: "-1"},
	} {
		err := c.d.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}
