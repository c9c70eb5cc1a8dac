package raftstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/raftstore/internal/plaintcp"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// replicaEnv makes the test binary be a replica instead; it holds replicaConf.
const replicaEnv = "RAFTSTORE_TEST_REPLICA"

type replicaConf struct {
	ID, Dir, Addr string
	Servers       []Server
}

// runReplica serves a store over HTTP until its standard input ends, as it
// does when the test goes away.
func runReplica() int {
	var rc replicaConf
	if err := json.Unmarshal([]byte(os.Getenv(replicaEnv)), &rc); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stream, err := plaintcp.Listen(rc.Addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := Open(bg, Config{
		ID: rc.ID, Dir: rc.Dir, StreamLayer: stream, Tables: RecordTables(), Logger: quietLog(),
		SnapshotThreshold: 256, SnapshotInterval: 200 * time.Millisecond, TrailingLogs: 64,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := s.Bootstrap(rc.Servers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() { _ = http.Serve(ln, replicaAPI(s)) }()
	fmt.Println(ln.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

type opAnswer struct {
	Value           string
	Happened, Known bool
}

func replicaAPI(s *Store) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /op", func(w http.ResponseWriter, r *http.Request) {
		var in [3]string
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var out opAnswer
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if in[0] == "insert" {
			err := s.Update(ctx, func(tx *Tx) error {
				Put(tx, record.Hosts, &record.Host{Meta: record.Meta{ID: in[1]}, Address: in[2], State: record.HostLost})
				return nil
			})
			out = opAnswer{in[2], err == nil, !errors.Is(err, ErrLeadershipLost)}
		} else {
			out.Value, out.Happened, out.Known = register(ctx, s, registerOp{in[0], in[1], in[2]})
		}
		_ = json.NewEncoder(w).Encode(out)
	})
	mux.HandleFunc("GET /leader", func(w http.ResponseWriter, _ *http.Request) {
		if !s.IsLeader() {
			http.Error(w, "no", http.StatusConflict)
		}
	})
	mux.HandleFunc("GET /dump", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, dump(s.View())) })
	return mux
}

// process is a replica in a process of its own.
type process struct {
	conf replicaConf
	mu   sync.Mutex
	cmd  *exec.Cmd
	in   io.Closer
	url  string // empty while it is down
}

func (p *process) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.url
}

func (p *process) start(t *testing.T) {
	t.Helper()
	conf, err := json.Marshal(p.conf)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), replicaEnv+"="+string(conf))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("replica %s did not start: %v", p.conf.ID, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.in, p.url = cmd, in, "http://"+strings.TrimSpace(line)
}

// kill is kill -9: nothing is flushed, handed over or said.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.in.Close()
	p.cmd, p.url = nil, ""
}

// signal stops or continues the process.
func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// fleet is three of them and a client.
type fleet struct {
	t      *testing.T
	all    []*process
	client *http.Client
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{t: t, client: &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}}
	// An address of its own below 127/8 keeps the ports, which must stay the same
	// over restarts, apart from those that the kernel gives to others.
	host := fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%200, 1+rand.IntN(250), 1+rand.IntN(250))
	var servers []Server
	dir := t.TempDir()
	for i := range 3 {
		servers = append(servers, Server{fmt.Sprintf("p%d", i+1), fmt.Sprintf("%s:%d", host, 7001+i)})
	}
	for _, s := range servers {
		f.all = append(f.all, &process{conf: replicaConf{s.ID, filepath.Join(dir, s.ID), s.Address, servers}})
	}
	t.Cleanup(func() {
		for _, p := range f.all {
			p.kill()
		}
		f.client.CloseIdleConnections()
	})
	for _, p := range f.all {
		p.start(t)
	}
	return f
}

// op asks one replica; no answer at all means an unknown outcome.
func (f *fleet) op(ctx context.Context, url string, op registerOp) (string, bool, bool) {
	if url == "" {
		return "", false, true
	}
	body, _ := json.Marshal([3]string{op.kind, op.key, op.value})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/op", bytes.NewReader(body))
	if err != nil {
		return "", false, true
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return "", false, errors.Is(err, syscall.ECONNREFUSED)
	}
	defer func() { _ = resp.Body.Close() }()
	var out opAnswer
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return "", false, false
	}
	return out.Value, out.Happened, out.Known
}

