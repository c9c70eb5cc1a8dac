package tracing

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/berth-cloud/berth/controlplane"
	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/heartbeat"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/lease"
	"github.com/berth-cloud/berth/hostd/server"
	"github.com/berth-cloud/berth/raftstore/seal"
	"github.com/berth-cloud/berth/telemetry"
	sender "github.com/berth-cloud/berth/telemetry/export"
	"github.com/berth-cloud/berth/telemetry/telemetrytest"
)

const (
	adminToken = "operator-token-of-the-tests"
	jwtKey     = "0123456789abcdef0123456789abcdef"
	patience   = 60 * time.Second // of a busy machine
)

// export sends this process's traces to a collector until flush is called.
func export(t *testing.T, c *telemetrytest.Collector) (flush func()) {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	stop, err := sender.Start(t.Context(), sender.Program{Service: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	flush = sync.OnceFunc(stop)
	t.Cleanup(flush)
	return flush
}

// plane is three replicas and a host.
type plane struct {
	t     *testing.T
	urls  map[string]string // by the replicas' ids
	admin map[string]*api.Client
	key   string
	http  *http.Client
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	p := &plane{t: t, urls: map[string]string{}, admin: map[string]*api.Client{}, http: &http.Client{Transport: &http.Transport{}, Timeout: patience}}
	t.Cleanup(p.http.CloseIdleConnections)
	p.startReplicas()
	p.signUp()
	p.startHost()
	return p
}

// startReplicas runs the replicas until the test ends.
func (p *plane) startReplicas() {
	t := p.t
	dir := t.TempDir()
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Save(filepath.Join(dir, "seal.key")); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "seal.key"))
	if err != nil {
		t.Fatal(err)
	}
	var members []pki.Member
	ports := map[string]net.Listener{}
	for _, id := range []string{"a", "b", "c"} {
		ports[id] = listen(t)
		members = append(members, pki.Member{ID: id, Address: ports[id].Addr().String()})
	}
	if err := pki.InitCluster(filepath.Join(dir, "pki"), members, "ann", raw, time.Now()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() { stop(); all.Wait() })
	for id, port := range ports {
		s, err := controlplane.New(t.Context(), controlplane.Config{
			DataDir: t.TempDir(), PKIDir: filepath.Join(dir, "pki", id), Listen: "-", AdminToken: adminToken,
			JWTKey: jwtKey, JWTIssuer: "tests", HeartbeatInterval: 100 * time.Millisecond, HostLease: 20 * time.Second, RaftTimeout: 3 * time.Second,
			PublicListener: listen(t), PeerListener: port, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		p.urls[id] = "http://" + s.Addr()
		all.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("replica %s: %v", id, err)
			}
		})
		if p.admin[id], err = api.NewClient(nil, adminToken, p.urls[id]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.admin[id].Close)
	}
	for id := range ports {
		p.await("replica "+id+" is ready", func() bool { return p.admin[id].Readyz(t.Context()) == nil })
	}
}

// signUp makes a workspace and its key.
func (p *plane) signUp() {
	t := p.t
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": "tests", "sub": "ann", "email": "ann@example.com", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString([]byte(jwtKey))
	if err != nil {
		t.Fatal(err)
	}
	person, err := api.NewClient(nil, token, p.urls["a"])
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	created, err := person.CreateToken(t.Context(), api.CreateToken{Name: "tests"})
	if err != nil {
		t.Fatal(err)
	}
	p.key = created.Key
}

// startHost runs a host's API and heartbeats until the test ends.
func (p *plane) startHost() {
	t := p.t
	token, err := p.admin["a"].CreateJoinToken(t.Context(), api.CreateJoinToken{})
	if err != nil {
		t.Fatal(err)
	}
	creds, err := heartbeat.Join(t.Context(), heartbeat.JoinRequest{Peers: token.Peers, Token: token.Token, CASHA256: token.CASHA256, HostID: "h1"})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(creds.Certificate, creds.Key)
	if err != nil {
		t.Fatal(err)
	}
	ca := x509.NewCertPool()
	ca.AppendCertsFromPEM(creds.CA)
	d := boxtest.Start(t, boxtest.NewWorld(t))
	l := listen(t)
	report := func() hostapi.Heartbeat {
		hb := hostapi.Heartbeat{
			HostID: "h1", Address: l.Addr().String(), BootID: "boot", StartedAt: time.Now(), Ready: true,
			Capacity:  hostapi.Capacity{CPUs: 8, MemoryMB: 2400, ReservedMB: d.ReservedMB(), Slots: 8, SlotsUsed: d.SlotsUsed(), OverheadMBPerBox: 88, DiskFreeBytes: 1 << 40},
			Templates: []hostapi.TemplateState{{Name: "base", BuildID: "build1", Status: "ready", CPU: 1, MemoryMB: 512, DiskMB: 1024}},
			Boxes:     []hostapi.BoxState{},
		}
		for _, b := range d.List() {
			hb.Boxes = append(hb.Boxes, b.State())
		}
		return hb
	}
	log := slog.New(slog.DiscardHandler)
	s := server.New(server.Config{
		Boxes: d.Host, Guests: d.Guests, Captures: d.Captures(), Info: report, ObserveTerm: d.Ledger.ObserveTerm, Log: log, Certificate: cert, CA: ca,
		Metrics: http.NotFoundHandler(),
	})
	beats := heartbeat.New(heartbeat.Config{
		Report: report, Changed: d.Changed(), Peers: creds.Peers, Interval: 100 * time.Millisecond, Clock: lease.SinceBoot,
		TLS: hostapi.PeerTLS(cert, ca, hostapi.IsReplica), OnReply: func(hostapi.HeartbeatReply, time.Duration) error { return nil }, Log: log,
	})
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() {
		stop()
		over, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(over); err != nil {
			t.Error(err)
		}
		all.Wait()
	})
	all.Go(func() { beats.Run(ctx) })
	all.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	})
	p.await("host h1 has the template base", func() bool {
		agents, _, err := p.admin["a"].ListAgents(t.Context(), api.Page{})
		return err == nil && len(agents) == 1 && agents[0].State == "up" && agents[0].Ready && len(agents[0].Templates) == 1
	})
	p.await("a sandbox can be made of base", func() bool {
		status, body := p.call("a", http.MethodPost, "/v1/sandboxes", `{"template":"base"}`, "")
		var sandbox struct{ ID string }
		if status != http.StatusCreated || json.Unmarshal(body, &sandbox) != nil {
			return false
		}
		status, _ = p.call("a", http.MethodDelete, "/v1/sandboxes/"+sandbox.ID, "", "")
		return status < http.StatusMultipleChoices
	})
}

// follower returns a replica that does not lead, and the one that does.
func (p *plane) follower() (follower, leader string) {
	p.t.Helper()
	p.await("a leader", func() bool {
		st, err := p.admin["a"].RaftStatus(p.t.Context())
		if err == nil {
			leader = st.LeaderID
		}
		return leader != ""
	})
	for id := range p.urls {
		if id != leader {
			return id, leader
		}
	}
	return "", leader
}

// call makes a request to a replica, with the workspace's key.
func (p *plane) call(replica, method, path, body, parent string) (int, []byte) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.urls[replica]+path, bytes.NewReader([]byte(body)))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.key)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if parent != "" {
		req.Header.Set(telemetry.HeaderParent, parent)
	}
	resp, err := p.http.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, raw
}

func (p *plane) await(what string, is func() bool) {
	p.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			p.t.Fatalf("timed out: %s", what)
		}
	}
}
