// Package peer implements the single TLS port of a replica that serves everything except
// the public API: Raft, heartbeats and joins of hosts, and requests that other replicas
// forward. ALPN separates the protocols, so one certificate, one address and one firewall
// rule are enough.
package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

// ProtoRaft is the ALPN protocol name of Raft's stream. Everything else is HTTP.
const ProtoRaft = "berth-raft/1"

// Trusted reports whether the holder of a certificate is still a member.
type Trusted func(id pki.Identity, leaf *x509.Certificate) bool

// holder is an identity and the certificate that proves it.
type holder struct {
	id   pki.Identity
	leaf *x509.Certificate
}

// Limits on what strangers can make a replica spend: unfinished handshakes, each of which
// may take handshakeTimeout, and connections without a certificate, which only joining
// hosts need. Connections beyond these limits are closed without an answer.
const (
	maxHandshakes = 512
	maxStrangers  = 128
)

var handshakeTimeout = timescale.Limit(5 * time.Second)

// Port listens on the peer address and hands out connections by protocol.
type Port struct {
	listener net.Listener
	node     *pki.Node
	log      *slog.Logger
	timeout  time.Duration // of a handshake

	raft *dealt
	http *dealt

	mu        sync.Mutex
	trusted   Trusted // nil: trusts every holder of a certificate
	open      map[*watched]holder
	strangers map[*watched]bool
	refusals  rate.Sometimes // limits logging: a refused client may reconnect at once
}

// New returns a Port on l. advertise is the address at which others reach it.
func New(l net.Listener, advertise string, node *pki.Node, log *slog.Logger) *Port {
	a := addr(advertise)
	return &Port{
		listener: l, node: node, log: log, timeout: handshakeTimeout,
		raft: newDealt(a), http: newDealt(a), open: map[*watched]holder{}, strangers: map[*watched]bool{},
		refusals: rate.Sometimes{First: 10, Interval: time.Second},
	}
}

// Trust sets the function that decides who is still a member. From now on the port refuses
// connections of anyone else. Existing connections end at the next Recheck.
func (p *Port) Trust(trusted Trusted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trusted = trusted
}

// Recheck closes the connections of former members.
func (p *Port) Recheck() {
	p.mu.Lock()
	trusted, open := p.trusted, maps.Clone(p.open)
	p.mu.Unlock()
	for conn, who := range open {
		if trusted != nil && !trusted(who.id, who.leaf) {
			p.log.Info("connection of a former member is cut", "identity", who.id.CommonName(), "remote", conn.RemoteAddr().String())
			conn.Close()
		}
	}
}

// admit records the holder of a connection and reports whether the holder is trusted.
func (p *Port) admit(conn *watched, who holder) bool {
	p.mu.Lock()
	trusted := p.trusted
	p.open[conn] = who
	p.mu.Unlock()
	return trusted == nil || trusted(who.id, who.leaf)
}

// admitStranger counts a connection without a certificate. It returns false if there are
// maxStrangers already.
func (p *Port) admitStranger(conn *watched) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.strangers) >= maxStrangers {
		return false
	}
	p.strangers[conn] = true
	return true
}

// admitFormer lets a former replica ask why nobody talks to it, which Handler answers. Its
// connection counts as a stranger's and can do no more than that. It returns false for all
// others, and if there are too many.
func (p *Port) admitFormer(conn *watched, id pki.Identity, proto string) bool {
	if id.Role != pki.RoleReplica || proto == ProtoRaft {
		return false
	}
	p.forget(conn) // Recheck must not cut it before it has its answer
	return p.admitStranger(conn)
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

// watched is the connection below TLS. It tells the port when it closes.
type watched struct {
	net.Conn
	port *Port
}

// Close implements net.Conn.
func (w *watched) Close() error {
	w.port.forget(w)
	return w.Conn.Close()
}

// Run accepts connections until ctx ends. It then closes the port and returns once every
// handshake is over. Connections that were handed out stay open; their owners close them.
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
		case err != nil: // most likely out of file descriptors: wait until others release some
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
	case known && !p.admit(below, holder{id, cs.PeerCertificates[0]}) && !p.admitFormer(below, id, cs.NegotiatedProtocol):
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

// HTTP returns a listener for HTTP connections. Each is a *tls.Conn that has finished its
// handshake.
func (p *Port) HTTP() net.Listener { return p.http }

// Raft returns the stream layer for Raft's transport.
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

// dealt is a listener that Port feeds with connections.
type dealt struct {
	addr   addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newDealt(a addr) *dealt {
	return &dealt{addr: a, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// deal passes conn to Accept. It closes conn if the listener is closed or ctx ends first.
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

// addr is an advertised address, host:port.
type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }
