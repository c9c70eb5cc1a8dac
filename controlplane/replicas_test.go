package controlplane

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/seal"
)

// The replicas of these tests are this program itself, run with this variable set,
// so that they can be killed like real ones.
const replicaEnv = "BERTH_TEST_REPLICA"

// unlimitedEnv disables such a replica's rate limit.
const unlimitedEnv = "BERTH_TEST_UNLIMITED"

type unlimited struct{}

func (unlimited) Allow(string) error { return nil }

func TestMain(m *testing.M) {
	if os.Getenv(replicaEnv) != "" {
		os.Exit(runReplica())
	}
	// The ACME server of the tests waits for tasks for ever.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/letsencrypt/pebble/v2/va.VAImpl.processTasks"))
}

func runReplica() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg, err := env.ParseAs[Config]()
	if err == nil {
		cfg.Logger, err = NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
	}
	if os.Getenv(unlimitedEnv) != "" {
		cfg.Limiter = unlimited{}
	}
	var s *Server
	if err == nil {
		s, err = New(ctx, cfg)
	}
	if err == nil {
		err = s.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "replica:", err)
		return 1
	}
	return 0
}

const (
	adminToken = "operator-token-of-the-tests"
	jwtKey     = "0123456789abcdef0123456789abcdef"
	jwtIssuer  = "tests"
)

// stack is three replicas as processes, and fake hosts in this one.
type stack struct {
	t        *testing.T
	dir      string
	ca       *pki.CA
	replicas []*process
	peers    []string

	ctx context.Context // of the hosts' heartbeats
	wg  sync.WaitGroup
}

type process struct {
	id, url, peer string
	env           []string
	log           *os.File

	cmd  *exec.Cmd
	done chan struct{}
}

// ports counts those that freePort tried.
var ports atomic.Uint32

