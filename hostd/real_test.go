package hostd_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/internal/testca"
	"github.com/berth-cloud/berth/tier"
)

// These tests run the real daemon with real guests: root, the engine, a kernel
// and the base template, which they share with the local stack.

var (
	// Two runs on one machine need names and users of their own.
	hostID     = envOr("BERTH_TEST_AGENT_ID", "hdtest")
	baseUID, _ = strconv.Atoi(envOr("BERTH_TEST_BASE_UID", "690000"))
	slotCIDR   = envOr("BERTH_TEST_SLOT_CIDR", "10.219.240.0/24")
)

// host is a hostd process, and what stands in for its control plane.
type host struct {
	t      testing.TB
	bin    string
	env    []string
	client *hostapi.Client
	cmd    *exec.Cmd
	log    string
	data   string
}

func newHost(t testing.TB) *host {
	t.Helper()
	tier.Guests(t)
	root, err := filepath.Abs("..")
	must(t, err)
	// Behind the link, if it is one: VMMs may not be able to enter the clone.
	cache, err := filepath.EvalSymlinks(filepath.Join(root, ".berth"))
	must(t, err)
	ca := testca.New(t)
	dir := t.TempDir()
	// Unprivileged VMMs pass through every directory above their disks.
	for d := dir; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755))
	}
	ca.WriteDir(t, filepath.Join(dir, "pki"), "host:"+hostID)
	h := &host{t: t, bin: programs(t, root), data: filepath.Join(dir, "data"), log: filepath.Join(dir, "hostd.log")}
	leader := h.serveLeader(ca)
	listen := freePort(t)
	h.env = append(os.Environ(),
		"BERTH_AGENT_ID="+hostID, "BERTH_DATA_DIR="+h.data, "BERTH_PKI_DIR="+filepath.Join(dir, "pki"),
		"BERTH_LISTEN="+listen, "BERTH_PEERS="+leader, "BERTH_SLOT_CIDR="+slotCIDR, "BERTH_SLOT_POOL=3",
		"BERTH_BASE_UID="+strconv.Itoa(baseUID), "BERTH_MEMORY_MB=4096", "BERTH_DISK_HEADROOM_MB=512", "BERTH_LOG_LEVEL=debug",
		// Sixteen guests start at once on machines of two CPUs that are emulated.
		"BERTH_TIME_SCALE="+envOr("BERTH_TIME_SCALE", "4"),
		"BERTH_TEMPLATE_DIR="+envOr("BERTH_TEMPLATE_DIR", filepath.Join(cache, "templates")),
		"BERTH_KERNEL="+envOr("BERTH_KERNEL", filepath.Join(cache, "kernel", "vmlinux")),
		"BERTH_VMM="+envOr("BERTH_VMM", firstOf(filepath.Join(root, "bin", "chvemu"), filepath.Join(h.bin, "chvemu"))),
		"BERTH_GUESTD="+envOr("BERTH_GUESTD", firstOf(filepath.Join(root, "bin", "guestd"), filepath.Join(h.bin, "guestd"))),
	)
	h.run("template", "build", filepath.Join(root, "templates", "base", "template.yaml"))
	h.client = hostapi.NewClient(listen, hostapi.PeerTLS(ca.Issue(t, "replica:r1"), ca.Pool, hostapi.IsHost(hostID))).Bind(hostapi.Binding{Term: 1})
	t.Cleanup(func() {
		h.client.Close()
		h.kill()
		h.run("purge")
		if left := h.left(); len(left) > 0 {
			t.Errorf("left after a purge: %s", strings.Join(left, "\n  "))
		}
		if t.Failed() {
			raw, _ := os.ReadFile(h.log)
			t.Logf("hostd's log:\n%s", raw)
		}
	})
	return h
}

// programs builds the daemon from the source at hand, once for all tests. Engine
// and agent are the stack's, if it was built: with others the template would be
// made anew.
func programs(t testing.TB, root string) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "berth-hostd-test-"); built.err != nil {
			return
		}
		if built.err = os.Chmod(built.dir, 0o755); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", built.dir+"/", "./cmd/hostd", "./cmd/chvemu", "./cmd/guestd", "./cmd/guestpg", "./cmd/guestapp")
		build.Dir = root
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build: %w\n%s", err, out)
		}
	})
	must(t, built.err)
	return built.dir
}

