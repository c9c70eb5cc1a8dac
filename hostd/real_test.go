package hostd_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
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
	"syscall"
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

	mu   sync.Mutex
	last hostapi.Heartbeat
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
		h.mu.Lock()
		defer h.mu.Unlock()
		_ = json.NewDecoder(r.Body).Decode(&h.last)
		_ = json.NewEncoder(w).Encode(hostapi.HeartbeatReply{Term: 1, IntervalSeconds: 5, LeaseSeconds: 15})
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(h.t, "replica:r1")}, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
	s.StartTLS()
	h.t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// heard is what the last heartbeat said of a box.
func (h *host) heard(id string) hostapi.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.last.Boxes {
		if b.ID == id {
			return b.Status
		}
	}
	return ""
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

func (h *host) put(id string) hostapi.Box {
	h.t.Helper()
	b, err := h.client.PutBox(h.t.Context(), id, hostapi.BoxSpec{Generation: 1, WorkspaceID: "ws", Template: "base", Env: map[string]string{"GREETING": "hello"}})
	if err != nil {
		h.t.Fatalf("put: %v", err)
	}
	return b
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

func TestRealBoxes(t *testing.T) {
	h := newHost(t)
	h.start()
	a, b := strings.Repeat("a", 26), strings.Repeat("b", 26)
	boxA, boxB := h.put(a), h.put(b)
	t.Logf("create: %s, %s of it ours\n%s", boxB.CreateDuration, boxB.CreateOwnDuration, stages(boxB))

	if got := h.sh(a, "uname -s; echo $GREETING"); got != "Linux\nhello" {
		t.Errorf("exec = %q", got)
	}
	for what, script := range map[string]string{
		"machine id":   "cat /etc/machine-id",
		"random bytes": "head -c 16 /dev/urandom | od -An -tx1",
		"getrandom":    "python3 -c 'import os; print(os.getrandom(16).hex())'",
		"ssh host key": "cat /etc/ssh/ssh_host_ed25519_key.pub",
		"uuid":         "cat /proc/sys/kernel/random/uuid",
	} {
		if x, y := h.sh(a, script), h.sh(b, script); x == y || x == "" {
			t.Errorf("%s is %q in both", what, x)
		}
	}
	h.tellsTheTime(a)

	// Paused, it keeps its memory and answers nothing; resumed, its clock is right.
	_, err := h.client.Pause(t.Context(), a)
	must(t, err)
	if _, err := h.client.Exec(t.Context(), a, hostapi.ExecRequest{Argv: []string{"true"}, Timeout: time.Second}); !hostapi.HasCode(err, hostapi.CodeNotRunning) {
		t.Errorf("exec in a paused box: %v", err)
	}
	_, err = h.client.Resume(t.Context(), a)
	must(t, err)
	h.sh(a, "true")

	// The daemon is killed: its VMs live on and are taken over.
	h.sh(b, "echo kept > /dev/shm/file")
	h.kill()
	h.start()
	got, err := h.client.GetBox(t.Context(), b)
	must(t, err)
	if got.VMMPID != boxB.VMMPID || got.Status != hostapi.StatusRunning {
		t.Errorf("after the restart: %+v", got)
	}
	if got := h.sh(b, "cat /dev/shm/file"); got != "kept" {
		t.Errorf("memory after the restart = %q", got)
	}

	// A VMM that dies is noticed at once, and the leader is told at once.
	c := strings.Repeat("c", 26)
	boxC := h.put(c)
	died := time.Now()
	must(t, syscall.Kill(boxC.VMMPID, syscall.SIGKILL))
	await(t, "the leader hears of the death", 5*time.Second, func() error {
		if s := h.heard(c); s != hostapi.StatusFailed {
			return fmt.Errorf("it heard %q", s)
		}
		return nil
	})
	t.Logf("death was heard of after %s", time.Since(died).Round(time.Millisecond))
	got, err = h.client.GetBox(t.Context(), c)
	must(t, err)
	if got.Status != hostapi.StatusFailed || got.Signal != "KILL" {
		t.Errorf("after kill -9 of its VMM: %+v", got)
	}

	for _, id := range []string{a, b, c} {
		must(t, h.client.DeleteBox(t.Context(), id, 1))
	}
	if left := h.left(a, b, c); len(left) > 0 {
		t.Errorf("left after the deletes: %s", strings.Join(left, "\n  "))
	}
	_ = boxA
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

func TestRealSixteenAtOnce(t *testing.T) {
	h := newHost(t)
	h.env = append(h.env, "BERTH_MEMORY_MB=12288")
	h.start()
	var wg sync.WaitGroup
	began := time.Now()
	for i := range 16 {
		wg.Go(func() {
			id := strings.Repeat("d", 25) + string(rune('a'+i))
			if _, err := h.client.PutBox(t.Context(), id, hostapi.BoxSpec{Generation: 1, WorkspaceID: "ws", Template: "base"}); err != nil {
				t.Errorf("box %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	t.Logf("16 boxes in %s", time.Since(began))
	// Killed with all of them, and started without their records.
	h.kill()
	must(t, os.Remove(filepath.Join(h.data, "ledger")))
	h.start()
	if boxes, err := h.client.Boxes(t.Context()); err != nil || len(boxes) != 0 {
		t.Errorf("boxes = %d, %v; want none", len(boxes), err)
	}
	if left := h.processes(); len(left) > 0 {
		t.Errorf("VMs without a record live on: %v", left)
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

// tellsTheTime fails the test if a guest's clock is not this machine's.
func (h *host) tellsTheTime(id string) {
	h.t.Helper()
	before := time.Now()
	guest := clock(h.t, h.sh(id, "date +%s.%N"))
	if guest.Before(before.Add(-time.Second)) || guest.After(time.Now().Add(time.Second)) {
		h.t.Errorf("the guest's clock says %s, this machine's said %s before it was asked", guest, before)
	}
}

func clock(t testing.TB, s string) time.Time {
	t.Helper()
	f, err := strconv.ParseFloat(s, 64)
	must(t, err)
	return time.UnixMicro(int64(f * 1e6))
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