func (f *fleet) get(p *process, path string) (string, bool) {
	url := p.address()
	if url == "" {
		return "", false
	}
	resp, err := f.client.Get(url + path)
	if err != nil {
		return "", false
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err == nil && resp.StatusCode == http.StatusOK
}

func (f *fleet) leader() (lead *process) {
	f.t.Helper()
	await(f.t, "a leader", func() bool {
		i := slices.IndexFunc(f.all, func(p *process) bool { _, ok := f.get(p, "/leader"); return ok })
		if i >= 0 {
			lead = f.all[i]
		}
		return i >= 0
	})
	return lead
}

// TestKill9OfTheLeaderUnderLoad kills (and now and then only stops for a
// while) the leader's process while clients write and read: at the end every
// acknowledged write is on every replica, and what was seen is linearizable.
func TestKill9OfTheLeaderUnderLoad(t *testing.T) {
	tier.Slow(t)
	f := newFleet(t)
	f.leader()
	h := newHistory()
	ctx, stop := context.WithCancel(bg)
	var (
		clients sync.WaitGroup
		acks    atomic.Int64
		mu      sync.Mutex
		kept    []string // ids of acknowledged inserts
	)
	for client := range 10 {
		clients.Go(func() {
			at := client % 3
			for n := 0; ctx.Err() == nil; n++ {
				op := registerOp{key: fmt.Sprintf("r%d", rand.IntN(5)), value: fmt.Sprintf("%d-%d", client, n)}
				op.kind = []string{"insert", "read", "write", "swap"}[n%4]
				if op.kind == "insert" {
					op.key = op.value
				}
				for range 3 {
					var happened, known bool
					ask := func() (v string, _, _ bool) {
						v, happened, known = f.op(ctx, f.all[at].address(), op)
						return v, happened, known
					}
					if op.kind == "insert" {
						_, _, _ = ask()
					} else {
						h.do(client, op, ask)
					}
					if happened {
						acks.Add(1)
						if op.kind == "insert" {
							mu.Lock()
							kept = append(kept, op.key)
							mu.Unlock()
						}
					}
					if happened {
						break
					}
					at = (at + 1) % 3
					if !known {
						break
					}
				}
			}
		})
	}
	progress := func(n int64) {
		t.Helper()
		from := acks.Load()
		await(t, "progress", func() bool { return acks.Load() >= from+n })
	}
	var gaps []time.Duration
	for round := range 6 {
		progress(400)
		lead := f.leader()
		if round == 3 {
			// A pause longer than an election, as of a machine that swaps: it wakes
			// as the leader it no longer is, with requests waiting for it.
			lead.signal(t, syscall.SIGSTOP)
			progress(100)
			lead.signal(t, syscall.SIGCONT)
			continue
		}
		start := time.Now()
		lead.kill()
		after := acks.Load()
		await(t, "a write after the kill", func() bool { return acks.Load() > after+20 })
		gaps = append(gaps, time.Since(start))
		lead.start(t)
	}
	progress(400)
	stop()
	clients.Wait()

	f.leader()
	var dumps [3]string
	await(t, "equal states", func() bool {
		for i, p := range f.all {
			dumps[i], _ = f.get(p, "/dump")
		}
		return dumps[0] != "" && dumps[0] == dumps[1] && dumps[1] == dumps[2]
	})
	slices.Sort(gaps)
	t.Logf("%d acknowledged inserts; kill to writes again: median %s, worst %s", len(kept), gaps[len(gaps)/2], gaps[len(gaps)-1])
	for _, id := range kept {
		if !strings.Contains(dumps[0], "agents/"+id+" ") {
			t.Errorf("acknowledged insert %s is lost", id)
		}
	}
	h.check(t)
}

// A leader that slept through its own deposition is asked at the moment it
// wakes: it must not answer from what it knew before.
func TestPausedLeaderGivesNoStaleRead(t *testing.T) {
	tier.Slow(t)
	f := newFleet(t)
	write := func(p *process, value string) bool {
		_, happened, _ := f.op(bg, p.address(), registerOp{"write", "r", value})
		return happened
	}
	for round := range 3 {
		old := f.leader()
		await(t, "a write", func() bool { return write(old, fmt.Sprintf("old-%d", round)) })
		old.signal(t, syscall.SIGSTOP)
		fresh := fmt.Sprintf("new-%d", round)
		await(t, "a write by the next leader", func() bool {
			return slices.ContainsFunc(f.all, func(p *process) bool { return p != old && write(p, fresh) })
		})
		var reads, sent sync.WaitGroup
		for range 30 {
			sent.Add(1)
			reads.Go(func() {
				// Sent once the connection has taken the request; it waits in the
				// sleeper's socket.
				wrote := sync.OnceFunc(sent.Done)
				defer wrote()
				ctx := httptrace.WithClientTrace(bg, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { wrote() }})
				value, happened, _ := f.op(ctx, old.address(), registerOp{kind: "read", key: "r"})
				if happened && value != fresh {
					t.Errorf("round %d: read %q after %q was acknowledged", round, value, fresh)
				}
			})
		}
		sent.Wait()
		old.signal(t, syscall.SIGCONT)
		reads.Wait()
	}
}
