// Package cell tests three replicas on machines of their own: network namespaces, joined
// by a network that can be cut, slow and lossy, each with a disk that can fill up. The
// hosts are simulated, their protocol is real. Clients work meanwhile, and what they were
// told is checked for linearizability.
package cell

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/e2e/cell/wire"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/tier"
)

const (
	lease       = 10 * time.Second // how long a host may be silent
	raftTimeout = time.Second
	diskMB      = 64 // of a replica
	patience    = 2 * time.Minute
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envHosts) != "":
		os.Exit(runHosts())
	case !tier.HasRoot():
		fmt.Println("cell: skipped: these tests make network namespaces and need root; set BERTH_TEST_ROOT=1")
		os.Exit(0)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		leftovers.remove()
		os.Exit(1)
	}()
	os.Exit(m.Run())
}

// leftovers are what outlives this process: disks and namespaces.
var leftovers undo

// undo is a list of what is to be done in reverse.
type undo struct {
	mu  sync.Mutex
	all []func()
}

func (u *undo) add(do func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = append(u.all, do)
}

func (u *undo) remove() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, do := range slices.Backward(u.all) {
		do()
	}
}

// cell is three replicas with hosts and clients, each on a machine.
type cell struct {
	t              *testing.T
	dir            string
	wire           *wire.Wire
	replicas       []*replica
	hosts, clients *wire.Machine
	admin          string // token
	http           *http.Client
	boxes          func() []string // that the hosts have
}

// replica is one process.
type replica struct {
	*wire.Machine
	id, dir, url, peer string
	bin                string
	env                []string
	cmd                *exec.Cmd
	exited             chan struct{} // closed when it has ended
}

func newCell(t *testing.T, bin string) *cell {
	t.Helper()
	c := &cell{t: t, dir: t.TempDir(), admin: "bradm_" + rand.Text()}
	c.wire = wire.New(fmt.Sprintf("berthw-%d-", os.Getpid()), netip.MustParsePrefix("10.78.0.0/24"))
	t.Cleanup(func() {
		if err := c.wire.Close(); err != nil {
			t.Error(err)
		}
	})
	leftovers.add(func() { _ = c.wire.Close() })
	args := []string{"init", "--dir", filepath.Join(c.dir, "pki")}
	for _, id := range []string{"a", "b", "c"} {
		m := c.machine(id)
		r := &replica{
			Machine: m, id: id, bin: bin, dir: filepath.Join(c.dir, id),
			url: "http://" + net.JoinHostPort(m.Addr.String(), "8080"), peer: net.JoinHostPort(m.Addr.String(), "7001"),
		}
		c.disk(r.dir)
		r.env = append(os.Environ(),
			"BERTH_PKI_DIR="+filepath.Join(c.dir, "pki", id), "BERTH_DATA_DIR="+filepath.Join(r.dir, "data"), "BERTH_LISTEN="+strings.TrimPrefix(r.url, "http://"),
			"BERTH_ADMIN_TOKEN="+c.admin, "BERTH_HOST_LEASE="+lease.String(), "BERTH_RAFT_TIMEOUT="+raftTimeout.String(), "BERTH_HEARTBEAT_INTERVAL=500ms",
		)
		c.replicas = append(c.replicas, r)
		args = append(args, "--replica", id+"="+r.peer)
	}
	c.hosts, c.clients = c.machine("hosts"), c.machine("clients")
	dial := c.clients.Dial(3 * time.Second)
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:     func(_ context.Context, network, address string) (net.Conn, error) { return dial(network, address) },
		IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 16, ResponseHeaderTimeout: 15 * time.Second,
	}}
	t.Cleanup(c.http.CloseIdleConnections)
	if out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	for _, r := range c.replicas {
		c.start(r)
		t.Cleanup(func() { r.kill() })
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.tail()
		}
	})
	c.leader()
	c.startHosts()
	return c
}

func (c *cell) machine(name string) *wire.Machine {
	c.t.Helper()
	m, err := c.wire.Machine(name)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// disk mounts a small file system.
func (c *cell) disk(dir string) {
	c.t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", diskMB)); err != nil {
		c.t.Fatalf("mount a disk: %v", err)
	}
	c.t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			c.t.Error(err)
		}
	})
	leftovers.add(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // a replica may use it still
}

