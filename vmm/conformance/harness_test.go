package conformance_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
	"github.com/berth-cloud/berth/vmm/conformance"
)

const (
	ramSize = 256 << 20
)

// guestTimeout bounds what a guest takes to do anything, boot included,
// translated and on a busy machine.
var guestTimeout = timescale.Limit(5 * time.Minute)

// host is one VMM of a test.
type host struct {
	t   *testing.T
	dir string
	p   *vmm.Process
	c   *vmm.Client
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), timescale.Limit(10*time.Minute))
	t.Cleanup(cancel)
	return ctx
}

// shortDir makes a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(shared.dir, "t")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// startHost starts a VMM in a new runtime directory.
func startHost(t *testing.T) *host {
	t.Helper()
	return startHostIn(t, filepath.Join(shortDir(t), "r"))
}

// startHostIn starts a VMM in a runtime directory, which may have been used.
func startHostIn(t *testing.T, dir string) *host {
	t.Helper()
	return launchHost(t, vmm.Launch{Engine: shared.engine, Dir: dir})
}

func launchHost(t *testing.T, l vmm.Launch) *host {
	t.Helper()
	if l.MaxFile == 0 {
		l.MaxFile = vmm.MaxFile(diskSize>>20, ramSize>>20)
	}
	p, err := vmm.Start(testContext(t), l)
	must(t, err)
	h := &host{t: t, dir: l.Dir, p: p, c: p.Client()}
	t.Cleanup(func() {
		h.kill()
		if t.Failed() {
			raw, _ := os.ReadFile(vmm.LogPath(l.Dir))
			t.Logf("log of the VMM in %s:\n%s", l.Dir, tail(raw, 4000))
		}
	})
	return h
}

func (h *host) kill() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timescale.Limit(20*time.Second))
	defer cancel()
	if err := h.p.Kill(ctx); err != nil {
		h.t.Errorf("kill VMM: %v", err)
	}
}

func tail(raw []byte, n int) []byte { return raw[max(0, len(raw)-n):] }

// ctx bounds one call.
func (h *host) ctx() context.Context { return testContext(h.t) }

// info returns what vm.info says.
func (h *host) info() vmm.VMInfo {
	h.t.Helper()
	info, err := h.c.Info(h.ctx())
	must(h.t, err)
	return info
}

func (h *host) wantState(want vmm.State) {
	h.t.Helper()
	if got := h.info().State; got != want {
		h.t.Fatalf("the VM is %s, want %s", got, want)
	}
}

// wantNoVM checks that there is no VM, defined or running.
func (h *host) wantNoVM() {
	h.t.Helper()
	_, err := h.c.Info(h.ctx())
	wantError(h.t, err, http.StatusNotFound, "VM is not created")
}

// answer is a raw answer of the API.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) messages(t *testing.T) []string {
	t.Helper()
	var list []string
	if err := json.Unmarshal(a.body, &list); err != nil {
		t.Fatalf("the body %q is no list of messages: %v", a.body, err)
	}
	return list
}

// request sends one request on a connection of its own and returns the answer as
// it came. A nil body sends none.
func (h *host) request(method, path string, body []byte) answer {
	h.t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", vmm.SocketPath(h.dir))
		},
	}}
	var r io.Reader = http.NoBody
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(h.ctx(), method, "http://localhost"+path, r)
	must(h.t, err)
	resp, err := client.Do(req)
	must(h.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	must(h.t, err)
	return answer{status: resp.StatusCode, header: resp.Header, body: raw}
}

// want checks the status of a raw answer and that each of the texts is in its
// body, in whichever case.
func (h *host) want(method, path string, body []byte, status int, texts ...string) answer {
	h.t.Helper()
	a := h.request(method, path, body)
	if a.status != status {
		h.t.Errorf("%s %s: status %d, want %d (body %s)", method, path, a.status, status, a.body)
	}
	for _, text := range texts {
		if !containsFold(string(a.body), text) {
			h.t.Errorf("%s %s: body %s lacks %q", method, path, a.body, text)
		}
	}
	return a
}

// containsFold is strings.Contains in whichever case: the programs begin their
// messages differently.
func containsFold(s, text string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(text))
}

// wantError checks that err is a refusal with a status and texts.
func wantError(t *testing.T, err error, status int, texts ...string) {
	t.Helper()
	var e *vmm.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a refusal with status %d", err, status)
	}
	if e.Status != status {
		t.Errorf("%v: status %d, want %d", e, e.Status, status)
	}
	for _, text := range texts {
		if !containsFold(e.Error(), text) {
			t.Errorf("%v: it lacks %q", e, text)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(guestTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// guest is a guest's console and the disk it takes orders from.
type guest struct {
	t      *testing.T
	serial string
	orders string
	count  int
}

// last returns the newest report in the console's file.
func (g *guest) last() (conformance.Report, bool) {
	raw, err := os.ReadFile(g.serial)
	if err != nil {
		return conformance.Report{}, false
	}
	lines := strings.Split(string(raw), "\n")
	// The last piece is a line that is not finished.
	for i := len(lines) - 2; i >= 0; i-- {
		text, ok := strings.CutPrefix(strings.TrimRight(lines[i], "\r"), conformance.Prefix)
		var r conformance.Report
		if ok && json.Unmarshal([]byte(text), &r) == nil {
			return r, true
		}
	}
	return conformance.Report{}, false
}

// await waits for a report.
func (g *guest) await(what string, ok func(conformance.Report) bool) conformance.Report {
	g.t.Helper()
	var last conformance.Report
	eventually(g.t, "guest: "+what, func() bool {
		r, have := g.last()
		last = r
		return have && ok(r)
	})
	return last
}

// up waits for any report.
func (g *guest) up() conformance.Report {
	g.t.Helper()
	return g.await("a report", func(conformance.Report) bool { return true })
}

// after waits until the guest has gone on from a report.
func (g *guest) after(r conformance.Report) conformance.Report {
	g.t.Helper()
	return g.await("going on", func(n conformance.Report) bool { return n.Boot == r.Boot && n.Tick > r.Tick })
}

// order writes an order for the guest.
func (g *guest) order(text string) {
	g.t.Helper()
	g.count++
	f, err := os.OpenFile(g.orders, os.O_WRONLY, 0)
	must(g.t, err)
	defer f.Close()
	_, err = f.WriteAt(conformance.Order(g.count, text), 0)
	must(g.t, err)
}

// tag orders a tag and waits until the guest's memory is filled with it.
func (g *guest) tag(text string) conformance.Report {
	g.t.Helper()
	g.order("tag " + text)
	want := checksum(text)
	return g.await("tag "+text, func(r conformance.Report) bool { return r.Tag == text && r.Sum == want })
}

// sum returns a digest of a file.
func sum(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	must(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// writeConfig replaces a config.json, which may be linked to another snapshot's.
func writeConfig(path string, e *vmm.ConfigEdit) error {
	raw, err := e.Bytes()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o600)
}

// newFile makes a file of a size that begins with text.
func newFile(t *testing.T, path string, size int64, text string) string {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
	must(t, os.Truncate(path, size))
	return path
}
