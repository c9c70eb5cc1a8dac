package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berth-cloud/berth/guest/agent"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/identity"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/internal/testca"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/tier"
)

// live is a host whose kernel is in memory and whose guest is this machine: the
// agent that runs in guests, its files and its processes are real.
type live struct {
	*hostapi.Client
	host   *box.Host
	world  *boxtest.World
	server *Server
	slots  *liveSlots
	stop   func() error // ends the server
}

// liveSlots reach the machine itself once a guest has become it.
type liveSlots struct {
	box.Slots
	agent  atomic.Pointer[string]
	inside atomic.Bool // the guest's servers listen on loopback alone
}

func (s *liveSlots) Dial(ctx context.Context, n, port int) (net.Conn, error) {
	addr := s.agent.Load()
	if addr == nil {
		return s.Slots.Dial(ctx, n, port)
	}
	target := *addr
	if port != guestapi.Port {
		if s.inside.Load() {
			return nil, syscall.ECONNREFUSED
		}
		target = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	return new(net.Dialer).DialContext(ctx, "tcp", target)
}

type sameGuest struct{}

func (sameGuest) Apply(id *guestapi.Identity, _ time.Time, _ netip.AddrPort) (guestapi.IdentityConfirmation, error) {
	return guestapi.IdentityConfirmation{Generation: id.Generation, EntropyBits: 8 * len(id.Entropy)}, nil
}
func (sameGuest) Last() (identity.Last, error) { return identity.Last{}, nil }

func startAgent(t *testing.T) string {
	a, err := agent.New(agent.Config{
		Version: "test", Listen: netip.MustParseAddrPort("127.0.0.1:0"), Guest: sameGuest{}, Outputs: t.TempDir(), Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- a.Serve() }()
	t.Cleanup(func() { must(t, a.Close()); must(t, <-served) })
	return a.Addr().String()
}

func goLive(t *testing.T, change ...func(*Config)) *live {
	t.Helper()
	w := boxtest.NewWorld(t)
	book, err := ledger.Open(w.Paths.Ledger(), "h1")
	must(t, err)
	deps := w.Deps(book)
	slots := &liveSlots{Slots: deps.Slots}
	deps.Slots = slots
	l := &live{host: box.New(w.Config(), deps), world: w, slots: slots}
	l.host.Open()
	_, err = l.host.Put(t.Context(), id, hostapi.BoxSpec{Generation: 1, WorkspaceID: "ws", Template: "base"})
	must(t, err)
	addr := startAgent(t)
	slots.agent.Store(&addr)

	ca := testca.New(t)
	cfg := Config{
		Boxes: l.host, Guests: l.host.Guests(), Captures: l.host.Captures(),
		Info: func() hostapi.Heartbeat { return hostapi.Heartbeat{} }, ObserveTerm: func(string, uint64) error { return nil },
		Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler), Certificate: ca.Issue(t, "host:h1"), CA: ca.Pool,
	}
	for _, c := range change {
		c(&cfg)
	}
	l.server = New(cfg)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- l.server.Serve(lis) }()
	l.Client = hostapi.NewClient(lis.Addr().String(), hostapi.PeerTLS(ca.Issue(t, "replica:r1"), ca.Pool, hostapi.IsHost("h1"))).Bind(leader)
	stopped := false
	l.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return errors.Join(l.server.Shutdown(ctx), <-served)
	}
	t.Cleanup(func() {
		must(t, l.stop())
		l.Close()
		l.host.Close()
		must(t, book.Close())
	})
	return l
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