func (c *cell) start(r *replica) {
	c.t.Helper()
	log, err := os.OpenFile(r.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	r.cmd = r.Command(r.bin, "serve")
	r.cmd.Env, r.cmd.Stdout, r.cmd.Stderr = r.env, log, log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	r.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait() // that it was killed is no error
		close(exited)
	}(r.cmd, r.exited)
}

func (r *replica) log() string { return r.dir + ".log" } // not on its disk

func (r *replica) signal(s syscall.Signal) { _ = r.cmd.Process.Signal(s) } // it may have ended

// kill ends the process as the loss of its machine would.
func (r *replica) kill() {
	r.signal(syscall.SIGKILL)
	<-r.exited
}

// stop ends it as an operator does.
func (c *cell) stop(r *replica) {
	c.t.Helper()
	r.signal(syscall.SIGTERM)
	select {
	case <-r.exited:
	case <-time.After(patience):
		c.t.Errorf("%s does not stop", r.id)
		r.kill()
	}
}

// tail shows the ends of the replicas' logs.
func (c *cell) tail() {
	for _, r := range c.replicas {
		raw, err := os.ReadFile(r.log())
		c.t.Logf("log of %s (%v): …%s", r.id, err, raw[max(0, len(raw)-4000):])
	}
}

// call makes one request of a replica, which may take as long as timeout.
func (c *cell) call(timeout time.Duration, r *replica, token, method, path string, body any, key string) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var reader io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		reader = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, reader)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// operator makes a request as an operator, of any replica, until one answers as wanted.
func (c *cell) operator(method, path string, body any, want int, out any) {
	c.t.Helper()
	var last error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); pause(100 * time.Millisecond) {
		for _, r := range c.replicas {
			status, answer, err := c.call(10*time.Second, r, c.admin, method, path, body, "")
			switch {
			case err != nil:
				last = err
			case status == want:
				if out != nil {
					err = json.Unmarshal(answer, out)
				}
				if err != nil {
					c.t.Fatal(err)
				}
				return
			default:
				last = fmt.Errorf("status %d: %s", status, answer)
			}
		}
	}
	c.t.Fatalf("%s %s: %v", method, path, last)
}

func (c *cell) status(r *replica) (*api.RaftStatus, error) {
	status, answer, err := c.call(2*time.Second, r, c.admin, http.MethodGet, "/v1/admin/raft-status", nil, "")
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("status %d: %s", status, answer)
	}
	var out api.RaftStatus
	return &out, json.Unmarshal(answer, &out)
}

// leader waits until a replica leads.
func (c *cell) leader() *replica {
	c.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); pause(50 * time.Millisecond) {
		for _, r := range c.replicas {
			if st, err := c.status(r); err == nil && st.State == "leader" {
				return r
			}
		}
	}
	c.t.Fatal("no replica leads")
	return nil
}

// whole waits until all replicas follow one leader, and have what it has.
func (c *cell) whole() {
	c.t.Helper()
	agreed := func() error {
		lead, applied := "", uint64(0)
		for _, r := range c.replicas {
			st, err := c.status(r)
			switch {
			case err != nil:
				return fmt.Errorf("%s: %w", r.id, err)
			case st.LeaderID == "" || lead != "" && st.LeaderID != lead:
				return fmt.Errorf("%s follows %q, another %q", r.id, st.LeaderID, lead)
			}
			lead, applied = st.LeaderID, max(applied, st.CommitIndex)
		}
		for _, r := range c.replicas {
			if st, err := c.status(r); err != nil || st.AppliedIndex < applied {
				return fmt.Errorf("%s is behind: %+v, %w", r.id, st, err)
			}
		}
		return nil
	}
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); pause(100 * time.Millisecond) {
		if err = agreed(); err == nil {
			return
		}
	}
	c.t.Fatalf("the replicas do not come together: %v", err)
}

// program is bin/controlplane of the build that is under test.
func program(t *testing.T) string {
	t.Helper()
	root, err := stack.FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(root, "bin", "controlplane")
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: run make build", err)
	}
	return bin
}

// fill takes what is free of a replica's disk.
func (r *replica) fill() error {
	f, err := os.Create(filepath.Join(r.dir, "full"))
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for size := len(block); size > 0; {
		if _, err := f.Write(block[:size]); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (r *replica) free() error { return os.Remove(filepath.Join(r.dir, "full")) }

// pause is for as long as a fault lasts, and between two looks at what is awaited.
func pause(d time.Duration) { <-time.After(d) }
