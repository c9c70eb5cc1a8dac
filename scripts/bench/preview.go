package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const (
	previewConns  = 8
	previewTime   = 500 * time.Millisecond // of one path in one round
	previewWarmUp = 8                      // rounds that do not count
	previewRounds = 40
)

// previewServer is a program in the guest that answers with a page of 1 KiB. The
// less it does for a request, the more the path to it weighs.
type previewServer struct {
	name, prefix string // of its results
	port         int
	command      string
}

var previewServers = []previewServer{
	// What previews are for: a program in an interpreter.
	{name: "Node.js", port: 8098, command: `node -e "` +
		`const page = 'x'.repeat(1024);` +
		`require('http').createServer((q, r) => { r.setHeader('Content-Type', 'text/plain'); r.end(page) }).listen(8098, '0.0.0.0')"`},
	// The least that a server can do: this program.
	{name: "a Go program", prefix: "lean_", port: 8099, command: "/root/serve -serve :8099"},
}

// serve is what this program does in the guest: it answers every request with
// the same page of 1 KiB.
func serve(address string) error {
	page := []byte(strings.Repeat("x", 1<<10))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	started, err := sinceStart()
	if err != nil {
		return err
	}
	after := strconv.FormatInt(started.Microseconds(), 10)
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set(headerStarted, after)
			_, _ = w.Write(page)
		}),
	}
	return server.Serve(listener)
}

// sinceStart is how long this process has run.
func sinceStart() (time.Duration, error) {
	self, err := procfs.Self()
	if err != nil {
		return 0, err
	}
	stat, err := self.Stat()
	if err != nil {
		return 0, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, err
	}
	return time.Duration(now.Nano()) - time.Duration(stat.Starttime)*time.Second/clockTicks, nil
}

// clockTicks is the unit of a process's start time, in ticks a second.
const clockTicks = 100

// measurePreview asks servers in a guest by their preview URLs and, from the
// host's side of its slot, directly, in turns.
func measurePreview(ctx context.Context, b *bench) error {
	sandbox, err := b.create(ctx, plainHost)
	if err != nil {
		return err
	}
	if err := uploadSelf(ctx, b, sandbox.ID); err != nil {
		return fmt.Errorf("preview: %w", err)
	}
	box, err := b.box(ctx, sandbox)
	if err != nil {
		return err
	}
	fabric, err := slotsOf(sandbox.AgentID)
	if err != nil {
		return err
	}
	defer fabric.Close()
	replica := strings.TrimPrefix(b.s.URLs[0], "http://")
	for _, server := range previewServers {
		url := fmt.Sprintf("http://%d-%s.preview.localhost", server.port, sandbox.ID)
		direct := newLoad(url, func(ctx context.Context) (net.Conn, error) { return fabric.Dial(ctx, box.Slot, server.port) })
		preview := newLoad(url, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", replica)
		})
		if err := server.measure(ctx, b, sandbox.ID, direct, preview); err != nil {
			return fmt.Errorf("preview of %s: %w", server.name, err)
		}
	}
	return b.c.DeleteSandbox(ctx, sandbox.ID)
}

// uploadSelf puts this program into the guest.
func uploadSelf(ctx context.Context, b *bench, id string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	st, err := self.Stat()
	if err != nil {
		return err
	}
	_, err = b.c.WriteFile(ctx, id, "/root/serve", "0755", self, st.Size())
	return err
}

func (s *previewServer) measure(ctx context.Context, b *bench, id string, direct, preview *load) error {
	defer direct.close()
	defer preview.close()
	if _, err := b.exec(ctx, id, "setsid "+s.command+" </dev/null >/dev/null 2>&1 & echo $! >/run/served"); err != nil {
		return err
	}
	err := stack.Await(ctx, time.Minute, 100*time.Millisecond, "the server in the guest answers", func(ctx context.Context) error {
		return errors.Join(direct.get(ctx), preview.get(ctx))
	})
	if err != nil {
		return err
	}
	progress("requests to %s by the preview and directly, in turns", s.name)
	for round := range previewWarmUp + previewRounds {
		// The speed of the machine drifts: short turns that alternate in order give
		// both paths the same machine.
		turns := []*load{direct, preview}
		if round%2 == 1 {
			slices.Reverse(turns)
		}
		for _, l := range turns {
			if err := l.run(ctx, previewTime, round >= previewWarmUp); err != nil {
				return err
			}
		}
	}
	b.r.add(s.prefix+"direct_requests", direct.rate(), "1/s")
	b.r.add(s.prefix+"direct_p99", ms(quantile(direct.took, 0.99)), "ms")
	b.r.add(s.prefix+"preview_requests", preview.rate(), "1/s")
	b.r.add(s.prefix+"preview_p99", ms(quantile(preview.took, 0.99)), "ms")
	b.r.want(s.prefix+"preview_share_of_direct", 100*preview.rate()/direct.rate(), "%", atLeast, 70)
	_, err = b.exec(ctx, id, "kill $(cat /run/served)")
	return err
}

// load is one path to the server, over connections that stay open.
type load struct {
	url    string
	client *http.Client

	mu    sync.Mutex
	took  []time.Duration
	rates []float64 // of each round, in requests a second
}

func newLoad(url string, dial func(context.Context) (net.Conn, error)) *load {
	return &load{url: url, client: &http.Client{Transport: &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConnsPerHost: previewConns,
		MaxConnsPerHost:     previewConns,
	}}}
}

func (l *load) close() { l.client.CloseIdleConnections() }

// rate is the mean of the rounds'.
func (l *load) rate() float64 {
	sum := 0.0
	for _, r := range l.rates {
		sum += r
	}
	return sum / float64(len(l.rates))
}

func (l *load) get(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url, nil)
	if err != nil {
		return err
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New("status " + strconv.Itoa(resp.StatusCode))
	}
	return nil
}

// run makes requests for a while, one after the other on each connection. A
// round that does not count warms both sides.
func (l *load) run(ctx context.Context, d time.Duration, counts bool) error {
	errs := make([]error, previewConns)
	before := len(l.took)
	began := time.Now()
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() {
			var mine []time.Duration
			for time.Since(began) < d && errs[i] == nil {
				sent := time.Now()
				errs[i] = l.get(ctx)
				mine = append(mine, time.Since(sent))
			}
			if counts {
				l.mu.Lock()
				l.took = append(l.took, mine...)
				l.mu.Unlock()
			}
		})
	}
	group.Wait()
	if counts {
		l.rates = append(l.rates, float64(len(l.took)-before)/time.Since(began).Seconds())
	}
	return errors.Join(errs...)
}
