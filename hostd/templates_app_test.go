package hostd_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

const appTemplate = "app"

// appPort is what apps are told to bind.
const appPort = 3000

// app is the program beside an app in a box.
func (h *host) app(id string) *appapi.Client {
	return appapi.NewClient(func(ctx context.Context) (net.Conn, error) { return h.client.Dial(ctx, id, appapi.Port) })
}

// awaitApp waits until what guestapp tells is as wanted.
func (h *host) awaitApp(id, what string, ok func(appapi.Status) bool) appapi.Status {
	h.t.Helper()
	var st appapi.Status
	await(h.t, what, timescale.Limit(6*time.Minute), func() (err error) {
		if st, err = h.app(id).Status(h.t.Context()); err == nil && !ok(st) {
			err = fmt.Errorf("%+v", st)
		}
		return err
	})
	return st
}

func buildEnded(st appapi.Status) bool {
	return st.Build.State == appapi.StateSucceeded || st.Build.State == appapi.StateFailed
}

// deploy builds files and runs them.
func (h *host) deploy(id string, in appapi.Build, files map[string]string) appapi.Status {
	h.t.Helper()
	in.Upload, in.Port = true, appPort
	must(h.t, h.app(id).PutSource(h.t.Context(), bytes.NewReader(appSource(h.t, files))))
	began := time.Now()
	_, err := h.app(id).Build(h.t.Context(), in)
	must(h.t, err)
	st := h.awaitApp(id, in.ID+" is built", buildEnded)
	if st.Build.State != appapi.StateSucceeded {
		h.t.Fatalf("%s: %+v\n%s", in.ID, st.Build, h.buildLog(id))
	}
	built := time.Since(began)
	_, err = h.app(id).Run(h.t.Context(), appapi.Run{ID: in.ID, Port: appPort, Env: in.Env})
	must(h.t, err)
	st = h.awaitApp(id, in.ID+" listens", listensOn(appPort))
	h.t.Logf("%s: built after %s, listens after %s; %+v %v", in.ID, built, time.Since(began), st.Build.Plan, st.Build.Phases)
	return st
}

func listensOn(port int) func(appapi.Status) bool {
	return func(st appapi.Status) bool {
		for _, l := range st.Run.Listening {
			if l.Port == port && !l.Loopback {
				return true
			}
		}
		return false
	}
}

func (h *host) buildLog(id string) string {
	h.t.Helper()
	r, _, err := h.app(id).BuildLog(h.t.Context(), appapi.LogQuery{})
	must(h.t, err)
	defer r.Close()
	raw, err := io.ReadAll(r)
	must(h.t, err)
	return string(raw)
}

// ask sends a request to the app in a box.
func (h *host) ask(id, path string) (string, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return h.client.Dial(ctx, id, appPort)
	}}
	ctx, cancel := context.WithTimeout(h.t.Context(), timescale.Limit(30*time.Second))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://app"+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return string(raw), err
}

// answers waits until the app in a box answers.
func (h *host) answers(id, path, want string) {
	h.t.Helper()
	await(h.t, "the app answers", timescale.Limit(2*time.Minute), func() error {
		got, err := h.ask(id, path)
		if err == nil && !strings.Contains(got, want) {
			err = fmt.Errorf("%q, want %q", got, want)
		}
		return err
	})
}

func appSource(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	for name, text := range files {
		must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}))
		_, err := io.WriteString(w, text)
		must(t, err)
	}
	must(t, w.Close())
	must(t, zip.Close())
	return b.Bytes()
}

const nodeServer = `
const fs = require('fs')
const env = Object.keys(process.env).sort().join(' ')
require('http').createServer((req, res) => {
  if (req.url === '/die') process.exit(7)
  if (req.url === '/env') return res.end(env)
  if (req.url === '/state') {
    try { return res.end(fs.readFileSync('/var/lib/berth/app/state.json')) } catch (e) { return res.end(e.code) }
  }
  res.end('node of ' + process.getuid() + ': ' + fs.readFileSync('built.txt'))
}).listen(process.env.PORT, process.env.HOST, () => console.log('token ' + process.env.TOKEN))
`

const pythonServer = `
import http.server, os
class H(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"python " + os.environ["GREETING"].encode())
http.server.ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), H).serve_forever()
`

