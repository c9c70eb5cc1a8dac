package e2e

import (
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

func TestBadPaths(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	c.exec(t, s.ID, `mkdir -p /t/dir && cd /t && ln -s loop loop && ln -s b a && ln -s a b && mkfifo pipe && mkdir full && touch full/x
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/t/socket")'`)
	long := "/" + strings.Repeat("a/", 2047) + "bb" // 4,097 characters
	cases := []struct {
		path          string
		get, put, del int // statuses; 0: not asked
	}{
		{"", 400, 400, 400},
		{"relative", 400, 400, 400},
		{"../etc/passwd", 400, 400, 400},
		{"/t/../etc/passwd", 400, 400, 400},
		{"/..", 400, 400, 400},
		{"/t/a\x00b", 400, 400, 400},
		{long, 400, 400, 400},
		{"/t/" + strings.Repeat("n", 256), 400, 400, 0}, // a name of 256 bytes
		{"/t/missing", 404, 0, 404},
		{"/t/missing/child", 404, 0, 404},
		{"/etc/passwd/child", 400, 400, 400}, // not a directory
		{"/t/dir", 400, 400, 0},              // is a directory
		{"/", 400, 400, 400},
		{"/t/loop", 400, 0, 0},
		{"/t/a/x", 400, 400, 400},
		{"/t/pipe", 400, 0, 0},
		{"/t/socket", 400, 0, 0},
		{"/dev/zero", 400, 400, 0},
		{"/dev/vda", 400, 400, 0},
		{"/dev/kmsg", 400, 0, 0},
		{"/proc/self/nothing/x", 404, 0, 0},
		{"/t/full", 0, 0, 409},
	}
	for i, tc := range cases {
		for method, want := range map[string]int{"GET": tc.get, "PUT": tc.put, "DELETE": tc.del} {
			if want == 0 {
				continue
			}
			r := request{method: method, path: "/v1/sandboxes/" + s.ID + "/fs?path=" + url.QueryEscape(tc.path), token: c.token, replica: i % len(theStack.URLs)}
			if method == "PUT" {
				r.body = "x"
			}
			got := r.send(t)
			if got.status != want && (want != 400 || got.status != 404) || got.errorText() == "" {
				t.Errorf("%s %q: %d %s, want %d", method, clip(tc.path), got.status, clip(got.body), want)
			}
		}
	}
	for _, sub := range []string{"stat", "dir"} {
		for path, want := range map[string]int{"": 400, "x": 400, "/t/a\x00b": 400, "/t/..": 400, long: 400, "/t/missing": 404} {
			got := request{method: "GET", path: "/v1/sandboxes/" + s.ID + "/fs/" + sub + "?path=" + url.QueryEscape(path), token: c.token}.send(t)
			if got.status != want || got.errorText() == "" {
				t.Errorf("%s %q: %d %s, want %d", sub, clip(path), got.status, clip(got.body), want)
			}
		}
	}
	for _, mode := range []string{"8", "abc", "-1", "777777", "0o644"} {
		got := request{method: "PUT", path: "/v1/sandboxes/" + s.ID + "/fs?path=/t/f&mode=" + url.QueryEscape(mode), token: c.token, body: "x"}.send(t)
		if got.status != 400 || got.errorText() != "invalid mode" {
			t.Errorf("mode %q: %d %s", mode, got.status, clip(got.body))
		}
	}
	// Nothing of this has changed the sandbox.
	if out := c.run(t, s.ID, "ls /t; head -c 4 /etc/passwd"); out != "a\nb\ndir\nfull\nloop\npipe\nsocket\nroot" {
		t.Errorf("the sandbox has %q", out)
	}
}

func TestUploadPastTheDisksEnd(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	c.exec(t, s.ID, `free=$(df --output=avail -B1 / | tail -n 1); fallocate -l $((free - 8388608)) /reserved; echo old > /srv/f`)
	_, err := c.WriteFile(t.Context(), s.ID, "/srv/f", "", io.LimitReader(zeros{}, 64<<20), 64<<20)
	refusal(t, err, 507, "no space left on device")
	if out := c.run(t, s.ID, "cat /srv/f; ls -A /srv"); out != "old\nf" {
		t.Errorf("after it: %q", out)
	}
	c.exec(t, s.ID, "rm /reserved && echo more > /more && cat /more")
}

func TestBadLifecycleForkAndPortRequests(t *testing.T) {
	t.Parallel()
	c, stranger := newTenant(t), newTenant(t, "stranger")
	c.knownEverywhere(t)
	s := c.create(t)
	path := "/v1/sandboxes/" + s.ID
	tree := `{"tree_id":"tree-aaaaaaaaaaaaaaaaaaaa","cleanup_siblings":true}`
	for i, tc := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{"POST", "/v1/sandboxes", `{"template":"base","ttl_seconds":0}`, 400, "invalid ttl_seconds"},
		{"POST", "/v1/sandboxes", `{"template":"base","ttl_seconds":-5}`, 400, "invalid ttl_seconds"},
		{"POST", "/v1/sandboxes", `{"template":"base","ttl_seconds":1.5}`, 400, "invalid json"},
		{"POST", "/v1/sandboxes", `{"template":"base","ttl_seconds":99999999999}`, 400, "invalid ttl_seconds"},
		{"POST", "/v1/sandboxes", `{"template":"base","preview":"secret"}`, 400, "invalid preview"},
		{"POST", "/v1/sandboxes", `{"template":"base","preview":""}`, 400, "invalid preview"},
		{"POST", "/v1/sandboxes", `{"template":"base","boot":""}`, 400, "invalid boot"},
		{"POST", "/v1/sandboxes", `{"template":"base","from_snapshot":"snap-aaaaaaaaaaaaaaaaaaaa"}`, 404, "not found"},
		{"POST", "/v1/sandboxes", `{"template":"base","from_snapshot":"../../etc/passwd"}`, 404, "not found"},
		{"PATCH", path + "/lifecycle", `{}`, 400, "no updatable fields provided (supported: ttl_seconds, persistent)"},
		{"PATCH", path + "/lifecycle", `{"ttl_seconds":-1}`, 400, "invalid ttl_seconds"},
		{"PATCH", path + "/lifecycle", `{"persistent":"yes"}`, 400, "invalid json"},
		{"POST", path + "/fork", `{"count":0}`, 400, "count must be from 1 to 16"},
		{"POST", path + "/fork", `{"count":17}`, 400, "count must be from 1 to 16"},
		{"POST", path + "/fork", `{"count":-1}`, 400, "count must be from 1 to 16"},
		{"POST", path + "/fork", `{"mode":"lukewarm"}`, 400, "unknown mode"},
		{"POST", path + "/fork", `{"mode":""}`, 400, "unknown mode"},
		{"POST", path + "/fork", `{"mode":"warm","count":2}`, 400, "warm fork requires count 1"},
		{"POST", path + "/fork", ``, 411, ""},
		{"POST", path + "/fork-tree", `{"count":0}`, 400, "count must be from 1 to 16"},
		{"POST", path + "/fork-tree", `{"count":17}`, 400, "count must be from 1 to 16"},
		{"POST", path + "/fork-tree", `{"count":"2"}`, 400, "invalid json"},
		{"POST", path + "/fork-tree", `{"metadata":[]}`, 400, "invalid json"},
		{"POST", path + "/promote", tree, 404, "not found"},
		{"POST", path + "/promote", `{}`, 400, ""},
		{"POST", path + "/ports", `{"port":0}`, 400, "invalid port"},
		{"POST", path + "/ports", `{"port":65536}`, 400, "invalid port"},
		{"POST", path + "/ports", `{"port":80,"label":"a\nb"}`, 400, "invalid label"},
		{"DELETE", path + "/ports?port=80", ``, 404, "not found"},
		{"DELETE", path + "/ports?port=x", ``, 400, "invalid port"},
		{"DELETE", path + "/ports", ``, 400, "port required"},
		{"POST", path + "/preview-tokens", `{"ttl_seconds":-1}`, 400, "invalid ttl_seconds"},
		{"POST", path + "/preview-tokens", `{"port":70000}`, 400, "invalid port"},
		{"POST", path + "/snapshots", `{"name":"` + strings.Repeat("n", 64) + `"}`, 400, "invalid name"},
		{"GET", "/v1/snapshots/snap-aaaaaaaaaaaaaaaaaaaa", ``, 404, "not found"},
		{"GET", path + "/events?tail=-1", ``, 400, "invalid tail"},
		{"GET", path + "/events?since=yesterday", ``, 400, "invalid since"},
		{"GET", path + "/events?follow=maybe", ``, 400, "invalid follow"},
		{"GET", path + "/logs?stream=stdlog", ``, 400, "invalid stream"},
		{"GET", path + "/logs?tail=x", ``, 400, "invalid tail"},
		{"GET", path + "/exec/pty", ``, 426, "upgrade required"},
		{"GET", path + "/exec/ws", ``, 426, "upgrade required"},
		{"GET", "/v1/metrics/sandboxes?from=2026-13-01", ``, 400, "invalid from"},
		{"GET", "/v1/metrics/sandboxes?from=2026-02-02&to=2026-02-01", ``, 400, "invalid time range"},
		{"POST", "/v1/templates/build", `{}`, 400, ""},
		{"POST", "/v1/templates/build", `{"name":"base","from":"docker.io/library/debian:12"}`, 409, "template name is taken"},
		{"POST", "/v1/templates/build", `{"name":"base","from":"base"}`, 409, "template name is taken"},
		{"POST", "/v1/templates/build", `{"name":"mine","from":"mine"}`, 400, "invalid from"},
		{"POST", "/v1/templates/build", `{"name":"mine","from":"no-such"}`, 400, "unknown template"},
		{"POST", "/v1/templates/build", `{"name":"mine","from":"base","cpu":0}`, 400, "invalid cpu"},
		{"POST", "/v1/templates/build", `{"name":"mine","from":"base","memory_mb":0}`, 400, "invalid memory_mb"},
		{"POST", "/v1/templates/build", `{"name":"mine","from":"base","disk_mb":0}`, 400, "invalid disk_mb"},
		{"POST", "/v1/templates/build", `{"name":"Not A Name","from":"base"}`, 400, "invalid name"},
		{"DELETE", "/v1/templates/base", ``, 409, "template in use"},
		{"GET", "/v1/builds/bld-aaaaaaaaaaaaaaaaaaaa", ``, 404, "not found"},
	} {
		got := request{method: tc.method, path: tc.path, token: c.token, body: tc.body, replica: i % len(theStack.URLs)}.send(t)
		if got.status != tc.status || tc.text != "" && got.errorText() != tc.text {
			t.Errorf("%s %s %s: %d %s, want %d %q", tc.method, strings.ReplaceAll(tc.path, s.ID, "…"), clip(tc.body), got.status, clip(got.body), tc.status, tc.text)
		}
	}
	// Another workspace sees nothing of any of these routes.
	for _, r := range []request{
		{method: "POST", path: path + "/pause", body: "{}"}, {method: "POST", path: path + "/resume", body: "{}"},
		{method: "POST", path: path + "/hibernate", body: "{}"}, {method: "POST", path: path + "/wake", body: "{}"},
		{method: "GET", path: path + "/lifecycle"}, {method: "PATCH", path: path + "/lifecycle", body: `{"persistent":true}`},
		{method: "POST", path: path + "/snapshots", body: "{}"}, {method: "POST", path: path + "/fork", body: "{}"},
		{method: "POST", path: path + "/fork-tree", body: "{}"}, {method: "POST", path: path + "/promote", body: tree},
		{method: "GET", path: path + "/fs?path=/etc/passwd"}, {method: "PUT", path: path + "/fs?path=/x", body: "x"},
		{method: "DELETE", path: path + "/fs?path=/etc"}, {method: "GET", path: path + "/fs/dir?path=/"},
		{method: "GET", path: path + "/fs/stat?path=/"}, {method: "GET", path: path + "/ports"},
		{method: "POST", path: path + "/ports", body: `{"port":80}`}, {method: "GET", path: path + "/events"},
		{method: "GET", path: path + "/logs"}, {method: "POST", path: path + "/exec/stream", body: `{"cmd":"id"}`},
		{method: "POST", path: path + "/preview-tokens", body: "{}"},
	} {
		r.token = stranger.token
		if got := r.send(t); got.status != 404 {
			t.Errorf("a stranger's %s %s: %d %s", r.method, strings.ReplaceAll(r.path, s.ID, "…"), got.status, clip(got.body))
		}
	}
	if events := c.events(t, s.ID); len(events) != 1 {
		t.Errorf("something happened to the sandbox: %v", typesOf(events))
	}
}

// socket opens a WebSocket as a client that does not keep to the rules would.
func (c *tenant) socket(t *testing.T, path string) *websocket.Conn {
	t.Helper()
	ws, _, err := websocket.Dial(t.Context(), theStack.URLs[followerIndex(t)]+path, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + c.token}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = ws.CloseNow() })
	return ws
}

// closes reads until the service closes, and returns the code.
func closes(t *testing.T, ws *websocket.Conn) websocket.StatusCode {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		if _, _, err := ws.Read(ctx); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

func TestGarbageOnWebSockets(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	const text, binary = websocket.MessageText, websocket.MessageBinary
	type message struct {
		kind websocket.MessageType
		data string
	}
	start := message{text, `{"cmd":"exec sleep 8001"}`}
	for name, tc := range map[string]struct {
		path string
		send []message
		want websocket.StatusCode
	}{
		"a request that is no JSON":      {"/exec/ws", []message{{text, "hello"}}, 1008},
		"a request without a command":    {"/exec/ws", []message{{text, "{}"}}, 1008},
		"a binary request":               {"/exec/ws", []message{{binary, "\x00\x01"}}, 1003},
		"a frame that is no JSON":        {"/exec/ws", []message{start, {text, "{"}}, 1008},
		"a frame of an unknown type":     {"/exec/ws", []message{start, {text, `{"type":"dance"}`}}, 1008},
		"an unknown signal":              {"/exec/ws", []message{start, {text, `{"type":"signal","signal":"NOPE"}`}}, 1008},
		"base64 that is none":            {"/exec/ws", []message{start, {text, `{"type":"stdin","data":"%","encoding":"base64"}`}}, 1008},
		"a binary frame":                 {"/exec/ws", []message{start, {binary, "x"}}, 1003},
		"a frame of 2 MiB":               {"/exec/ws", []message{start, {text, `{"type":"stdin","data":"` + strings.Repeat("x", 2<<20) + `"}`}}, 1009},
		"a terminal of no size":          {"/exec/pty?cmd=sleep+8001", []message{{text, `{"type":"resize","cols":0,"rows":5}`}}, 1008},
		"a terminal's frame of no JSON":  {"/exec/pty?cmd=sleep+8001", []message{{text, "resize"}}, 1008},
		"a terminal's keys, much of it":  {"/exec/pty?cmd=sleep+8001", []message{{binary, strings.Repeat("k", 2<<20)}}, 1009},
		"a terminal's frame of no sense": {"/exec/pty?cmd=sleep+8001", []message{{text, `{"type":"stdin","data":7}`}}, 1008},
	} {
		ws := c.socket(t, "/v1/sandboxes/"+s.ID+tc.path)
		for _, m := range tc.send {
			// It may be closed by what was sent before.
			_ = ws.Write(t.Context(), m.kind, []byte(m.data))
		}
		if code := closes(t, ws); code != tc.want {
			t.Errorf("%s: closed with %d, want %d", name, code, tc.want)
		}
	}
	c.noSuchProcess(t, s.ID, "sleep 8001")
	c.answers(t, s.ID)
}

// Clients that vanish or stall at every stage of a connection.
func TestVanishingAndStallingClients(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	base, err := url.Parse(theStack.URLs[followerIndex(t)])
	if err != nil {
		t.Fatal(err)
	}
	head := func(method, path, more string) string {
		return fmt.Sprintf("%s /v1/sandboxes/%s%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n%s\r\n", method, s.ID, path, base.Host, c.token, more)
	}
	const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	masked := "\x81\xfe\xff\xff\x00\x00\x00\x00" + `{"cmd":"sleep 8002"` // a frame of 65,535 bytes that does not end
	for name, said := range map[string]string{
		"a request line that does not end":    "POST /v1/sandboxes",
		"a body that does not come":           head("POST", "/exec/stream", "Content-Length: 50\r\n"),
		"a body that breaks off":              head("POST", "/exec/stream", "Content-Length: 50\r\n") + `{"cmd":"sle`,
		"an upload that does not begin":       head("PUT", "/fs?path=/srv/never", "Content-Length: 1000000\r\n"),
		"an upload that breaks off":           head("PUT", "/fs?path=/srv/never", "Transfer-Encoding: chunked\r\n") + "5\r\nhello\r\nffff\r\nmore",
		"a chunk of no size":                  head("PUT", "/fs?path=/srv/never", "Transfer-Encoding: chunked\r\n") + "zz\r\n",
		"a WebSocket of no words":             head("GET", "/exec/ws", upgrade),
		"a WebSocket's frame that breaks off": head("GET", "/exec/ws", upgrade) + masked,
		"frames that are none":                head("GET", "/exec/ws", upgrade) + "\xff\xff\xff\xff\xff\xff",
		"a frame that is not masked":          head("GET", "/exec/pty?cmd=sleep+8002", upgrade) + "\x82\x03abc",
		"a stream that is not read":           head("POST", "/exec/stream", "Content-Length: 40\r\n") + `{"cmd":"yes stalling-client | head -c 9"`,
		"a terminal whose client goes":        head("GET", "/exec/pty?cmd=sleep+8002", upgrade),
		"events whose client goes":            head("GET", "/events?follow=1", ""),
	} {
		conn, err := net.Dial("tcp", base.Host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, said); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// Until the first answer, if one comes; then it is gone without a word.
		_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 512)); err != nil && !errors.Is(err, io.EOF) && !isTimeout(err) {
			t.Logf("%s: %v", name, err)
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	c.noSuchProcess(t, s.ID, "sleep 8002")
	if out := c.run(t, s.ID, "ls -A /srv"); out != "" {
		t.Errorf("uploads left %q", out)
	}
	for i := range theStack.URLs {
		if _, err := c.through(t, i).GetSandbox(t.Context(), s.ID); err != nil {
			t.Errorf("replica %d: %v", i+1, err)
		}
	}
	c.answers(t, s.ID)
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

func TestTemplateWhoseStartCommandExits(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	build, err := c.BuildTemplate(t.Context(), api.BuildTemplate{
		Name: "quits", From: "base", Start: "echo cannot start >&2; exit 3",
		Ready: &api.TemplateCheck{Port: new(4000), TimeoutSeconds: new(10)},
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	end, err := c.FollowBuild(ctx, build.ID, func(l api.BuildLog) error {
		log.WriteString(l.Line + "\n")
		return nil
	})
	if err != nil || end.Status != "failed" || end.Error == nil {
		t.Fatalf("it ended with %+v, %v; its log is\n%s", end, err, log.String())
	}
	if !strings.Contains(log.String(), "cannot start") {
		t.Errorf("the log lacks what the command wrote:\n%s", log.String())
	}
	_, err = c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "quits"}, "")
	refusal(t, err, 400, "")
	if err := c.DeleteTemplate(t.Context(), "quits"); err != nil {
		t.Error(err)
	}
}
