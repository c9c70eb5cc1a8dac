package controlplane

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/tier"
)

// Leaders are killed while sandboxes are created and deleted. Every acknowledged
// create is present, and in the end the list and the hosts agree.
func TestKilledLeaders(t *testing.T) {
	tier.Slow(t)
	s := newStack(t)
	hosts := []*fakehost.Host{s.join("h1", 64<<10), s.join("h2", 64<<10)}
	_, key := s.user("ann")
	var mu sync.Mutex
	keep, unknown := map[string]bool{}, map[string]bool{}
	var done atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			c := s.client(key)
			for i := 0; ctx.Err() == nil; i++ {
				cctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
				sb, err := c.CreateSandbox(cctx, api.CreateSandbox{Template: "base"}, fmt.Sprintf("w%d-%d", w, i))
				if err == nil && rand.IntN(2) == 0 {
					err = c.DeleteSandbox(cctx, sb.ID)
					mu.Lock()
					if err != nil && api.StatusOf(err) != 404 {
						unknown[sb.ID] = true
					}
					mu.Unlock()
				} else if err == nil {
					mu.Lock()
					keep[sb.ID] = true
					mu.Unlock()
				}
				stop()
				done.Add(1)
				if api.StatusOf(err) == 429 {
					testcluster.Await(t, "the bucket", func() bool {
						_, _, err := c.ListSandboxes(context.Background(), api.Page{Limit: 1})
						return api.StatusOf(err) != 429
					})
				}
			}
		})
	}
	for range 3 {
		before := done.Load()
		testcluster.Await(t, "work", func() bool { return done.Load() >= before+6 })
		p := s.leader()
		p.kill()
		s.leader()
		s.start(p)
	}
	before := done.Load()
	testcluster.Await(t, "work", func() bool { return done.Load() >= before+6 })
	cancel()
	wg.Wait()

	list := func() map[string]api.SandboxStatus {
		out := map[string]api.SandboxStatus{}
		for sb, err := range s.client(key).Sandboxes(t.Context()) {
			if err != nil {
				return nil
			}
			out[sb.ID] = sb.Status
		}
		return out
	}
	var rows map[string]api.SandboxStatus
	testcluster.Await(t, "agreement of list and hosts", func() bool {
		boxes := map[string]api.SandboxStatus{}
		rows = list()
		for _, h := range hosts {
			for id, b := range h.Boxes() {
				boxes[id] = api.SandboxStatus(b.Status)
			}
		}
		return rows != nil && maps.Equal(rows, boxes)
	})
	for id := range keep {
		if rows[id] != api.SandboxRunning {
			t.Errorf("an acknowledged sandbox is %q", rows[id])
		}
	}
	t.Logf("%d calls; %d sandboxes kept, %d deletes of unknown outcome", done.Load(), len(keep), len(unknown))
}

// A replica that is told to stop transfers its leadership and refuses no request.
func TestGracefulStop(t *testing.T) {
	s := newStack(t)
	// Room for every sandbox whose delete is refused on the way.
	s.join("h1", 1<<20)
	_, key := s.user("ann")
	_, fresh := s.user("bob") // whose bucket is full at the end
	old := s.leader()
	var others []string
	for _, p := range s.replicas {
		if p != old {
			others = append(others, p.url)
		}
	}
	c := s.client(key, others[0])
	if err := old.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for i := 0; old.running(); i++ {
		sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, fmt.Sprint("k", i))
		if err == nil {
			err = c.DeleteSandbox(t.Context(), sb.ID)
		}
		if err != nil && api.StatusOf(err) != 429 && api.StatusOf(err) != 503 && api.StatusOf(err) != 502 {
			t.Fatalf("during the stop: %v", err)
		}
	}
	if code := old.cmd.ProcessState.ExitCode(); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, tail(old.log.Name()))
	}
	if _, err := s.client(fresh, others[0]).CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "after"); err != nil {
		t.Fatal(err)
	}
}

// One replica alone, in this process: it starts, serves, and leaves no
// goroutine behind (TestMain looks).
func TestRunAndStopInProcess(t *testing.T) {
	dir := t.TempDir()
	public, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	peerPort, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	member := pki.Member{ID: "a", Address: peerPort.Addr().String()}
	if err := pki.InitCluster(dir, []pki.Member{member}, "ann", sealKey(t), time.Now()); err != nil {
		t.Fatal(err)
	}
	srv, err := New(t.Context(), Config{
		DataDir: t.TempDir(), PKIDir: filepath.Join(dir, "a"), Listen: "-", AdminToken: adminToken,
		HeartbeatInterval: time.Second, HostLease: 10 * time.Second, Logger: testcluster.Log(),
		PublicListener: public, PeerListener: peerPort,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- srv.Run(ctx) }()
	url := "http://" + srv.Addr()
	testcluster.Await(t, "a leader", func() bool {
		resp, _ := raw(t, "GET", url+"/v1/admin/agents", adminToken, "")
		return resp.StatusCode == 200
	})
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
}