var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// serveLeader takes heartbeats.
func (h *host) serveLeader(ca *testca.CA) string {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = json.NewEncoder(w).Encode(hostapi.HeartbeatReply{Term: 1, IntervalSeconds: 5, LeaseSeconds: 15})
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(h.t, "replica:r1")}, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
	s.StartTLS()
	h.t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func (h *host) run(args ...string) {
	h.t.Helper()
	cmd := exec.Command(filepath.Join(h.bin, "hostd"), args...)
	cmd.Env = h.env
	if out, err := cmd.CombinedOutput(); err != nil {
		h.t.Fatalf("hostd %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// start starts the daemon and waits until it is ready.
func (h *host) start() {
	h.t.Helper()
	log, err := os.OpenFile(h.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(h.t, err)
	defer log.Close()
	h.cmd = exec.Command(filepath.Join(h.bin, "hostd"), "serve")
	h.cmd.Env, h.cmd.Stdout, h.cmd.Stderr = h.env, log, log
	must(h.t, h.cmd.Start())
	await(h.t, "the daemon is ready", 30*time.Second, func() error {
		info, err := h.client.Info(h.t.Context())
		if err != nil {
			return err
		}
		if !info.Ready {
			return errors.New("not ready")
		}
		for _, tpl := range info.Templates {
			if tpl.Name == "base" && tpl.Status == "ready" {
				return nil
			}
		}
		return fmt.Errorf("template base is not ready: %+v", info.Templates)
	})
}

// kill ends the daemon as a crash does.
func (h *host) kill() {
	if h.cmd != nil {
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
		h.cmd = nil
	}
}

// left is what the machine still holds for this host's boxes; slots of the
// pool are none.
func (h *host) left(ids ...string) []string {
	var out []string
	for _, id := range ids {
		for _, pattern := range []string{
			filepath.Join(h.data, "boxes", id), filepath.Join("/run/berth", hostID, id),
			"/sys/fs/cgroup/*/berth*/" + hostID + "/" + id, "/sys/fs/cgroup/berth*/" + hostID + "/" + id,
		} {
			found, _ := filepath.Glob(pattern)
			out = append(out, found...)
		}
	}
	if len(ids) == 0 {
		for _, pattern := range []string{
			filepath.Join(h.data, "boxes", "*"), "/run/berth/" + hostID, "/run/netns/berth-" + hostID + "-*",
			"/sys/class/net/b" + hostID + "-*", "/sys/fs/cgroup/*/berth*/" + hostID, "/sys/fs/cgroup/berth*/" + hostID,
		} {
			found, _ := filepath.Glob(pattern)
			out = append(out, found...)
		}
	}
	return append(out, h.processes()...)
}

// processes are those that run as a user of this host's slots.
func (h *host) processes() []string {
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		raw, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			continue
		}
		if strings.Contains(string(raw), "\nState:\tZ") {
			continue // ended; its parent, which is the machine's init, is slow to notice
		}
		for line := range strings.Lines(string(raw)) {
			if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
				if uid, _ := strconv.Atoi(strings.Fields(ids)[0]); uid >= baseUID && uid < baseUID+1000 {
					name, _ := os.ReadFile(filepath.Join(dir, "comm"))
					out = append(out, dir+" "+strings.TrimSpace(string(name)))
				}
			}
		}
	}
	return out
}

func (h *host) sh(id, script string) string {
	h.t.Helper()
	res, err := h.client.Exec(h.t.Context(), id, hostapi.ExecRequest{Argv: []string{"sh", "-c", script}, Timeout: 10 * time.Minute})
	if err != nil {
		h.t.Fatalf("%s: %v", script, err)
	}
	if res.ExitCode != 0 {
		h.t.Fatalf("%s: exit code %d: %s", script, res.ExitCode, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

func TestRealColdBoot(t *testing.T) {
	h := newHost(t)
	h.start()
	id := strings.Repeat("f", 26)
	box, err := h.client.PutBox(t.Context(), id, hostapi.BoxSpec{Generation: 1, WorkspaceID: "ws", Template: "base", Boot: hostapi.BootCold, Hostname: "cold-1"})
	must(t, err)
	t.Logf("cold boot: %s\n%s", box.CreateDuration, stages(box))
	if got := h.sh(id, "hostname; touch /written && echo ok"); got != "cold-1\nok" {
		t.Errorf("exec = %q", got)
	}
	must(t, h.client.DeleteBox(t.Context(), id, 1))
	if left := h.left(id); len(left) > 0 {
		t.Errorf("left after the delete: %s", strings.Join(left, "\n  "))
	}
}

// BenchmarkRealCreate reports the medians of a create's stages:
//
//	BERTH_TEST_GUESTS=1 go test ./hostd -run xxx -bench RealCreate -benchtime 20x
func BenchmarkRealCreate(b *testing.B) {
	h := newHost(b)
	h.start()
	took := map[string][]time.Duration{}
	id := strings.Repeat("e", 26)
	generation := uint64(0)
	for b.Loop() {
		generation++
		box, err := h.client.PutBox(b.Context(), id, hostapi.BoxSpec{Generation: generation, WorkspaceID: "ws", Template: "base"})
		must(b, err)
		for _, s := range box.Stages {
			took[s.Name] = append(took[s.Name], s.Duration)
		}
		took["total"] = append(took["total"], box.CreateDuration)
		took["own"] = append(took["own"], box.CreateOwnDuration)
		must(b, h.client.DeleteBox(b.Context(), id, generation))
	}
	for name, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"-ms/op")
	}
}

func stages(b hostapi.Box) string {
	var out strings.Builder
	for _, s := range b.Stages {
		fmt.Fprintf(&out, "  %-10s %8s engine=%v\n", s.Name, s.Duration.Round(10*time.Microsecond), s.Engine)
	}
	return out.String()
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// firstOf is the first file that is there.
func firstOf(paths ...string) string {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return paths[0]
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func await(t testing.TB, what string, limit time.Duration, cond func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		case <-tick.C:
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
