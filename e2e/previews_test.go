package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/berth-cloud/berth/controlplane/api"
)

const previewSuffix = "preview.localhost"

// previewHost is the name by which a port of a sandbox is reached.
func previewHost(port int, id string) string {
	return fmt.Sprintf("%d-%s.%s", port, id, previewSuffix)
}

// browser speaks to one replica, whatever the address says, as a name's DNS would have it.
func browser(t *testing.T, replica int, protocols ...func(*http.Protocols, bool)) *http.Client {
	t.Helper()
	to, err := url.Parse(theStack.URLs[replica])
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, to.Host)
	}}
	if len(protocols) > 0 {
		transport.Protocols = new(http.Protocols)
		for _, enable := range protocols {
			enable(transport.Protocols, true)
		}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// visit makes a request of a preview and reads its answer.
func visit(t *testing.T, client *http.Client, method, target string, header map[string]string, body io.Reader) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return answer{resp.StatusCode, resp.Header, string(raw)}
}

// visitWithin is a GET that is given up after a while; its status is then 0.
func visitWithin(t *testing.T, most time.Duration, client *http.Client, target string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", target, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{resp.StatusCode, resp.Header, string(raw)}
}

// site is what a tenant might serve.
const site = `
import base64, hashlib, http.server, os, socket, socketserver, struct, sys, time
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def say(self, text, code=200):
        self.send_response(code); self.send_header("Content-Length", str(len(text))); self.end_headers(); self.wfile.write(text)
    def do_POST(self):
        self.say(hashlib.sha256(self.rfile.read(int(self.headers["Content-Length"]))).hexdigest().encode())
    def do_GET(self):
        if self.path == "/sse":
            self.send_response(200); self.send_header("Content-Type", "text/event-stream"); self.send_header("Connection", "close"); self.end_headers()
            for i in range(3):
                self.wfile.write(b"data: %d\n\n" % i); self.wfile.flush()
                while i == 0 and not os.path.exists("/seen"): time.sleep(0.1)
            os.remove("/seen")
            self.close_connection = True
        elif self.path == "/big":
            self.send_response(200); self.send_header("Content-Length", str(64 << 20)); self.end_headers()
            for _ in range(1024): self.wfile.write(b"0123456789abcdef" * 4096)
        elif self.path == "/ws":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101); self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()); self.end_headers()
            while True:
                head = self.rfile.read(2)
                if len(head) < 2 or head[0] & 15 == 8: break
                n = head[1] & 127
                if n == 126: n = struct.unpack(">H", self.rfile.read(2))[0]
                mask = self.rfile.read(4); data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(n)))
                self.wfile.write(bytes([head[0]]) + (bytes([n]) if n < 126 else b"\x7e" + struct.pack(">H", n)) + data); self.wfile.flush()
            self.close_connection = True
        else:
            self.say("\n".join([self.path, self.headers["Host"]] + ["%s: %s" % h for h in self.headers.items()]).encode())
    def log_message(self, *a): pass
class S(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True; request_queue_size = 64
    address_family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
S((sys.argv[2], int(sys.argv[1])), H).serve_forever()
`

// serves starts the site on a port, after a while.
func (c *tenant) serves(t *testing.T, id string, port int, after string) {
	t.Helper()
	c.servesOn(t, id, "0.0.0.0", port, after)
}

// servesOn starts the site on a port of one address.
func (c *tenant) servesOn(t *testing.T, id, address string, port int, after string) {
	t.Helper()
	if _, err := c.WriteFile(t.Context(), id, "/site.py", "", strings.NewReader(site), int64(len(site))); err != nil {
		t.Fatal(err)
	}
	c.exec(t, id, fmt.Sprintf("setsid sh -c 'sleep %s; exec python3 /site.py %d %s' </dev/null >/site.log 2>&1 &", after, port, address))
}

// isServed waits until the site is up, longer than a preview does.
func (c *tenant) isServed(t *testing.T, id string, port int) {
	t.Helper()
	client := browser(t, 0)
	eventually(t, time.Minute, "the site is served", func(context.Context) error {
		if got := visitWithin(t, 30*time.Second, client, "http://"+previewHost(port, id)+"/"); got.status != 200 {
			return fmt.Errorf("status %d: %s", got.status, got.body)
		}
		return nil
	})
}