func (l *live) stream(t *testing.T, req hostapi.ExecStream) *hostapi.Stream {
	t.Helper()
	s, err := l.ExecStream(t.Context(), id, req)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func frame(t *testing.T, s *hostapi.Stream, kind guestapi.FrameType, payload string) {
	t.Helper()
	must(t, guestapi.WriteFrame(s, kind, []byte(payload)))
}

// output reads frames to the exit, or until stdout ends with until.
func output(t *testing.T, s *hostapi.Stream, until string) (stdout string, exit *guestapi.ExecExit) {
	t.Helper()
	for {
		kind, payload, err := guestapi.ReadFrame(s, nil)
		must(t, err)
		switch kind {
		case guestapi.FrameStdout:
			if stdout += string(payload); until != "" && strings.HasSuffix(stdout, until) {
				return stdout, nil
			}
		case guestapi.FrameExit:
			exit = &guestapi.ExecExit{}
			must(t, json.Unmarshal(payload, exit))
			return stdout, exit
		default:
			t.Fatalf("frame %d: %s", kind, payload)
		}
	}
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func TestFramesGoBothWays(t *testing.T) {
	l := goLive(t)
	s := l.stream(t, hostapi.ExecStream{Argv: sh("cat; exit 3"), OpenStdin: true})
	frame(t, s, guestapi.FrameStdin, "hello\n")
	if out, _ := output(t, s, "\n"); out != "hello\n" {
		t.Errorf("stdout = %q", out)
	}
	frame(t, s, guestapi.FrameEOF, "")
	if out, exit := output(t, s, ""); out != "" || exit == nil || exit.ExitCode != 3 {
		t.Errorf("stdout = %q, exit %+v", out, exit)
	}
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the exit: %v, want io.EOF", err)
	}

	s = l.stream(t, hostapi.ExecStream{Argv: sh("trap 'echo caught; exit 0' INT; echo ready; while :; do sleep 0.01; done")})
	output(t, s, "ready\n")
	frame(t, s, guestapi.FrameSignal, "INT")
	if out, exit := output(t, s, ""); out != "caught\n" || exit.ExitCode != 0 {
		t.Errorf("after a signal: %q, %+v", out, exit)
	}
}

func TestLongInputIsWhole(t *testing.T) {
	l := goLive(t)
	stdin := make([]byte, 3<<20+17)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(stdin)
	sum := sha256.Sum256(append(append([]byte{}, stdin...), "more"...))
	s := l.stream(t, hostapi.ExecStream{Argv: sh("sha256sum"), Stdin: stdin, OpenStdin: true})
	frame(t, s, guestapi.FrameStdin, "more")
	frame(t, s, guestapi.FrameEOF, "")
	if out, _ := output(t, s, ""); !strings.HasPrefix(out, hex.EncodeToString(sum[:])) {
		t.Errorf("sum = %s", out)
	}
	sum = sha256.Sum256(stdin)
	s = l.stream(t, hostapi.ExecStream{Argv: sh("sha256sum"), Stdin: stdin})
	if out, _ := output(t, s, ""); !strings.HasPrefix(out, hex.EncodeToString(sum[:])) {
		t.Errorf("sum without more = %s", out)
	}
}

func TestAProcessThatCannotStartSaysSo(t *testing.T) {
	l := goLive(t)
	s := l.stream(t, hostapi.ExecStream{Argv: []string{"/no/such/program"}, MustStart: true})
	kind, payload, err := guestapi.ReadFrame(s, nil)
	must(t, err)
	var e guestapi.Error
	must(t, json.Unmarshal(payload, &e))
	if kind != guestapi.FrameError || e.Code != guestapi.CodeNoProgram {
		t.Errorf("frame %d: %+v", kind, e)
	}
	for name, req := range map[string]hostapi.ExecStream{
		"no argv": {}, "NUL": {Argv: []string{"a\x00"}}, "a negative time-out": {Argv: []string{"x"}, Timeout: -1},
		"a user that is not there": {Argv: []string{"true"}, User: "nobody-of-this-name"},
	} {
		if s, err := l.ExecStream(t.Context(), id, req); err == nil {
			if kind, _, err := guestapi.ReadFrame(s, nil); err != nil || kind != guestapi.FrameError {
				t.Errorf("%s: frame %d, %v", name, kind, err)
			}
			must(t, s.Close())
		} else if !hostapi.HasCode(err, hostapi.CodeInvalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	for code, req := range map[hostapi.Code]hostapi.ExecRequest{
		hostapi.CodeInvalid:     {Argv: []string{"a\x00"}},
		hostapi.CodeInvalidUser: {Argv: sh("true"), User: "nobody-of-this-name"},
		hostapi.CodeInvalidCwd:  {Argv: sh("true"), Cwd: "/no/such/dir"},
	} {
		req.Timeout = time.Minute
		var e *hostapi.Error
		if _, err := l.Exec(t.Context(), id, req); !errors.As(err, &e) || e.Code != code || e.HTTPStatus != http.StatusBadRequest || e.Message != "invalid request" {
			t.Errorf("exec = %#v, want %s", err, code)
		}
	}
	if _, err := l.ExecStream(t.Context(), strings.Repeat("z", 26), hostapi.ExecStream{Argv: sh("true")}); !hostapi.HasCode(err, hostapi.CodeNotFound) {
		t.Errorf("a stranger's stream = %v, want not_found", err)
	}
}

// A reader that stops makes the process stop, with no more on the way than the
// buffers of the sockets and pipes between them.
func TestASlowReaderSlowsTheProcess(t *testing.T) {
	l := goLive(t)
	progress := filepath.Join(t.TempDir(), "progress")
	s := l.stream(t, hostapi.ExecStream{Argv: sh("echo $$ > " + progress + ".pid; i=0; while :; do head -c 1048576 /dev/zero; i=$((i+1)); echo $i > " + progress + "; done")})
	written := func() int {
		raw, _ := os.ReadFile(progress)
		n, _ := strconv.Atoi(strings.TrimSpace(string(raw)))
		return n
	}
	last, since := -1, time.Now()
	await(t, "the process to stop", func() bool {
		if n := written(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 700*time.Millisecond
	})
	if last > 40 {
		t.Errorf("%d MiB were taken of a process whose output nobody reads", last)
	}
	go func() { _, _ = io.Copy(io.Discard, s) }()
	await(t, "the process to go on", func() bool { return written() > last+50 })
	pid, err := os.ReadFile(progress + ".pid")
	must(t, err)
	must(t, s.Close())
	await(t, "the end of the process", func() bool { return !alive(string(pid)) }) // it writes into what is removed next
}

// alive reports whether a process runs.
func alive(pid string) bool {
	n, _ := strconv.Atoi(strings.TrimSpace(pid))
	raw, err := os.ReadFile("/proc/" + strings.TrimSpace(pid) + "/stat")
	return n > 0 && syscall.Kill(n, 0) == nil && err == nil && !strings.Contains(string(raw), ") Z ")
}

func TestAGoneCallerEndsTheProcessGroup(t *testing.T) {
	for name, end := range map[string]func(*hostapi.Stream, context.CancelFunc){
		"closed":              func(s *hostapi.Stream, _ context.CancelFunc) { _ = s.Close() },
		"its half is closed":  func(s *hostapi.Stream, _ context.CancelFunc) { _ = s.CloseWrite() },
		"its context ended":   func(_ *hostapi.Stream, cancel context.CancelFunc) { cancel() },
		"its connection died": func(s *hostapi.Stream, _ context.CancelFunc) { _ = s.NetConn().Close() },
	} {
		t.Run(name, func(t *testing.T) {
			l := goLive(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, err := l.ExecStream(ctx, id, hostapi.ExecStream{Argv: sh("sleep 1000 & echo $!; wait")})
			must(t, err)
			defer s.Close()
			pid, _ := output(t, s, "\n")
			if !alive(pid) {
				t.Fatalf("process %s does not run", pid)
			}
			end(s, cancel)
			await(t, "the end of the process", func() bool { return !alive(pid) })
		})
	}
}

func TestACallerIsMissedWhileNobodyTakesItsInput(t *testing.T) {
	l := goLive(t)
	s := l.stream(t, hostapi.ExecStream{Argv: sh("echo $$; exec sleep 1000"), OpenStdin: true})
	pid, _ := output(t, s, "\n")
	stuck := make(chan struct{})
	go func() {
		defer close(stuck)
		for guestapi.WriteFrame(s, guestapi.FrameStdin, make([]byte, 64<<10)) == nil {
		}
	}()
	must(t, s.Close())
	<-stuck
	await(t, "the end of the process", func() bool { return !alive(pid) })
}

func TestStreamsCountAsCommands(t *testing.T) {
	l := goLive(t)
	var open []*hostapi.Stream
	for range 4 {
		open = append(open, l.stream(t, hostapi.ExecStream{Argv: sh("echo x; exec sleep 1000")}))
	}
	if _, err := l.ExecStream(t.Context(), id, hostapi.ExecStream{Argv: sh("true")}); !hostapi.HasCode(err, hostapi.CodeBusy) {
		t.Errorf("the fifth = %v, want busy", err)
	}
	if _, err := l.Exec(t.Context(), id, hostapi.ExecRequest{Argv: sh("true"), Timeout: time.Minute}); !hostapi.HasCode(err, hostapi.CodeBusy) {
		t.Errorf("an exec beside four streams = %v, want busy", err)
	}
	must(t, open[0].Close())
	await(t, "room for one more", func() bool {
		s, err := l.ExecStream(t.Context(), id, hostapi.ExecStream{Argv: sh("true")})
		if err == nil {
			_, _ = output(t, s, "")
			must(t, s.Close())
		}
		return err == nil
	})
}

// cut asserts that a stream ends, and not as if the guest had ended it.
func cut(t *testing.T, s *hostapi.Stream) {
	t.Helper()
	if _, err := io.Copy(io.Discard, s); err == nil {
		t.Error("the stream ended in order")
	}
}

func TestWhatEndsStreams(t *testing.T) {
	tier.Slow(t)
	for name, end := range map[string]func(*testing.T, *live){
		"the VMM's death": func(_ *testing.T, l *live) { l.world.VMM(id).Die(syscall.SIGKILL) },
		"a delete":        func(t *testing.T, l *live) { must(t, l.DeleteBox(t.Context(), id, 1)) },
		"a hibernate": func(t *testing.T, l *live) {
			_, err := l.Hibernate(t.Context(), id)
			must(t, err)
			if _, err := l.ExecStream(t.Context(), id, hostapi.ExecStream{Argv: sh("true")}); !hostapi.HasCode(err, hostapi.CodeNotRunning) {
				t.Errorf("stream into a hibernated box = %v, want not_running", err)
			}
		},
		"the daemon's end": func(t *testing.T, l *live) {
			if err := l.stop(); err == nil || !strings.Contains(err.Error(), "1 streams were cut off") {
				t.Errorf("stop = %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := goLive(t)
			s := l.stream(t, hostapi.ExecStream{Argv: sh("echo ready; exec sleep 1000")})
			output(t, s, "ready\n")
			end(t, l)
			cut(t, s)
		})
	}
}

func TestAPauseStallsStreamsAndRefusesNewOnes(t *testing.T) {
	l := goLive(t)
	s := l.stream(t, hostapi.ExecStream{Argv: sh("cat"), OpenStdin: true})
	_, err := l.Pause(t.Context(), id)
	must(t, err)
	if _, err := l.ExecStream(t.Context(), id, hostapi.ExecStream{Argv: sh("true")}); !hostapi.HasCode(err, hostapi.CodeNotRunning) {
		t.Errorf("stream into a paused box = %v, want not_running", err)
	}
	_, err = l.Resume(t.Context(), id)
	must(t, err)
	frame(t, s, guestapi.FrameStdin, "still here\n")
	if out, _ := output(t, s, "\n"); out != "still here\n" {
		t.Errorf("after the resume: %q", out)
	}
}

// guestPort is a TCP server in the guest.
func guestPort(t *testing.T, serve func(*net.TCPConn)) int {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			serve(conn.(*net.TCPConn))
			conn.Close()
		}
	}()
	t.Cleanup(func() { lis.Close(); <-ended })
	return lis.Addr().(*net.TCPAddr).Port
}

func TestPortsAreReachedAndEachHalfClosesByItself(t *testing.T) {
	for name, inside := range map[string]bool{"everywhere": false, "on loopback alone": true} {
		t.Run("servers that listen "+name, func(t *testing.T) {
			l := goLive(t)
			l.slots.inside.Store(inside)
			portsAreReached(t, l)
		})
	}
}

func portsAreReached(t *testing.T, l *live) {
	sent := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(sent)
	t.Run("the caller says its all first", func(t *testing.T) {
		port := guestPort(t, func(c *net.TCPConn) {
			raw, _ := io.ReadAll(c) // ends with the caller's half
			_, _ = c.Write(raw)
		})
		s, err := l.Dial(t.Context(), id, port)
		must(t, err)
		defer s.Close()
		_, err = s.Write(sent)
		must(t, err)
		must(t, s.CloseWrite())
		got, err := io.ReadAll(s)
		if err != nil || string(got) != string(sent) {
			t.Errorf("%d bytes came back, %v", len(got), err)
		}
	})
	t.Run("the guest says its all first", func(t *testing.T) {
		heard := make(chan int, 1)
		port := guestPort(t, func(c *net.TCPConn) {
			_, _ = c.Write(sent)
			_ = c.CloseWrite()
			n, _ := io.Copy(io.Discard, c)
			heard <- int(n)
		})
		s, err := l.Dial(t.Context(), id, port)
		must(t, err)
		defer s.Close()
		got, err := io.ReadAll(s)
		if err != nil || string(got) != string(sent) {
			t.Errorf("%d bytes came, %v", len(got), err)
		}
		_, err = s.Write(sent[:1000])
		must(t, err)
		must(t, s.CloseWrite())
		if n := <-heard; n != 1000 {
			t.Errorf("the guest heard %d bytes, want 1000", n)
		}
	})
	t.Run("the guest resets", func(t *testing.T) {
		port := guestPort(t, func(c *net.TCPConn) { _ = c.SetLinger(0) })
		s, err := l.Dial(t.Context(), id, port)
		if hostapi.HasCode(err, hostapi.CodePortClosed) {
			return // the reset came before the connection was up
		}
		must(t, err)
		defer s.Close()
		cut(t, s)
	})
	for port, want := range map[int]hostapi.Code{
		guestPortThatIsClosed(t): hostapi.CodePortClosed, guestapi.Port: hostapi.CodePortClosed,
		0: hostapi.CodeInvalid, 70000: hostapi.CodeInvalid, -1: hostapi.CodeInvalid,
	} {
		if _, err := l.Dial(t.Context(), id, port); !hostapi.HasCode(err, want) {
			t.Errorf("port %d: %v, want %s", port, err, want)
		}
	}
}

// A connection to a guest may stay for days. Its span ends when it is made.
func TestTheSpanOfAConnectionEndsWhenItIsMade(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	telemetry.Use(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	defer telemetry.Use(nil)
	l := goLive(t)
	port := guestPort(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		_, _ = io.ReadAll(c)
	})
	ctx, login := telemetry.Serve(t.Context(), nil, "login")
	s, err := l.Dial(ctx, id, port)
	must(t, err)
	defer s.Close()
	_, err = io.ReadFull(s, make([]byte, 1))
	must(t, err)
	login.End(nil)
	var names []string
	for _, s := range spans.Ended() {
		names = append(names, s.Name()+" "+s.Status().Code.String())
	}
	if got := strings.Join(names, ", "); got != "GET /v1/boxes/{id}/dial/{port} Unset, host GET /v1/boxes/{id}/dial/{id} Unset, login Unset" {
		t.Errorf("ended are %s", got)
	}
}

func guestPortThatIsClosed(t *testing.T) int {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer lis.Close()
	return lis.Addr().(*net.TCPAddr).Port
}
