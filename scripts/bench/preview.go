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

	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const (
	previewPort   = 8099
	previewConns  = 8
	previewWarmUp = 3 // rounds that do not count
	previewRounds = 8
	previewTime   = 3 * time.Second // of one way in one round
)

// serve is what this program does in the guest: it answers every request with
// the same page of 1 KiB.
func serve(address string) error {
	page := []byte(strings.Repeat("x", 1<<10))
	server := &http.Server{
		Addr:              address,
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = w.Write(page)
		}),
	}
	return server.ListenAndServe()
}

// measurePreview asks one server in a guest by its preview URL and, from the
// host's side of its slot, directly, in turns.
func measurePreview(ctx context.Context, b *bench) error {
	sandbox, err := b.create(ctx, plainHost)
	if err != nil {
		return err
	}
	if err := startServer(ctx, b, sandbox.ID); err != nil {
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
	url := fmt.Sprintf("http://%d-%s.preview.localhost", previewPort, sandbox.ID)
	direct := newLoad(url, func(ctx context.Context) (net.Conn, error) { return fabric.Dial(ctx, box.Slot, previewPort) })
	preview := newLoad(url, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", replica)
	})
	defer direct.close()
	defer preview.close()
	err = stack.Await(ctx, time.Minute, 100*time.Millisecond, "the server in the guest answers", func(ctx context.Context) error {
		return errors.Join(direct.get(ctx), preview.get(ctx))
	})
	if err != nil {
		return err
	}
	progress("requests by the preview and directly, in turns")
	for round := range previewWarmUp + previewRounds {
		for _, l := range []*load{direct, preview} {
			if err := l.run(ctx, previewTime, round >= previewWarmUp); err != nil {
				return err
			}
		}
	}
	// Of each round, which saw one machine: its speed changes from one to the next.
	shares := make([]float64, previewRounds)
	for i := range shares {
		shares[i] = 100 * preview.rates[i] / direct.rates[i]
	}
	slices.Sort(shares)
	share := (shares[previewRounds/2-1] + shares[previewRounds/2]) / 2
	progress("the rounds' shares are %.0f to %.0f %%", shares[0], shares[previewRounds-1])
	b.r.add("direct_requests", direct.rate(), "1/s")
	b.r.add("direct_p99", ms(quantile(direct.took, 0.99)), "ms")
	b.r.add("preview_requests", preview.rate(), "1/s")
	b.r.add("preview_p99", ms(quantile(preview.took, 0.99)), "ms")
	b.r.want("preview_share_of_direct", share, "%", atLeast, 70)
	return b.c.DeleteSandbox(ctx, sandbox.ID)
}

// startServer puts this program into the guest and has it serve.
func startServer(ctx context.Context, b *bench, id string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	st, err := self.Stat()
	if err != nil {
		return err
	}
	if _, err := b.c.WriteFile(ctx, id, "/root/serve", "0755", self, st.Size()); err != nil {
		return err
	}
	_, err = b.exec(ctx, id, fmt.Sprintf("setsid /root/serve -serve :%d </dev/null >/dev/null 2>&1 &", previewPort))
	return err
}

// load is one way to the server, over connections that stay open.
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