func TestPreviewsThroughEveryReplica(t *testing.T) {
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	c.serves(t, s.ID, 8080, "0")
	c.isServed(t, s.ID, 8080)
	for i := range theStack.URLs {
		t.Run(fmt.Sprintf("replica %d", i+1), func(t *testing.T) { c.seesTheSite(t, s, 8080, i) })
	}
	t.Run("ports", func(t *testing.T) {
		port, err := c.AddPort(t.Context(), s.ID, api.AddPort{Port: 8080, Label: "web"})
		if err != nil || !strings.Contains(port.URL, previewHost(8080, s.ID)) {
			t.Errorf("registered: %+v, %v", port, err)
		}
		ports, err := c.ListPorts(t.Context(), s.ID)
		found := false
		for _, p := range ports {
			found = found || p.Port == 8080 && p.Process == "python3" && p.Label == "web" && p.Protocol == "tcp"
		}
		if err != nil || !found {
			t.Errorf("listed %+v, %v", ports, err)
		}
		if err := c.RemovePort(t.Context(), s.ID, 8080); err != nil {
			t.Error(err)
		}
	})
	t.Run("strange names", func(t *testing.T) {
		for _, name := range []string{
			"8080-" + unknownID, "0-" + s.ID, "08080-" + s.ID, "65536-" + s.ID, "-" + s.ID, s.ID, "8080-", "8080-" + s.ID + "x",
			"8080-" + s.ID[:25], "a.8080-" + s.ID, "8080-..", "+8080-" + s.ID, "999-" + unknownID,
		} {
			// Sent as it is: the client would not send some of these.
			got := rawPreview(t, 0, "GET / HTTP/1.1\r\nHost: "+name+"."+previewSuffix+"\r\nConnection: close\r\n\r\n")
			if got.status != 404 || got.errorText() != "not found" {
				t.Errorf("%q: %d %s", name, got.status, clip(got.body))
			}
		}
		// The guest's own agent is nobody's to see.
		got := rawPreview(t, 0, "GET /v1/health HTTP/1.1\r\nHost: "+previewHost(999, s.ID)+"\r\nConnection: close\r\n\r\n")
		if got.status == 200 {
			t.Errorf("the agent answers: %s", got.body)
		}
		upper := rawPreview(t, 0, "GET /x HTTP/1.1\r\nHost: "+strings.ToUpper(previewHost(8080, s.ID))+"\r\nConnection: close\r\n\r\n")
		if upper.status != 200 {
			t.Errorf("a name in capitals: %d %s", upper.status, clip(upper.body))
		}
	})
}

// rawPreview sends bytes to a replica and reads one answer.
func rawPreview(t *testing.T, replica int, said string) answer {
	t.Helper()
	to, err := url.Parse(theStack.URLs[replica])
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", to.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, said); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q: %v", clip(said), err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(raw)}
}

// A server that listens on loopback alone, as Vite's does, is reached like any other.
func TestPreviewsOfServersOnLoopback(t *testing.T) {
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	servers := map[int]string{3001: "127.0.0.1", 3002: "::1"}
	for port, address := range servers {
		c.servesOn(t, s.ID, address, port, "0")
		c.isServed(t, s.ID, port)
		t.Run("on "+address, func(t *testing.T) { c.seesTheSite(t, s, port, port%len(theStack.URLs)) })
	}
	listed := map[int]string{}
	ports, err := c.ListPorts(t.Context(), s.ID)
	for _, p := range ports {
		listed[p.Port] = p.URL
	}
	for port := range servers {
		if err != nil || !strings.Contains(listed[port], previewHost(port, s.ID)) {
			t.Errorf("listed %+v, %v", ports, err)
		}
	}
	// The guest that wakes has connections of before, whose other ends are gone.
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	for port := range servers {
		c.isServed(t, s.ID, port)
	}
}

func (c *tenant) seesTheSite(t *testing.T, s *api.Sandbox, port, replica int) {
	base := "http://" + previewHost(port, s.ID)
	for proto, client := range map[string]*http.Client{
		"HTTP/1.1": browser(t, replica),
		"HTTP/2.0": browser(t, replica, (*http.Protocols).SetUnencryptedHTTP2),
	} {
		got := visit(t, client, "GET", base+"/a%20b?c=d", map[string]string{"Cookie": "mine=1", "Authorization": "Basic eA=="}, nil)
		if got.status != 200 || !strings.HasPrefix(got.body, "/a%20b?c=d\n"+previewHost(port, s.ID)) ||
			!strings.Contains(got.body, "mine=1") || !strings.Contains(got.body, "Basic eA==") || !strings.Contains(got.body, "X-Forwarded-For: ") {
			t.Errorf("%s: %d %s", proto, got.status, got.body)
		}
		payload := bytes.Repeat([]byte("berth"), 200_000)
		if got := visit(t, client, "POST", base+"/", nil, bytes.NewReader(payload)); got.body != hexSum(payload) {
			t.Errorf("%s: an upload came as %q", proto, got.body)
		}
		// Events come as they happen.
		req, err := http.NewRequestWithContext(t.Context(), "GET", base+"/sse", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", proto, err)
		}
		if got := fmt.Sprintf("HTTP/%d.%d", resp.ProtoMajor, resp.ProtoMinor); got != proto {
			t.Errorf("answered by %s, want %s", got, proto)
		}
		// The second one is sent when the first is here.
		var events []string
		lines := bufio.NewReader(resp.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				break
			}
			if line == "data: 0\n" {
				c.exec(t, s.ID, "touch /seen")
			}
			if line != "\n" {
				events = append(events, line)
			}
		}
		resp.Body.Close()
		if got := strings.Join(events, ""); got != "data: 0\ndata: 1\ndata: 2\n" {
			t.Errorf("%s: the events %q", proto, got)
		}
	}
	ws, _, err := websocket.Dial(t.Context(), base+"/ws", &websocket.DialOptions{HTTPClient: browser(t, replica)})
	if err != nil {
		t.Fatalf("websocket: %v", err)
	}
	defer ws.CloseNow()
	for _, text := range []string{"hello", strings.Repeat("ü", 5000)} {
		if err := ws.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := ws.Read(t.Context()); err != nil || string(got) != text {
			t.Fatalf("websocket: %q, %v", clip(string(got)), err)
		}
	}
	memory := watchMemory(t)
	got := visit(t, browser(t, replica), "GET", base+"/big", nil, nil)
	if len(got.body) != 64<<20 || got.header.Get("Content-Length") != "67108864" {
		t.Errorf("a long download: %d bytes", len(got.body))
	}
	memory.grewAtMost(t, 32<<10)
}

// Viewers who take no more of an answer hold up neither the sleep of its sandbox
// nor its end.
func TestStuckViewersHoldNothingUp(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	c.serves(t, s.ID, 3000, "0")
	c.isServed(t, s.ID, 3000)
	stick := func() {
		for i := range theStack.URLs {
			conn, err := net.Dial("tcp", strings.TrimPrefix(theStack.URLs[i], "http://"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			if _, err := fmt.Fprintf(conn, "GET /big HTTP/1.1\r\nHost: %s\r\n\r\n", previewHost(3000, s.ID)); err != nil {
				t.Fatal(err)
			}
			// It has begun, and 64 MiB fit into no buffers on the way.
			if line, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil || line != "HTTP/1.1 200 OK\r\n" {
				t.Fatalf("replica %d: %q, %v", i+1, line, err)
			}
		}
	}
	stick()
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	moved(t, api.SandboxRunning)(c.WakeSandbox(t.Context(), s.ID))
	stick()
	if err := c.DeleteSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := c.GetSandbox(t.Context(), s.ID); api.StatusOf(err) != 404 {
		t.Errorf("after its delete it is %+v, %v", got, err)
	}
}

func TestPreviewsWakeAndWait(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	base := "http://" + previewHost(8080, s.ID)
	// The port opens three seconds from now.
	c.serves(t, s.ID, 8080, "3")
	// On a busy machine its program takes longer to start than a request is held.
	eventually(t, time.Minute, "a port that opens late answers", func(context.Context) error {
		if got := visit(t, browser(t, 0), "GET", base+"/late", nil, nil); got.status != 200 || !strings.HasPrefix(got.body, "/late\n") {
			return fmt.Errorf("%d %s", got.status, got.body)
		}
		return nil
	})
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	// Each answers in one go, also one whose copy of the records is behind: what
	// sleeps, or stopped under the request, is asked of the leader.
	for i := range theStack.URLs {
		if got := visitWithin(t, 30*time.Second, browser(t, i), base+"/awake"); got.status != 200 {
			t.Errorf("replica %d, awake: %d %s", i+1, got.status, clip(got.body))
		}
	}
	if n := count(c.events(t, s.ID), "sandbox.woken"); n != 1 {
		t.Errorf("it was woken %d times", n)
	}
	moved(t, api.SandboxPaused)(c.PauseSandbox(t.Context(), s.ID))
	for i := range theStack.URLs {
		// A replica whose copy lacks the pause may have a connection into the
		// sandbox, on which nothing comes: it notices and says so.
		if got := visitWithin(t, 10*time.Second, browser(t, i), base+"/"); got.status != 409 || got.errorText() != asleepText {
			t.Errorf("replica %d, paused: %d %s", i+1, got.status, clip(got.body))
		}
	}
	page := visit(t, browser(t, 0), "GET", base+"/", map[string]string{"Accept": "text/html"}, nil)
	if page.status != 409 || !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") || strings.Contains(page.body, s.ID) {
		t.Errorf("a browser sees %d %v %s", page.status, page.header, clip(page.body))
	}
	moved(t, api.SandboxRunning)(c.ResumeSandbox(t.Context(), s.ID))
	eventually(t, 30*time.Second, "a port that stays closed is refused", func(context.Context) error {
		// Until its copy has the resume, the replica says that it is paused.
		got := visit(t, browser(t, 1), "GET", "http://"+previewHost(8081, s.ID)+"/", nil, nil)
		if got.status != 502 || got.errorText() != "port is closed" {
			return fmt.Errorf("%d %s", got.status, got.body)
		}
		return nil
	})
}

func TestPrivatePreviews(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.make(t, api.CreateSandbox{Preview: new(api.PreviewToken)})
	c.serves(t, s.ID, 8080, "0")
	base := "http://" + previewHost(8080, s.ID)
	eventually(t, 60*time.Second, "the site is there", func(ctx context.Context) error {
		got, err := c.Exec(ctx, s.ID, api.Exec{Cmd: api.Shell("curl -s http://127.0.0.1:8080/")})
		if err == nil && got.ExitCode != 0 {
			err = errors.New("it is not")
		}
		return err
	})
	mine, err := c.CreatePreviewToken(t.Context(), s.ID, api.CreatePreviewToken{Port: new(8080)})
	if err != nil {
		t.Fatal(err)
	}
	brief, err := c.CreatePreviewToken(t.Context(), s.ID, api.CreatePreviewToken{TTLSeconds: new(int64(1))})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := c.CreatePreviewToken(t.Context(), s.ID, api.CreatePreviewToken{Port: new(9090)})
	if err != nil {
		t.Fatal(err)
	}
	another := c.make(t, api.CreateSandbox{Preview: new(api.PreviewToken)})
	others, err := c.CreatePreviewToken(t.Context(), another.ID, api.CreatePreviewToken{})
	if err != nil {
		t.Fatal(err)
	}
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	eventually(t, 10*time.Second, "the brief token has expired", func(context.Context) error {
		if time.Now().Before(brief.ExpiresAt.Add(100 * time.Millisecond)) {
			return errors.New("it has not")
		}
		return nil
	})
	for name, token := range map[string]string{
		"none": "", "garbage": "garbage", "expired": brief.Token, "another port's": elsewhere.Token, "another sandbox's": others.Token,
		"changed": mine.Token[:len(mine.Token)-2] + "AA", "an API key": c.token,
	} {
		for i := range theStack.URLs {
			got := visit(t, browser(t, i), "GET", base+"/", map[string]string{"Berth-Preview-Token": token}, nil)
			if got.status != 401 || got.errorText() != "unauthorized" {
				t.Errorf("%s, replica %d: %d %s", name, i+1, got.status, clip(got.body))
			}
		}
	}
	// None of them has woken it; the right one does.
	c.becomes(t, s.ID, api.SandboxHibernated, 5*time.Second)
	for i := range theStack.URLs {
		got := visit(t, browser(t, i), "GET", base+"/", map[string]string{"Berth-Preview-Token": mine.Token}, nil)
		if got.status != 200 || strings.Contains(got.body, mine.Token) {
			t.Errorf("replica %d: %d %s", i+1, got.status, clip(got.body))
		}
	}
	// A browser comes with the link, and goes on with a cookie.
	first := visit(t, browser(t, 0), "GET", base+"/page?x=1&berth_token="+url.QueryEscape(mine.Token), nil, nil)
	cookie, _, _ := strings.Cut(first.header.Get("Set-Cookie"), ";")
	if first.status != 302 || first.header.Get("Location") != "/page?x=1" || !strings.Contains(first.header.Get("Set-Cookie"), "HttpOnly") {
		t.Errorf("the link: %d %v", first.status, first.header)
	}
	second := visit(t, browser(t, 1), "GET", base+"/page?x=1", map[string]string{"Cookie": cookie + "; mine=1"}, nil)
	if second.status != 200 || strings.Contains(second.body, mine.Token) || !strings.Contains(second.body, "mine=1") {
		t.Errorf("with the cookie: %d %s", second.status, clip(second.body))
	}
}
