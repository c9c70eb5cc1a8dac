package heartbeat

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"crypto/sha256"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/internal/testca"
	"github.com/berth-cloud/berth/nodecert"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica is a peer port that leads, or says who does, or is down.
type replica struct {
	*httptest.Server
	addr string
	got  chan hostapi.Heartbeat
	part chan hostapi.HeartbeatPart // those that it takes; nil: as an older leader, it knows no parts

	mu     sync.Mutex
	leader string // address it names; its own means that it leads
	reply  hostapi.HeartbeatReply
	status int  // overrides
	gap    bool // the next part is refused
}

func (r *replica) set(leader string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader = leader
}

func newReplica(t *testing.T, ca *testca.CA, commonName string) *replica {
	t.Helper()
	r := &replica{got: make(chan hostapi.Heartbeat, 64)}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		var in hostapi.HeartbeatPart
		_ = json.NewDecoder(req.Body).Decode(&in)
		hb := in.Heartbeat
		isPart := r.part != nil && req.URL.Path == hostapi.PathHeartbeatPart
		if cn := req.TLS.VerifiedChains[0][0].Subject.CommonName; cn != "host:"+hb.HostID || req.URL.Path != hostapi.PathHeartbeat && !isPart {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		switch {
		case r.status != 0:
			w.WriteHeader(r.status)
		case isPart && r.leader == r.addr && r.gap:
			r.gap = false
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(hostapi.Error{Code: hostapi.CodeHeartbeatGap, Message: "send a whole one"})
		case r.leader == r.addr:
			if isPart {
				r.part <- in
			} else {
				r.got <- hb
			}
			_ = json.NewEncoder(w).Encode(r.reply)
		default:
			w.WriteHeader(http.StatusMisdirectedRequest)
			_ = json.NewEncoder(w).Encode(hostapi.NotLeader{LeaderAddress: r.leader})
		}
	}))
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	r.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{ca.Issue(t, commonName)}, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
	r.StartTLS()
	r.addr = r.Listener.Addr().String()
	r.leader = r.addr
	r.reply = hostapi.HeartbeatReply{Term: 3, IntervalSeconds: 3600, LeaseSeconds: 3}
	t.Cleanup(r.Close)
	return r
}

type session struct {
	sender  *Sender
	term    atomic.Uint64 // the highest heard
	changed chan struct{}
	replies chan hostapi.HeartbeatReply
	stop    func()
}

func run(t *testing.T, ca *testca.CA, peers ...string) *session {
	t.Helper()
	return runAt(t, ca, 0, peers...)
}

// runAt is run of a host that has heard of a term.
func runAt(t *testing.T, ca *testca.CA, term uint64, peers ...string) *session {
	t.Helper()
	s := &session{changed: make(chan struct{}, 1), replies: make(chan hostapi.HeartbeatReply, 64)}
	s.term.Store(term)
	b := New(Config{
		Report:  func() hostapi.Heartbeat { return hostapi.Heartbeat{HostID: "h1"} },
		Changed: s.changed, Peers: peers, Interval: time.Hour,
		TLS: hostapi.PeerTLS(ca.Issue(t, "host:h1"), ca.Pool, hostapi.IsReplica),
		OnReply: func(r hostapi.HeartbeatReply, _ time.Duration) error {
			if r.Term < s.term.Load() {
				return errors.New("stale term")
			}
			s.term.Store(r.Term)
			s.replies <- r
			return nil
		},
		Log: slog.New(slog.DiscardHandler),
	})
	s.sender = b
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Run(ctx) }()
	s.stop = func() { cancel(); <-ended }
	t.Cleanup(s.stop)
	return s
}

func receive[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was received within 20 s")
		panic("unreachable")
	}
}

func TestAHeartbeatIsSentAtOnceAndAfterEachChange(t *testing.T) {
	ca := testca.New(t)
	r := newReplica(t, ca, "replica:r1")
	s := run(t, ca, r.addr)
	if hb := receive(t, r.got); hb.HostID != "h1" || hb.Sequence != 1 {
		t.Errorf("first = %+v", hb)
	}
	if reply := receive(t, s.replies); reply.Term != 3 {
		t.Errorf("reply = %+v", reply)
	}
	s.changed <- struct{}{}
	if hb := receive(t, r.got); hb.Sequence != 2 {
		t.Errorf("second = %+v", hb)
	}
}