// freePort is an address of this process's own, which neither another program's
// listener nor a connection takes before it is used: on a loopback address that nobody
// else has, and below the ports of connections.
func freePort(t *testing.T) string {
	t.Helper()
	pid := os.Getpid()
	host := net.IPv4(127, byte(64+pid>>16), byte(pid>>8), byte(pid)).String()
	for range 1000 {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(10_000+int(ports.Add(1))%20_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

func sealKey(t *testing.T) []byte {
	t.Helper()
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "seal.key")
	if err := keys.Save(path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func newStack(t *testing.T, extra ...string) *stack {
	t.Helper()
	s := &stack{t: t, dir: t.TempDir()}
	var members []pki.Member
	for _, id := range []string{"a", "b", "c"} {
		members = append(members, pki.Member{ID: id, Address: freePort(t)})
	}
	pkiDir := filepath.Join(s.dir, "pki")
	if err := pki.InitCluster(pkiDir, members, "ann", sealKey(t), time.Now()); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.ca, err = pki.LoadCA(filepath.Join(pkiDir, "a")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.ctx = ctx
	t.Cleanup(func() {
		cancel()
		s.wg.Wait()
		for _, p := range s.replicas {
			p.kill()
			p.log.Close()
			if t.Failed() {
				t.Logf("log of replica %s:\n%s", p.id, tail(p.log.Name()))
			}
		}
	})
	for _, m := range members {
		listen := freePort(t)
		p := &process{id: m.ID, url: "http://" + listen, peer: m.Address, env: append(os.Environ(),
			replicaEnv+"=1", "BERTH_PKI_DIR="+filepath.Join(pkiDir, m.ID), "BERTH_DATA_DIR="+filepath.Join(s.dir, "data-"+m.ID),
			"BERTH_LISTEN="+listen, "BERTH_ADMIN_TOKEN="+adminToken, "BERTH_JWT_HS256_KEY="+jwtKey, "BERTH_JWT_ISSUER="+jwtIssuer,
			"BERTH_PREVIEW_SUFFIX=preview.test", "BERTH_HEARTBEAT_INTERVAL=100ms", "BERTH_HOST_LEASE=3s", "BERTH_ORPHAN_GRACE=200ms", "BERTH_LOG_LEVEL=debug",
		)}
		p.env = append(p.env, extra...)
		if p.log, err = os.Create(filepath.Join(s.dir, m.ID+".log")); err != nil {
			t.Fatal(err)
		}
		s.replicas, s.peers = append(s.replicas, p), append(s.peers, m.Address)
		s.start(p)
	}
	s.leader()
	return s
}

func tail(path string) []byte {
	raw, _ := os.ReadFile(path)
	return raw[max(0, len(raw)-6000):]
}

func (s *stack) start(p *process) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	p.cmd = exec.Command(self)
	p.cmd.Env, p.cmd.Stderr = p.env, p.log
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // its state is read where it matters
	}()
}

func (p *process) running() bool {
	if p.done == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill is kill -9.
func (p *process) kill() {
	if !p.running() {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.done
}

func (s *stack) urls() (out []string) {
	for _, p := range s.replicas {
		out = append(out, p.url)
	}
	return out
}

func (s *stack) client(token string, urls ...string) *api.Client {
	s.t.Helper()
	if len(urls) == 0 {
		urls = s.urls()
	}
	c, err := api.NewClient(nil, token, urls...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

func (s *stack) admin(urls ...string) *api.Client { return s.client(adminToken, urls...) }

// leader waits until every running replica knows the same leader.
func (s *stack) leader() *process {
	s.t.Helper()
	var found *process
	testcluster.Await(s.t, "a leader that all know", func() bool {
		found = nil
		for _, p := range s.replicas {
			if !p.running() {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			st, err := s.admin(p.url).RaftStatus(ctx)
			cancel()
			if err != nil || st.LeaderID == "" {
				return false
			}
			if st.State == "leader" {
				found = p
			}
		}
		return found != nil
	})
	return found
}

func (s *stack) follower() *process {
	l := s.leader()
	for _, p := range s.replicas {
		if p != l && p.running() {
			return p
		}
	}
	s.t.Fatal("no follower")
	return nil
}

// user signs a user in and returns the JWT and an API key of their workspace.
func (s *stack) user(subject string) (token, key string) {
	s.t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": jwtIssuer, "sub": subject, "email": subject + "@example.com", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString([]byte(jwtKey))
	if err != nil {
		s.t.Fatal(err)
	}
	created, err := s.client(token).CreateToken(s.t.Context(), api.CreateToken{Name: "tests"})
	if err != nil {
		s.t.Fatal(err)
	}
	return token, created.Key
}

// join lets a fake host join as hostd does, and send heartbeats.
func (s *stack) join(id string, memoryMB int) *fakehost.Host {
	s.t.Helper()
	token, err := s.admin().CreateJoinToken(s.t.Context(), api.CreateJoinToken{})
	if err != nil {
		s.t.Fatal(err)
	}
	joined, status := s.askToJoin(s.follower().peer, token.Token, id)
	if status != http.StatusOK || len(joined.Peers) != 3 {
		s.t.Fatalf("join: status %d, %+v", status, joined)
	}
	h := fakehost.New(s.t, s.ca, id, memoryMB)
	s.sendHeartbeats(h, joined)
	testcluster.Await(s.t, "host "+id, func() bool {
		agents, _, err := s.admin().ListAgents(s.t.Context(), api.Page{})
		for _, a := range agents {
			if err == nil && a.ID == id && a.State == "up" && a.Ready {
				return true
			}
		}
		return false
	})
	return h
}

var hostKey = sync.OnceValue(func() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
})

func (s *stack) askToJoin(peerAddress, token, id string) (hostapi.Joined, int) {
	s.t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, hostKey())
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := json.Marshal(hostapi.Join{Token: token, HostID: id, CSR: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))})
	if err != nil {
		s.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.ca.CertPEM())
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: hostapi.PeerTLS(tls.Certificate{}, pool, hostapi.IsReplica),
	}}
	resp, err := client.Post("https://"+peerAddress+hostapi.PathJoin, "application/json", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var joined hostapi.Joined
	raw, _ := io.ReadAll(resp.Body)
	_ = json.Unmarshal(raw, &joined) // a refusal is no Joined
	return joined, resp.StatusCode
}

// sendHeartbeats sends the host's heartbeats to the leader, following 421.
func (s *stack) sendHeartbeats(h *fakehost.Host, joined hostapi.Joined) {
	der, err := x509.MarshalPKCS8PrivateKey(hostKey())
	if err != nil {
		s.t.Fatal(err)
	}
	node, err := pki.ParseNode([]byte(joined.CA), []byte(joined.Certificate), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		s.t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: node.ClientTLS(pki.AnyOf(pki.RoleReplica))}
	client := &http.Client{Transport: transport, Timeout: 2 * time.Second}
	next := 0
	at := joined.Peers[0]
	send := func(ctx context.Context, hb hostapi.Heartbeat) error {
		body, err := json.Marshal(hb)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, "POST", "https://"+at+hostapi.PathHeartbeat, bytes.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			defer resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				_, err = io.Copy(io.Discard, resp.Body)
				return err
			}
			var to hostapi.NotLeader
			if resp.StatusCode == http.StatusMisdirectedRequest && json.NewDecoder(resp.Body).Decode(&to) == nil && to.LeaderAddress != "" {
				at = to.LeaderAddress
				return errors.New("redirected")
			}
		}
		next++
		at = s.peers[next%len(s.peers)]
		return errors.New("not taken")
	}
	s.wg.Go(func() {
		defer transport.CloseIdleConnections()
		h.SendHeartbeats(s.ctx, 50*time.Millisecond, send)
	})
}

// raw makes one request without the client.
func raw(t *testing.T, method, url, token, body string) (*http.Response, string) {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, in)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(out)
}
