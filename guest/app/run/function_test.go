package run_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/tier"
	"github.com/berth-cloud/berth/timescale"
)

// The runners of handlers, which the template of apps has.
const runners = "../../../templates/app/files/usr/lib/berth/"

// runtimes are how handlers are run, and a handler in each that does as its path says.
var runtimes = map[string]struct {
	argv    []string
	file    string
	handler string
}{
	"python": {[]string{"python3", "-u", "function.py"}, "handler.py", `
import os, time, sys
from lib import words

secret = os.environ["SECRET"]

def parts():
    yield "one,"
    yield b"two"
    if secret == "broken": raise ValueError(secret)

async def later():
    return "later"

def handler(request):
    at = request.path
    if at == "/echo":
        return {"id": request.id, "method": request.method, "path": request.path, "query": request.query, "body": request.text, "key": request.headers["X-KEY"],
                "host": "host" in request.headers, "connection": request.headers.get("connection"), "words": words, "pid": os.getpid()}
    if at == "/text": return "hällo"
    if at == "/bytes": return b"\x00\xff"
    if at == "/none": return None
    if at == "/status": return {"made": True}, 201, {"X-Made": "yes", "Content-Length": "1", "Connection": "close", "Berth-Function-Failed": "1"}
    if at == "/stream": return parts(), 200, {"Content-Type": "text/x"}
    if at == "/later": return later()
    if at == "/print":
        print("printed", at)
        return ""
    if at == "/raise": raise ValueError(secret)
    if at == "/exit": sys.exit(3)
    if at == "/die": os._exit(3)
    if at == "/loop":
        while True: pass
    if at == "/wait":
        time.sleep(0.3)
        return "waited"
    if at == "/large": return "x" * (1 << 26)
    if at == "/object": return object()
    if at == "/nan": return {"x": float("nan")}
    if at == "/badstatus": return "", 999
    if at == "/badheader": return "", 200, {"X": "a\r\nSet-Cookie: b"}
    if at == "/control": return "", 200, {"X": "a\x01b"}
    if at == "/badname": return "", 200, {"X y": "b"}
    if at == "/badpart": return iter([1])
    return ("not found", 404)
`},
	"node": {[]string{"node", "function.mjs"}, "handler.mjs", `
import { words } from './lib.mjs';

const secret = process.env.SECRET;

async function* parts() {
  yield Buffer.from('one,');
  yield Buffer.from('two');
}

export default async (request, { requestId }) => {
  const url = new URL(request.url);
  switch (url.pathname) {
    case '/echo':
      return { id: requestId, method: request.method, path: url.pathname, query: Object.fromEntries(url.searchParams), body: await request.text(), key: request.headers.get('X-KEY'),
               host: request.headers.has('host'), connection: request.headers.get('connection'), words, pid: process.pid };
    case '/text': return 'hällo';
    case '/bytes': return new Uint8Array([0, 255]);
    case '/none': return;
    case '/status': return Response.json({ made: true }, { status: 201, headers: { 'X-Made': 'yes', 'Content-Length': '1', Connection: 'close', 'Berth-Function-Failed': '1' } });
    case '/stream': return new Response(parts(), { headers: { 'content-type': 'text/x' } });
    case '/later': return new Promise((done) => setTimeout(() => done('later'), 10));
    case '/print': console.log('printed', url.pathname); return '';
    case '/raise': throw new TypeError(secret);
    case '/exit': process.exit(3);
    case '/die': process.kill(process.pid, 'SIGKILL'); return new Promise(() => {});
    case '/loop': for (;;);
    case '/wait': return new Promise((done) => setTimeout(() => done('waited'), 300));
    case '/large': return 'x'.repeat(1 << 26);
    case '/object': return 1n;
    case '/nan': { const o = {}; o.o = o; return o; }
    case '/badstatus': return Response.error();
    case '/badheader': return new Response('', { headers: { X: 'a\r\nSet-Cookie: b' } });
    case '/control': return new Response('', { headers: { X: 'a\x01b' } });
    case '/badname': return new Response('', { headers: { 'X y': 'b' } });
    case '/badpart': return new Response(new ReadableStream({ start(c) { c.enqueue('text'); c.close(); } }));
  }
  return new Response('not found', { status: 404 });
};
`},
}

var libs = map[string]string{"lib.py": "words = 'ours'", "lib.mjs": "export const words = 'ours';"}

// function is a runner that runs.
type function struct {
	t   *testing.T
	url string
	cmd *exec.Cmd
	end chan error

	mu  sync.Mutex
	out bytes.Buffer
}

// Write takes the runner's output.
func (f *function) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(p)
}

func (f *function) log() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.String()
}

// startFunction starts a runner in a directory with files, with a time limit in seconds.
func startFunction(t *testing.T, runtime string, timeout int, files map[string]string) *function {
	t.Helper()
	rt := runtimes[runtime]
	tier.Program(t, rt.argv[0])
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runner, err := filepath.Abs(runners + rt.argv[len(rt.argv)-1])
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // for its port alone
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	argv := append(append([]string{}, rt.argv[:len(rt.argv)-1]...), runner, "--timeout", fmt.Sprint(timeout))
	f := &function{t: t, url: "http://127.0.0.1:" + port, cmd: exec.Command(argv[0], argv[1:]...), end: make(chan error, 1)} //nolint:noctx // a test's; it is killed below
	f.cmd.Dir, f.cmd.Stdout, f.cmd.Stderr = dir, f, f
	f.cmd.Env = append(os.Environ(), "PORT="+port, "HOST=127.0.0.1", "SECRET=hush-hush", "PYTHONDONTWRITEBYTECODE=1")
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.end <- f.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-f.cmd.Process.Pid, syscall.SIGKILL)
		<-done
		if t.Failed() {
			log := f.log()
			t.Log(log[max(0, len(log)-2000):])
		}
	})
	return f
}

// up waits until a runner takes requests.
func (f *function) up() *function {
	f.t.Helper()
	f.await("the runner", func() bool {
		resp, err := http.Get(f.url + "/health") //nolint:noctx // a test's
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusNoContent
	})
	return f
}

func (f *function) await(what string, is func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), timescale.Limit(20*time.Second))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.t.Fatalf("%s was awaited in vain:\n%s", what, f.log())
		}
	}
}

type answered struct {
	status int
	header http.Header
	body   string
	err    error
}

// call invokes the function.
func (f *function) call(method, path string, body io.Reader) answered {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, body)
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("X-Forwarded-Prefix", "/v1/functions/fn-1/invoke")
	req.Header.Set("X-Request-Id", "req-1")
	req.Header.Set("X-Key", "k")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answered{err: err}
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return answered{resp.StatusCode, resp.Header, string(raw), err}
}

// each runs a test with each runtime.
func each(t *testing.T, test func(t *testing.T, runtime string, files map[string]string)) {
	for name, rt := range runtimes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{rt.file: rt.handler}
			for lib, text := range libs {
				files[lib] = text
			}
			test(t, name, files)
		})
	}
}

func TestAFunctionAnswers(t *testing.T) {
	each(t, func(t *testing.T, runtime string, files map[string]string) {
		f := startFunction(t, runtime, 30, files).up()
		got := f.call("POST", "/echo?a=1&b=x%20y", strings.NewReader("bödy"))
		var echo map[string]any
		if err := json.Unmarshal([]byte(got.body), &echo); err != nil || got.status != 200 || got.header.Get("Content-Type") != "application/json" {
			t.Fatalf("%+v", got)
		}
		pid := echo["pid"]
		delete(echo, "pid")
		if text := fmt.Sprint(echo); text != "map[body:bödy connection:<nil> host:true id:req-1 key:k method:POST path:/echo query:map[a:1 b:x y] words:ours]" {
			t.Errorf("it was called with %s", text)
		}
		for _, c := range []struct {
			method, path string
			status       int
			kind, body   string
		}{
			{"GET", "/text", 200, "text/plain; charset=utf-8", "hällo"}, {"GET", "/bytes", 200, "application/octet-stream", "\x00\xff"}, {"GET", "/none", 204, "", ""},
			{"PUT", "/status", 201, "application/json", `{"made":true}`}, {"GET", "/stream", 200, "text/x", "one,two"}, {"DELETE", "/later", 200, "text/plain; charset=utf-8", "later"},
			{"GET", "/else", 404, "", "not found"}, {"HEAD", "/text", 200, "text/plain; charset=utf-8", ""}, {"HEAD", "/stream", 200, "text/x", ""}, {"OPTIONS", "/text", 200, "", "hällo"},
			{"PROPFIND", "/text", 200, "text/plain; charset=utf-8", "hällo"},
		} {
			got := f.call(c.method, c.path, nil)
			if got.err != nil || got.status != c.status || strings.ReplaceAll(got.body, " ", "") != strings.ReplaceAll(c.body, " ", "") || c.kind != "" && !strings.EqualFold(got.header.Get("Content-Type"), c.kind) {
				t.Errorf("%s %s: %+v, want %+v", c.method, c.path, got, c)
			}
			if c.path == "/status" && (got.header.Get("X-Made") != "yes" || got.header.Get(asksForLog) != "") {
				t.Errorf("headers %v", got.header)
			}
		}
		// Chunks, which have no length, and the largest body.
		got = f.call("POST", "/echo", io.LimitReader(spaces{}, 10<<20))
		if got.status != 200 || len(got.body) < 10<<20 {
			// A body of that length as JSON is longer than an answer may be.
			if !strings.Contains(got.body, "its answer is none") {
				t.Errorf("%d %.200s %v", got.status, got.body, got.err)
			}
		}
		for name, size := range map[string]int64{"a byte more": 10<<20 + 1, "much more": 40 << 20} {
			if got := f.call("POST", "/text", io.LimitReader(spaces{}, size)); got.status != 413 || !strings.Contains(got.body, "request body too large") {
				t.Errorf("%s: %+v", name, got)
			}
		}
		again := f.call("POST", "/echo", strings.NewReader(""))
		if !strings.Contains(again.body, strings.TrimSuffix(fmt.Sprintf("%.0f", pid), ".")) {
			t.Errorf("another process answers: %v, %s", pid, again.body)
		}
		if got := f.call("GET", "/print?token=hush", nil); got.status != 200 || got.body != "" {
			t.Errorf("%+v", got)
		}
		f.await("its log", func() bool {
			return strings.Contains(f.log(), "printed /print\n") && strings.Contains(f.log(), "req-1 GET /print 200 ")
		})
		if strings.Contains(f.log(), "token") || strings.Contains(f.log(), "/health") {
			t.Errorf("logged:\n%s", f.log())
		}
	})
}

// spaces reads as spaces for ever.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// asksForLog is the header by which a runner has the edge add the log, masked, to its answer.
const asksForLog = "Berth-Function-Failed"

// What fails in a handler is a 500 that says nothing of what it has, and a trace in its
// log. It goes on answering.
func TestAFunctionFails(t *testing.T) {
	each(t, func(t *testing.T, runtime string, files map[string]string) {
		f := startFunction(t, runtime, 30, files).up()
		why := map[string]string{
			"/object": "its answer is none", "/nan": "its answer is none", "/large": "its answer is none", "/die": "its process ended",
			"/exit": map[string]string{"python": "SystemExit", "node": "its process ended"}[runtime], "/raise": map[string]string{"python": "ValueError", "node": "TypeError"}[runtime],
			"/badstatus": "its answer is none", "/badheader": "its answer is none|TypeError", // later Nodes refuse both when the Response is made
			"/control": "its answer is none", "/badname": "its answer is none|TypeError",
		}
		for path, text := range why {
			got := f.call("POST", path, strings.NewReader("x"))
			var e struct {
				Error     string
				Detail    string
				RequestID string `json:"request_id"`
			}
			if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.status != 500 || e.Error != "the function failed" || e.RequestID != "req-1" || !regexp.MustCompile("^("+text+")").MatchString(e.Detail) || got.header.Get(asksForLog) == "" {
				t.Errorf("%s: %+v", path, got)
			}
			if strings.Contains(got.body, "hush") {
				t.Errorf("%s tells a secret: %s", path, got.body)
			}
			if got := f.call("GET", "/text", nil); got.status != 200 {
				t.Errorf("after %s: %+v", path, got)
			}
		}
		if got := f.call("GET", "/badpart", nil); got.err == nil && got.status == 200 {
			t.Errorf("a broken stream ends well: %+v", got)
		}
		f.await("traces", func() bool {
			log := f.log()
			return strings.Contains(log, "hush-hush") && strings.Contains(log, runtimes[runtime].file) && strings.Contains(log, "req-1 failed\n") && strings.Contains(log, "req-1 POST /die 500 ")
		})
		if _, after, _ := strings.Cut(f.log(), " POST /raise 500 "); strings.Contains(after, "hush-hush") {
			t.Errorf("a trace comes after the line of its invocation:\n%s", f.log())
		}
	})
}

// One that never returns is cut off, and the rest goes on.
func TestAFunctionTakesTooLong(t *testing.T) {
	tier.Slow(t)
	each(t, func(t *testing.T, runtime string, files map[string]string) {
		f := startFunction(t, runtime, 2, files).up()
		got := make(chan answered, 1)
		go func() { got <- f.call("POST", "/loop", strings.NewReader("x")) }()
		if a := <-got; a.status != 504 || !strings.Contains(a.body, "the function took too long") || !strings.Contains(a.body, "its time limit is 2 s") || a.header.Get(asksForLog) == "" {
			t.Errorf("%+v", a)
		}
		for range 3 {
			if a := f.call("GET", "/text", nil); a.status != 200 || a.body != "hällo" {
				t.Errorf("after it: %+v", a)
			}
		}
		f.await("the end of the process that loops", func() bool {
			out, _ := exec.CommandContext(t.Context(), "ps", "-o", "pid=", "--ppid", fmt.Sprint(f.cmd.Process.Pid)).Output()
			return len(strings.Fields(string(out))) == 1
		})
	})
}

// Invocations run side by side, and no more than may be.
func TestAFunctionIsInvokedAtOnce(t *testing.T) {
	each(t, func(t *testing.T, runtime string, files map[string]string) {
		f := startFunction(t, runtime, 30, files).up()
		var mu sync.Mutex
		seen := map[int]int{}
		var all sync.WaitGroup
		began := time.Now()
		for range 150 {
			all.Go(func() {
				a := f.call("GET", "/wait", nil)
				mu.Lock()
				defer mu.Unlock()
				seen[a.status]++
			})
		}
		all.Wait()
		if seen[200] < 100 || seen[200]+seen[503] != 150 {
			t.Errorf("answers by status: %v", seen)
		}
		if took := time.Since(began); took > timescale.Limit(15*time.Second) {
			t.Errorf("it took %s", took)
		}
		if a := f.call("GET", "/wait", nil); a.status != 200 || a.body != "waited" {
			t.Errorf("after that: %+v", a)
		}
	})
}

// A client that leaves a stream leaves nothing behind that waits for it.
func TestWhoInvokesAFunctionLeaves(t *testing.T) {
	endless := map[string]map[string]string{
		"python": {"handler.py": "open_streams = 0\ndef parts():\n    global open_streams\n    open_streams += 1\n    try:\n        for i in range(1000000):\n            yield b'x' * 100000\n    finally:\n        open_streams -= 1\n" +
			"def handler(request):\n    return str(open_streams) if request.path == '/open' else parts()\n"},
		"node": {"handler.js": "let open = 0;\nasync function* parts() { open++; try { for (;;) yield Buffer.alloc(100000); } finally { open--; } }\n" +
			"module.exports = (request) => (request.url.endsWith('/open') ? String(open) : new Response(parts()));\n"},
	}
	each(t, func(t *testing.T, runtime string, _ map[string]string) {
		f := startFunction(t, runtime, 60, endless[runtime]).up()
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Forwarded-Prefix", "/x")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, resp.Body, 200000); err != nil {
			t.Fatal(err)
		}
		if a := f.call("GET", "/open", nil); a.body != "1" {
			t.Errorf("while it is read slowly: %+v", a)
		}
		cancel()
		_ = resp.Body.Close()
		f.await("the end of the stream", func() bool { return f.call("GET", "/open", nil).body == "0" })
	})
}

// A handler that cannot be loaded ends the runner, which says why.
func TestAFunctionThatCannotBeLoaded(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		runtime string
		files   map[string]string
		text    string
		code    int // 78: it would end the same way again
	}{
		"python, none":       {"python", nil, "handler.py", 1},
		"python, raises":     {"python", map[string]string{"handler.py": "raise ValueError('at import')"}, "ValueError: at import", 1},
		"python, no syntax":  {"python", map[string]string{"handler.py": "def handler(:"}, "SyntaxError", 78},
		"python, no package": {"python", map[string]string{"handler.py": "import no_such_package"}, "ModuleNotFoundError", 78},
		"python, no handler": {"python", map[string]string{"handler.py": "x = 1"}, "handler.py has no function named handler", 78},
		"python, exits":      {"python", map[string]string{"handler.py": "import os\nos._exit(0)"}, "", 1},
		"node, none":         {"node", nil, "there is no handler.mjs or handler.js or handler.cjs", 78},
		"node, raises":       {"node", map[string]string{"handler.mjs": "throw new TypeError('at import')"}, "TypeError: at import", 1},
		"node, no syntax":    {"node", map[string]string{"handler.mjs": "export default ("}, "SyntaxError", 78},
		"node, no handler":   {"node", map[string]string{"handler.cjs": "module.exports = { x: 1 }"}, "handler.cjs exports no function", 78},
		"node, no package":   {"node", map[string]string{"handler.mjs": "import 'no-such-package'"}, "no-such-package", 78},
		"node, no module":    {"node", map[string]string{"handler.cjs": "require('no-such-package')"}, "no-such-package", 78},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFunction(t, c.runtime, 30, c.files)
			select {
			case err := <-f.end:
				if ended, ok := errors.AsType[*exec.ExitError](err); !ok || ended.ExitCode() != c.code || !strings.Contains(f.log(), c.text) {
					t.Errorf("%v:\n%s", err, f.log())
				}
			case <-time.After(timescale.Limit(20 * time.Second)):
				t.Fatalf("it goes on:\n%s", f.log())
			}
		})
	}
}

// The ways in which modules export a handler.
func TestHandlersOfNode(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"default":       {"handler.mjs": "export default () => 'yes'"},
		"named":         {"handler.mjs": "export const handler = () => 'yes'"},
		"fetch":         {"handler.mjs": "export default { word: 'yes', fetch() { return new Response(this.word) } }"},
		"common, whole": {"handler.cjs": "module.exports = () => 'yes'"},
		"common, named": {"handler.js": "exports.handler = async () => 'yes'"},
		"by package":    {"handler.js": "export default () => 'yes'", "package.json": `{"type":"module"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if a := startFunction(t, "node", 30, files).up().call("GET", "/", nil); a.status != 200 || a.body != "yes" {
				t.Errorf("%+v", a)
			}
		})
	}
}