// TestRealApp is the life of a box of the template in which apps are built and run.
func TestRealApp(t *testing.T) {
	h := newHost(t)
	root, err := filepath.Abs("..")
	must(t, err)
	h.env = append(h.env, "BERTH_APP_CPU=2", "BERTH_APP_MEMORY_MB=1024") // as the local stack has it
	h.run("template", "build", filepath.Join(root, "templates", appTemplate, "template.yaml"))
	h.start()
	id := rid('a', 0)
	began := time.Now()
	box := h.make(id, hostapi.BoxSpec{Template: appTemplate})
	if box.CPU != 2 || box.MemoryMB != 1024 {
		t.Errorf("it has %d CPUs and %d MB", box.CPU, box.MemoryMB)
	}
	h.awaitApp(id, "guestapp answers", func(appapi.Status) bool { return true })
	t.Logf("guestapp answers after %s\n%s", time.Since(began), stages(box))

	t.Run("what a build may not", func(t *testing.T) { h.hostileBuilds(id) })

	// A static site.
	h.deploy(id, appapi.Build{ID: "static"}, map[string]string{"index.html": "a page", "about.html": "about"})
	h.answers(id, "/", "a page")
	h.answers(id, "/about", "about")

	// Python, without any package.
	h.deploy(id, appapi.Build{ID: "python", Env: map[string]string{"GREETING": "hello"}}, map[string]string{"main.py": pythonServer})
	h.answers(id, "/", "python hello")

	// Node, with a build command and a secret.
	st := h.deploy(id, appapi.Build{
		ID: "node", BuildCommand: "id -un > built.txt; sleep 1000 & echo built with $TOKEN", Env: map[string]string{"TOKEN": "secret-token-1"}, Secrets: []string{"TOKEN"},
	}, map[string]string{"package.json": `{"scripts":{"start":"node server.js"}}`, "server.js": nodeServer})
	h.answers(id, "/", ": app")
	if st.Build.Plan.Framework != "node" || !strings.HasPrefix(st.Build.Plan.Runtime, "node 22.") {
		t.Errorf("%+v", st.Build.Plan)
	}
	if log := h.buildLog(id); strings.Contains(log, "secret-token") || !strings.Contains(log, "built with ********") {
		t.Errorf("the build's log: %s", log)
	}
	if got := h.sh(id, "pgrep -cx sleep || true"); got != "0" {
		t.Errorf("%s processes of the build are left", got)
	}
	for path, want := range map[string]string{"/state": "EACCES", "/env": "PORT"} {
		if got, err := h.ask(id, path); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %q, %v", path, got, err)
		} else if path == "/env" && (!strings.Contains(got, "HOST ") || strings.Contains(got, "CI ")) {
			t.Errorf("the app's variables: %s", got)
		}
	}

	// It is started again when it ends.
	_, _ = h.ask(id, "/die")
	st = h.awaitApp(id, "it is started again", func(st appapi.Status) bool { return st.Run.Starts > 1 && listensOn(appPort)(st) })
	if st.Run.ExitCode == nil || *st.Run.ExitCode != 7 || strings.Contains(strings.Join(st.Run.LastLines, "\n"), "secret-token") {
		t.Errorf("%+v", st.Run)
	}
	h.answers(id, "/", ": app")

	// It sleeps and wakes.
	_, err = h.client.Hibernate(t.Context(), id)
	must(t, err)
	began = time.Now()
	_, err = h.client.Wake(t.Context(), id)
	must(t, err)
	h.answers(id, "/", ": app")
	t.Logf("first answer %s after the wake began", time.Since(began))
	if st := h.awaitApp(id, "guestapp answers", func(appapi.Status) bool { return true }); st.Run.Starts != 2 || st.Build.ID != "node" {
		t.Errorf("after the wake: %+v", st)
	}
	must(t, h.client.DeleteBox(t.Context(), id, 1))
	if left := h.left(id); len(left) > 0 {
		t.Errorf("left after the delete: %v", left)
	}
}

// hostileBuilds are builds that take more than they may have.
func (h *host) hostileBuilds(id string) {
	for name, c := range map[string]struct {
		command string
		seconds int
		want    string
	}{
		"bomb": {"bomb() { bomb | bomb & }; bomb; sleep 1000", 20, "exceeded its budget of 20s"},
		"memory": {`python3 -c 'b = []
while True: b.append(bytearray(16 << 20))'`, 300, "out of memory"},
		"output": {"yes 0123456789012345678901234567890123456789 | head -c 50000000; exit 9", 300, "failed with exit code 9"},
		"loop":   {"nohup sh -c 'trap \"\" TERM; while :; do sleep 1; done' >/dev/null 2>&1 & exit 8", 300, "failed with exit code 8"},
	} {
		must(h.t, h.app(id).PutSource(h.t.Context(), bytes.NewReader(appSource(h.t, map[string]string{"index.html": ""}))))
		began := time.Now()
		_, err := h.app(id).Build(h.t.Context(), appapi.Build{ID: name, Upload: true, Port: appPort, BuildCommand: c.command, TimeoutSeconds: c.seconds})
		must(h.t, err)
		st := h.awaitApp(id, name+" has ended", buildEnded)
		if st.Build.State != appapi.StateFailed || !strings.Contains(st.Build.Error, c.want) {
			h.t.Errorf("%s: %+v", name, st.Build)
		}
		if got := h.sh(id, "ps -u app -o pid= | wc -l"); got != "0" {
			h.t.Errorf("%s: %s processes are left", name, got)
		}
		if got := h.sh(id, "du -sm /var/lib/berth/app | cut -f 1"); len(got) > 1 {
			h.t.Errorf("%s: guestapp's directory has %s MB", name, got)
		}
		h.t.Logf("%s ended after %s", name, time.Since(began))
	}
}