func TestChangesAtOnceAreToldInOne(t *testing.T) {
	ca := testca.New(t)
	r := newReplica(t, ca, "replica:r1")
	s := run(t, ca, r.addr)
	receive(t, r.got)
	receive(t, s.replies)
	const pairs = 5
	inOne := 0
	for range pairs {
		s.changed <- struct{}{}
		s.changed <- struct{}{}
		receive(t, r.got)
		if len(s.changed) == 0 {
			inOne++
		}
		receive(t, s.replies)
	}
	// On a machine that is held up, a pair may be torn.
	if inOne == 0 {
		t.Errorf("of %d pairs of changes, each made two heartbeats", pairs)
	}
}

func TestTheLeaderIsToldOfTheEnd(t *testing.T) {
	ca := testca.New(t)
	r := newReplica(t, ca, "replica:r1")
	s := run(t, ca, r.addr)
	receive(t, r.got)
	receive(t, s.replies)
	s.stop()
	if hb := receive(t, r.got); hb.Sequence != 2 {
		t.Errorf("last = %+v", hb)
	}
}

func TestTheIntervalIsTheLeaders(t *testing.T) {
	ca := testca.New(t)
	r := newReplica(t, ca, "replica:r1")
	r.reply.IntervalSeconds = 0.001 // as fast as is allowed
	run(t, ca, r.addr)
	for range 3 {
		receive(t, r.got)
	}
}

func TestHintsToTheLeaderAreFollowed(t *testing.T) {
	ca := testca.New(t)
	r1, r2 := newReplica(t, ca, "replica:r1"), newReplica(t, ca, "replica:r2")
	r1.set(r2.addr)
	s := run(t, ca, r1.addr)
	receive(t, r2.got)
	// The leadership moves on.
	r1.set(r1.addr)
	r2.set(r1.addr)
	s.changed <- struct{}{}
	receive(t, r1.got)
}

func TestADeadLeaderIsLeftForAnother(t *testing.T) {
	ca := testca.New(t)
	r1, r2 := newReplica(t, ca, "replica:r1"), newReplica(t, ca, "replica:r2")
	s := run(t, ca, r1.addr, r2.addr)
	receive(t, r1.got)
	r1.CloseClientConnections()
	r1.Close()
	s.changed <- struct{}{}
	receive(t, r2.got)
}

func TestAHostWithoutALeaderKeepsTrying(t *testing.T) {
	ca := testca.New(t)
	r1, r2 := newReplica(t, ca, "replica:r1"), newReplica(t, ca, "replica:r2")
	r1.set("")
	r2.mu.Lock()
	r2.status = http.StatusServiceUnavailable
	r2.mu.Unlock()
	run(t, ca, r1.addr, r2.addr)
	// Each names the other for a while, then one leads.
	r1.set(r2.addr)
	r2.mu.Lock()
	r2.status, r2.leader = 0, r1.addr
	r2.mu.Unlock()
	r1.set(r1.addr)
	receive(t, r1.got)
}

// A replica that was deposed and does not know it takes heartbeats still. The
// host looks for another as soon as it has heard of a higher term.
func TestADeposedLeaderIsLeftForAnother(t *testing.T) {
	ca := testca.New(t)
	old, now := newReplica(t, ca, "replica:r1"), newReplica(t, ca, "replica:r2")
	now.reply.Term = 4
	old.reply.Peers = []string{old.addr}
	s := runAt(t, ca, 4, old.addr, now.addr) // by a call of its successor's
	if reply := receive(t, s.replies); reply.Term != 4 {
		t.Errorf("the reply of term %d was believed", reply.Term)
	}
	receive(t, now.got)
}

func TestPeersAreLearnt(t *testing.T) {
	ca := testca.New(t)
	r1, r2 := newReplica(t, ca, "replica:r1"), newReplica(t, ca, "replica:r2")
	r1.reply.Peers = []string{r2.addr}
	s := run(t, ca, r1.addr)
	receive(t, s.replies)
	r1.CloseClientConnections()
	r1.Close()
	s.changed <- struct{}{}
	receive(t, r2.got)
}

func TestAnImpostorIsToldNothing(t *testing.T) {
	ca := testca.New(t)
	for name, impostor := range map[string]*replica{
		"another host of the cluster":  newReplica(t, ca, "host:h2"),
		"a replica of another cluster": newReplica(t, testca.New(t), "replica:r1"),
	} {
		t.Run(name, func(t *testing.T) {
			genuine := newReplica(t, ca, "replica:r2")
			run(t, ca, impostor.addr, genuine.addr)
			receive(t, genuine.got)
			if len(impostor.got) > 0 {
				t.Error("the impostor got a heartbeat")
			}
		})
	}
}

