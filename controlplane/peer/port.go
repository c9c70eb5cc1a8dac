// Package peer is the one TLS port of a replica, for everything that is not the
// public API: Raft, heartbeats and joins of hosts, and requests that another
// replica forwards. ALPN tells them apart, so that one certificate, one address
// and one firewall rule serve all.
package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/time/rate"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/timescale"
)

// ProtoRaft is the ALPN name of Raft's stream; everything else is HTTP.
const ProtoRaft = "berth-raft/1"

// Strangers can make a replica spend at most this: so many unfinished
// handshakes, each for so long, and so many connections without a certificate,
// of which only hosts that join have need. One more is closed unanswered.
const (
	maxHandshakes = 512
	maxStrangers  = 128
)

var handshakeTimeout = timescale.Limit(5 * time.Second)

// Port listens on the peer address and deals connections out by protocol.
type Port struct {
	listener net.Listener
	node     *pki.Node
	log      *slog.Logger
	timeout  time.Duration // of a handshake

	raft *dealt
	http *dealt

	mu        sync.Mutex
	trusted   func(pki.Identity) bool // nil: everyone with a certificate
	open      map[*watched]pki.Identity
	strangers map[*watched]bool
	refusals  rate.Sometimes // to be logged: whoever is refused may come again at once
}

// New makes a port of a listener; advertise is the address by which others
// reach it.
func New(l net.Listener, advertise string, node *pki.Node, log *slog.Logger) *Port {
	a := addr(advertise)
	return &Port{
		listener: l, node: node, log: log, timeout: handshakeTimeout,
		raft: newDealt(a), http: newDealt(a), open: map[*watched]pki.Identity{}, strangers: map[*watched]bool{},
		refusals: rate.Sometimes{First: 10, Interval: time.Second},
	}
}

// Trust says who is a member still. Connections of others are refused from now
// on, and those there are end with the next Recheck.
func (p *Port) Trust(trusted func(pki.Identity) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trusted = trusted
}

// Recheck ends the connections of those who are members no more.
func (p *Port) Recheck() {
	p.mu.Lock()
	trusted, open := p.trusted, maps.Clone(p.open)
	p.mu.Unlock()
	for conn, id := range open {
		if trusted != nil && !trusted(id) {
			p.log.Info("connection of a former member is cut", "identity", id.CommonName(), "remote", conn.RemoteAddr().String())
			conn.Close()
		}
	}
}

// admit notes whose a connection is, or refuses it.
func (p *Port) admit(conn *watched, id pki.Identity) bool {
	p.mu.Lock()
	trusted := p.trusted
	p.open[conn] = id
	p.mu.Unlock()
	return trusted == nil || trusted(id)
}

// admitStranger counts a connection without a certificate, or refuses it.
func (p *Port) admitStranger(conn *watched) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.strangers) >= maxStrangers {
		return false
	}
	p.strangers[conn] = true
	return true
}

func (p *Port) forget(conn *watched) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
	delete(p.strangers, conn)
}

func (p *Port) refuse(ctx context.Context, conn *tls.Conn, why string, id pki.Identity) {
	p.refusals.Do(func() {
		p.log.WarnContext(ctx, "refused a connection", "why", why, "remote", conn.RemoteAddr().String(), "identity", id.CommonName())
	})
	conn.Close()
}

// watched is a connection below TLS that tells of its end.
type watched struct {
	net.Conn
	port *Port
}

// Close implements net.Conn.
func (w *watched) Close() error {
	w.port.forget(w)
	return w.Conn.Close()
}

// Run accepts until ctx ends, then closes the port and returns once every
// handshake is over. Connections already dealt out live on with their owners.
func (p *Port) Run(ctx context.Context) error {
	config := p.node.ServerTLS(ProtoRaft, "h2", "http/1.1")
	handshakes := make(chan struct{}, maxHandshakes)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer p.raft.Close()
	defer p.http.Close()
	stop := context.AfterFunc(ctx, func() { p.listener.Close() })
	defer stop()
	pause := acceptPause
	for {
		conn, err := p.listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("peer port closed under its owner: %w", err)
		case err != nil: // out of descriptors, most likely: others may give some back
			p.log.WarnContext(ctx, "accept on the peer port failed", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = acceptPause
		select {
		case handshakes <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-handshakes }()
			below := &watched{Conn: conn, port: p}
			p.greet(ctx, below, tls.Server(below, config))
		})
	}
}

const acceptPause = 10 * time.Millisecond

// greet finishes a handshake and hands the connection to its protocol.
func (p *Port) greet(ctx context.Context, below *watched, conn *tls.Conn) {
	hctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if err := conn.HandshakeContext(hctx); err != nil {
		p.log.DebugContext(ctx, "handshake on the peer port failed", "remote", conn.RemoteAddr().String(), "error", err)
		conn.Close()
		return
	}
	cs := conn.ConnectionState()
	to := p.http
	id, known := pki.PeerIdentity(&cs)
	switch {
	case known && !p.admit(below, id):
		p.refuse(ctx, conn, "of a former member", id)
		return
	case !known && !p.admitStranger(below):
		p.refuse(ctx, conn, "too many are without a certificate", id)
		return
	}
	if cs.NegotiatedProtocol == ProtoRaft {
		if !known || id.Role != pki.RoleReplica {
			p.refuse(ctx, conn, "Raft is for replicas", id)
			return
		}
		to = p.raft
	}
	to.deal(hctx, conn)
}

// HTTP is the listener of the HTTP connections, each a *tls.Conn after its handshake.
func (p *Port) HTTP() net.Listener { return p.http }

// Raft is the stream layer of Raft's transport.
func (p *Port) Raft() raft.StreamLayer { return &stream{dealt: p.raft, node: p.node} }

// stream is Raft's side of the port: it takes the connections dealt to Raft and
// dials other replicas.
type stream struct {
	*dealt
	node *pki.Node
}

// Dial implements raft.StreamLayer.
func (s *stream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout) // Raft's interface has no context
	defer cancel()
	d := tls.Dialer{Config: s.node.ClientTLS(pki.AnyOf(pki.RoleReplica), ProtoRaft)}
	conn, err := d.DialContext(ctx, "tcp", string(address))
	if err != nil {
		return nil, fmt.Errorf("dial replica at %s: %w", address, err)
	}
	return conn, nil
}

// dealt is a listener fed by Port.
type dealt struct {
	addr   addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newDealt(a addr) *dealt {
	return &dealt{addr: a, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// deal hands conn over, or closes it when nobody takes it in time.
func (d *dealt) deal(ctx context.Context, conn net.Conn) {
	select {
	case d.conns <- conn:
	case <-d.closed:
		conn.Close()
	case <-ctx.Done():
		conn.Close()
	}
}

func (d *dealt) Accept() (net.Conn, error) {
	select {
	case <-d.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case conn := <-d.conns:
		return conn, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

func (d *dealt) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

func (d *dealt) Addr() net.Addr { return d.addr }

// addr is an advertised host:port.
type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }
