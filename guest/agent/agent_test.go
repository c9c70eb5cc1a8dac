package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/guest/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeGuest takes on every identity unless it is told to fail.
type fakeGuest struct {
	mu      sync.Mutex
	applied []guestapi.Identity
	err     error
	last    identity.Last
}

func (g *fakeGuest) Apply(id *guestapi.Identity, _ time.Time, _ netip.AddrPort) (guestapi.IdentityConfirmation, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.applied = append(g.applied, *id)
	return guestapi.IdentityConfirmation{Generation: id.Generation, EntropyBits: 8 * len(id.Entropy), ClockSteppedMS: -5}, g.err
}

func (g *fakeGuest) Last() (identity.Last, error) { return g.last, nil }

type world struct {
	server   *Server
	guest    *fakeGuest
	client   *guestclient.Client
	addr     string
	poweroff chan struct{}
}

// start runs an agent until the test ends.
func start(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	w := &world{guest: &fakeGuest{}, poweroff: make(chan struct{}, 1)}
	cfg := Config{
		Version: "test", Listen: netip.MustParseAddrPort("127.0.0.1:0"), Guest: w.guest,
		Spec:     guestapi.BootSpec{Env: map[string]string{"FROM_TEMPLATE": "yes", "BOTH": "template"}},
		PowerOff: func() error { w.poweroff <- struct{}{}; return nil },
		Log:      slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		await(t, "the end of all commands", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.execs) == 0
		})
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	w.server, w.addr = s, s.Addr().String()
	w.client = guestclient.New(func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", w.addr) })
	return w
}

// transfers counts the requests that last.
func (w *world) transfers() int {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	return len(w.server.transfers)
}

// followers counts the requests that wait for output.
func (w *world) followers() int {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	return len(w.server.followers)
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

func TestHealth(t *testing.T) {
	w := start(t)
	h, err := w.client.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.Version != "test" || h.Generation != 0 || h.UptimeMS <= 0 || h.Start != nil {
		t.Errorf("got %+v", h)
	}
}

func TestOnlyThePeerIsAnswered(t *testing.T) {
	w := start(t, func(c *Config) { c.Peer = netip.MustParseAddr("127.0.0.2") })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if h, err := w.client.Health(ctx); err == nil {
		t.Errorf("answered %+v", h)
	}
	if done, err := w.client.Identity(ctx, testIdentity(1)); err == nil {
		t.Errorf("confirmed %+v", done)
	}
	if len(w.guest.applied) != 0 {
		t.Errorf("applied %+v", w.guest.applied)
	}
}

func testIdentity(generation uint64) guestapi.Identity {
	return guestapi.Identity{
		Generation: generation, Entropy: make([]byte, 64), Hostname: "box", MachineID: strings.Repeat("ab", 16),
		Env: map[string]string{"FROM_IDENTITY": "yes", "BOTH": "identity"}, Nameservers: []string{"198.18.0.1"},
		SSHHostKeys: []guestapi.SSHHostKey{{Type: "ed25519", Private: "A\nB\n", Public: "p"}},
	}
}

func TestIdentityIsConfirmed(t *testing.T) {
	w := start(t)
	done, err := w.client.Identity(t.Context(), testIdentity(3))
	if err != nil {
		t.Fatal(err)
	}
	if done.Generation != 3 || done.EntropyBits != 512 || done.ClockSteppedMS != -5 || done.TookMicrosecond <= 0 {
		t.Errorf("got %+v", done)
	}
	if h, err := w.client.Health(t.Context()); err != nil || h.Generation != 3 {
		t.Errorf("health: %+v, %v", h, err)
	}
	res, err := w.client.Run(t.Context(), guestapi.ExecRequest{Argv: []string{"env"}, Env: map[string]string{"FROM_REQUEST": "yes"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FROM_TEMPLATE=yes", "FROM_IDENTITY=yes", "FROM_REQUEST=yes", "BOTH=identity"} {
		if !strings.Contains(string(res.Stdout), want+"\n") {
			t.Errorf("a command's environment lacks %s", want)
		}
	}
}

func TestIdentityThatFailedIsNotConfirmed(t *testing.T) {
	w := start(t, func(c *Config) { c.Guest = &fakeGuest{err: errors.New("no entropy device")} })
	_, err := w.client.Identity(t.Context(), testIdentity(3))
	var refused *guestclient.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusInternalServerError || !strings.Contains(refused.Message, "no entropy device") {
		t.Errorf("got %v", err)
	}
	if h, err := w.client.Health(t.Context()); err != nil || h.Generation != 0 {
		t.Errorf("health: %+v, %v", h, err)
	}
}

func TestOlderIdentityIsRefused(t *testing.T) {
	w := start(t)
	for _, c := range []struct {
		generation uint64
		status     int
	}{{5, 0}, {5, 0}, {4, http.StatusConflict}, {6, 0}} {
		_, err := w.client.Identity(t.Context(), testIdentity(c.generation))
		var refused *guestclient.Error
		if errors.As(err, &refused); (err == nil) != (c.status == 0) || (err != nil && refused.Status != c.status) {
			t.Errorf("generation %d: %v", c.generation, err)
		}
	}
}

func TestAgentThatStartsAgainKeepsTheIdentity(t *testing.T) {
	w := start(t, func(c *Config) {
		c.Guest = &fakeGuest{last: identity.Last{Generation: 8, Env: map[string]string{"FROM_IDENTITY": "yes"}}}
	})
	h, err := w.client.Health(t.Context())
	if err != nil || h.Generation != 8 {
		t.Errorf("health: %+v, %v", h, err)
	}
	res, err := w.client.Run(t.Context(), guestapi.ExecRequest{Argv: []string{"printenv", "FROM_IDENTITY"}})
	if err != nil || string(res.Stdout) != "yes\n" {
		t.Errorf("got %+v, %v", res, err)
	}
}

// raw sends bytes and returns the status line of what comes back.
func (w *world) raw(t *testing.T, parts ...string) string {
	t.Helper()
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for i, p := range parts {
		if i > 0 {
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // the pause between two packets is the case
		}
		if _, err := io.WriteString(conn, p); err != nil {
			t.Fatal(err)
		}
	}
	head := make([]byte, 64)
	n, _ := io.ReadAtLeast(conn, head, 12)
	line, _, _ := strings.Cut(string(head[:n]), "\r\n")
	return line
}

// message is what an identity is sent as.
func message(t *testing.T, id guestapi.Identity) string {
	t.Helper()
	id.UnixNanos = 1
	raw, err := id.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestIdentityByUnusualRequests(t *testing.T) {
	w := start(t)
	raw := message(t, testIdentity(1))
	length := func(b string) string { return "Content-Length: " + itoa(len(b)) + "\r\n\r\n" }
	post := "POST /v1/identity HTTP/1.1\r\nHost: guest\r\n"
	chunk := itoa16(len(raw)) + "\r\n" + raw + "\r\n0\r\n\r\n"
	for name, c := range map[string]struct {
		parts []string
		want  string
	}{
		"in one piece":            {[]string{post + length(raw) + raw}, "200"},
		"body after the header":   {[]string{post + length(raw), raw}, "200"},
		"body in two pieces":      {[]string{post + length(raw) + raw[:40], raw[40:]}, "200"},
		"header in two pieces":    {[]string{post[:20], post[20:] + length(raw) + raw}, "200"},
		"chunked":                 {[]string{post + "Transfer-Encoding: chunked\r\n\r\n" + chunk}, "200"},
		"lower-case header":       {[]string{post + strings.ToLower(length(raw)) + raw}, "200"},
		"HTTP/1.0":                {[]string{strings.Replace(post, "1.1", "1.0", 1) + length(raw) + raw}, "200"},
		"no identity":             {[]string{post + length("hello") + "hello"}, "400"},
		"two lengths":             {[]string{post + "Content-Length: 1\r\n" + length(raw) + raw}, "400"},
		"negative length":         {[]string{post + "Content-Length: -1\r\n\r\n"}, "400"},
		"a header without colon":  {[]string{post + "nonsense\r\n" + length(raw) + raw}, "400"},
		"another method":          {[]string{strings.Replace(post, "POST", "GET", 1) + length(raw) + raw}, "405"},
		"another path":            {[]string{strings.Replace(post, "identity", "identify", 1) + length(raw) + raw}, "404"},
		"not HTTP":                {[]string{"\x16\x03\x01\x00\xff" + strings.Repeat("\x00", 300) + "\r\n\r\n"}, "400"},
		"a body larger than read": {[]string{post + "Content-Length: 100000\r\n\r\n" + strings.Repeat(" ", 100000)}, "400"},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.raw(t, c.parts...)
			if f := strings.Fields(got); len(f) < 2 || f[1] != c.want {
				t.Errorf("got %q, want status %s", got, c.want)
			}
		})
	}
}

func TestIdentityOfAnySize(t *testing.T) {
	w := start(t)
	for i, size := range []int{1 << 10, 20 << 10, 40 << 10, guestapi.MaxIdentity - 1<<10} {
		id := testIdentity(uint64(i + 1))
		id.Env = map[string]string{"LARGE": strings.Repeat("x", size)}
		if done, err := w.client.Identity(t.Context(), id); err != nil || done.Generation != id.Generation {
			t.Errorf("%d bytes: %+v, %v", size, done, err)
		}
	}
}

func itoa(n int) string { raw, _ := json.Marshal(n); return string(raw) }
func itoa16(n int) string {
	const d = "0123456789abcdef"
	return string([]byte{d[n>>8&15], d[n>>4&15], d[n&15]})
}

func TestBadBodiesAreRefused(t *testing.T) {
	w := start(t)
	whole := message(t, testIdentity(1))
	without := testIdentity(1)
	without.Entropy = nil
	for name, c := range map[string]struct {
		method, path, body string
		want               int
	}{
		"exec of no JSON":      {"POST", guestapi.PathExec, "{", 400},
		"exec of a wrong type": {"POST", guestapi.PathExec, `{"argv":"ls"}`, 400},
		"exec without upgrade": {"POST", guestapi.PathExec, `{"argv":["ls"]}`, 426},
		"exec of 9 MiB":        {"POST", guestapi.PathExec, `{"argv":["` + strings.Repeat("x", 9<<20) + `"]}`, 413},
		"mount of no JSON":     {"POST", guestapi.PathMounts, "", 400},
		"mount on the root":    {"POST", guestapi.PathMounts, `{"serial":"vol-1","path":"/"}`, 400},
		"ports by POST":        {"POST", guestapi.PathPorts, "", 405},
		"unknown route":        {"GET", "/v1/nothing", "", 404},
		"health by POST":       {"POST", guestapi.PathHealth, "{}", 405},
		"identity of JSON":     {"POST", guestapi.PathIdentity, `{"generation":1}`, 400},
		"identity cut short":   {"POST", guestapi.PathIdentity, whole[:len(whole)-1], 400},
		"identity, no entropy": {"POST", guestapi.PathIdentity, message(t, without), 400},
		"identity of 5 MiB":    {"POST", guestapi.PathIdentity, strings.Repeat(" ", 5<<20), 413},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+w.addr+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Close = true
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != c.want {
				raw, _ := io.ReadAll(resp.Body)
				t.Errorf("status %d, want %d: %s", resp.StatusCode, c.want, raw)
			}
		})
	}
}

func TestPortsLeaveTheAgentOut(t *testing.T) {
	w := start(t)
	other, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer other.Close()
	list, err := w.client.Ports(t.Context())
	must(t, err)
	found := false
	for _, p := range list {
		addr := net.JoinHostPort(p.Address, itoa(p.Port))
		found = found || addr == other.Addr().String()
		if addr == w.addr {
			t.Errorf("the agent is listed: %+v", p)
		}
	}
	if !found {
		t.Errorf("%+v lacks %s", list, other.Addr())
	}
}

func TestSyncAndShutdown(t *testing.T) {
	w := start(t)
	if err := w.client.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.client.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	<-w.poweroff
}