// joinServer is a peer port that signs requests with its CA, or with the last of others, of
// which it tells as well.
func joinServer(t *testing.T, ca *testca.CA, commonName, signAs string, others ...*testca.CA) string {
	t.Helper()
	signs, bundle := ca, ca.PEM()
	for _, other := range others {
		signs, bundle = other, append(other.PEM(), bundle...)
	}
	cert := ca.Issue(t, commonName)
	cert.Certificate = append(cert.Certificate, ca.DER)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in hostapi.Join
		_ = json.NewDecoder(r.Body).Decode(&in)
		if in.Token != "good" {
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(hostapi.Error{Code: hostapi.CodeUnauthorized, Message: "join token is unknown, used or expired"})
			return
		}
		block, _ := pem.Decode([]byte(in.CSR))
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil || csr.CheckSignature() != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(hostapi.Joined{
			Certificate: encodePEM("CERTIFICATE", signs.Sign(t, signAs, csr.PublicKey)), CA: string(bundle), Peers: []string{"a:1", "b:2"},
		})
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func digest(ca *testca.CA) string {
	sum := sha256.Sum256(ca.DER)
	return hex.EncodeToString(sum[:])
}

func TestJoin(t *testing.T) {
	ca := testca.New(t)
	peer := joinServer(t, ca, "replica:r1", "host:h1")
	c, err := Join(t.Context(), JoinRequest{Peers: []string{joinServer(t, testca.New(t), "replica:r9", "host:h1"), peer}, Token: "good", CASHA256: strings.ToUpper(digest(ca)), HostID: "h1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(c.Certificate, c.Key); err != nil || len(c.Peers) != 2 {
		t.Errorf("credentials: %v, peers %v", err, c.Peers)
	}
}

// While the cluster's authority is exchanged, a host is told of both, and its certificate may
// be of the one that its token does not name.
func TestAJoinWhileTheAuthorityIsExchanged(t *testing.T) {
	ca, next, other := testca.New(t), testca.New(t), testca.New(t)
	in := JoinRequest{Peers: []string{joinServer(t, ca, "replica:r1", "host:h1", next)}, Token: "good", CASHA256: digest(ca), HostID: "h1"}
	c, err := Join(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := nodecert.NewTrust("", c.CA)
	if err != nil || len(trust.CAs()) != 2 {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil || trust.Issuer(pair.Leaf) == nil || !bytes.Equal(trust.Issuer(pair.Leaf).Raw, next.DER) {
		t.Errorf("the certificate: %v", err)
	}
	// The replica chooses its certificate by the name that the host asks for.
	raw := sha256.Sum256(ca.DER)
	if got := pinned(raw[:]).ServerName; got != digest(ca)[:16]+hostapi.JoinServerSuffix {
		t.Errorf("it asks for %q", got)
	}
	in.CASHA256 = digest(other)
	if _, err := Join(t.Context(), in); !errors.Is(err, ErrWrongCA) {
		t.Error(err)
	}
	for name, ca := range map[string][]byte{"nothing": nil, "noise": []byte("noise"), "another one alone": other.PEM(), "noise behind it": append(ca.PEM(), "noise"...)} {
		if err := (Credentials{Certificate: c.Certificate, Key: c.Key, CA: ca}).check(raw[:], "h1"); err == nil {
			t.Errorf("%s was taken for the CA", name)
		}
	}
}

func TestJoinIsRefused(t *testing.T) {
	ca, other := testca.New(t), testca.New(t)
	peer := joinServer(t, ca, "replica:r1", "host:h1")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	for name, c := range map[string]struct {
		in   JoinRequest
		want error
		says string
	}{
		"a used token":                 {JoinRequest{Peers: []string{peer}, Token: "used", CASHA256: digest(ca), HostID: "h1"}, nil, "unknown, used or expired"},
		"another cluster":              {JoinRequest{Peers: []string{peer}, Token: "good", CASHA256: digest(other), HostID: "h1"}, ErrWrongCA, ""},
		"a host that plays replica":    {JoinRequest{Peers: []string{joinServer(t, ca, "host:h9", "host:h1")}, Token: "good", CASHA256: digest(ca), HostID: "h1"}, ErrWrongCA, ""},
		"a certificate for another id": {JoinRequest{Peers: []string{joinServer(t, ca, "replica:r1", "host:h2")}, Token: "good", CASHA256: digest(ca), HostID: "h1"}, nil, `for "host:h2"`},
		"a digest that is none":        {JoinRequest{Peers: []string{peer}, Token: "good", CASHA256: "abc", HostID: "h1"}, nil, "64 hex digits"},
		"nobody there":                 {JoinRequest{Peers: []string{closed}, Token: "good", CASHA256: digest(ca), HostID: "h1"}, nil, "no replica answered"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Join(t.Context(), c.in)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Join = %v, want %v %q", err, c.want, c.says)
			}
		})
	}
}
