package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// tenants are the workspaces whose requests make the load.
type tenants struct {
	o       options
	clients []*api.Client // one a workspace

	mu  sync.Mutex
	ids [][]string // sandboxes, by workspace
}

func newTenants(ctx context.Context, o options, c *cell) (*tenants, error) {
	admin, err := api.NewClient(nil, c.admin, c.urls()...)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	t := &tenants{o: o, clients: make([]*api.Client, o.workspaces), ids: make([][]string, o.workspaces)}
	hc := &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, MaxIdleConnsPerHost: 2 * o.clients, IdleConnTimeout: 90 * time.Second,
	}}
	return t, inParallel(8, o.workspaces, func(i int) error {
		w, err := patiently(ctx, func() (*api.Workspace, error) {
			return admin.CreateWorkspace(ctx, api.CreateWorkspace{Name: fmt.Sprintf("simulated %d", i)})
		})
		if err != nil {
			return fmt.Errorf("make a workspace: %w", err)
		}
		token, err := patiently(ctx, func() (*api.NewToken, error) {
			return admin.CreateWorkspaceToken(ctx, w.ID, api.CreateToken{Name: "simulate"})
		})
		if err != nil {
			return fmt.Errorf("make a token: %w", err)
		}
		// A third of the workspaces asks each replica first.
		urls := c.urls()
		t.clients[i], err = api.NewClient(hc, token.Key, slices.Concat(urls[i%replicas:], urls[:i%replicas])...)
		return err
	})
}

// patiently does something again for as long as the control plane has no leader: all hosts
// join meanwhile. One workspace more does no harm.
func patiently[T any](ctx context.Context, do func() (T, error)) (out T, err error) {
	for range 60 {
		if out, err = do(); api.StatusOf(err) != http.StatusServiceUnavailable || !pause(ctx, time.Second) {
			return out, err
		}
	}
	return out, err
}

// recorder collects how long calls of one kind took.
type recorder struct {
	mu     sync.Mutex
	took   []time.Duration
	failed map[string]int
}

func (r *recorder) call(do func() error) bool {
	begin := time.Now()
	err := do()
	return r.add(time.Since(begin), err)
}

func (r *recorder) add(took time.Duration, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if r.failed == nil {
			r.failed = map[string]int{}
		}
		text := err.Error()
		r.failed[text[:min(len(text), 120)]]++
		return false
	}
	r.took = append(r.took, took)
	return true
}

// quantile of the calls that succeeded.
func (r *recorder) quantile(q float64) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(r.took))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (r *recorder) count() (ok, failed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.failed {
		failed += n
	}
	return len(r.took), failed
}

func (t *tenants) create(ctx context.Context, w, n int, r *recorder) bool {
	return r.call(func() error {
		sb, err := t.clients[w].CreateSandbox(ctx, api.CreateSandbox{Template: templateName(n % t.o.templates)}, fmt.Sprintf("simulated-%d-%d", w, n))
		if err == nil {
			t.mu.Lock()
			t.ids[w] = append(t.ids[w], sb.ID)
			t.mu.Unlock()
		}
		return err
	})
}

// some returns one of a workspace's sandboxes.
func (t *tenants) some(w int, rnd *rand.Rand, take bool) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := t.ids[w]
	if len(ids) == 0 {
		return "", false
	}
	i := rnd.IntN(len(ids))
	id := ids[i]
	if take {
		ids[i] = ids[len(ids)-1]
		t.ids[w] = ids[:len(ids)-1]
	}
	return id, true
}

// fill creates sandboxes until there are as many as are asked for. It reports the
// progress.
func (t *tenants) fill(ctx context.Context, r *recorder) error {
	var done atomic.Int64
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for last := int64(0); ; {
			select {
			case <-tick.C:
				now := done.Load()
				say("%d sandboxes, %d a second", now, (now-last)/10)
				last = now
			case <-stop:
				return
			}
		}
	})
	err := inParallel(t.o.clients, t.o.sandboxes, func(i int) error {
		for try := 0; !t.create(ctx, i%t.o.workspaces, i, r); try++ {
			if try == 20 || !pause(ctx, 500*time.Millisecond) {
				return fmt.Errorf("sandbox %d cannot be created: %v", i, r.failed)
			}
		}
		done.Add(1)
		return nil
	})
	close(stop)
	watch.Wait()
	return err
}

// mix is what is measured while the filled cell works.
type mix struct{ create, get, list, remove recorder }

// work makes every kind of request for a while. There are as many sandboxes after it as
// before, nearly.
func (t *tenants) work(ctx context.Context, m *mix) {
	ctx, cancel := context.WithTimeout(ctx, t.o.work)
	defer cancel()
	var n atomic.Int64
	n.Store(int64(t.o.sandboxes))
	var all sync.WaitGroup
	for i := range t.o.clients {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(i))) //nolint:gosec // load that is the same in each run
			for w := i; ctx.Err() == nil; w++ {
				t.round(ctx, w%t.o.workspaces, int(n.Add(1)), rnd, m)
			}
		})
	}
	all.Wait()
}

// round is a create, three reads, a list every fourth time, and a delete.
func (t *tenants) round(ctx context.Context, w, n int, rnd *rand.Rand, m *mix) {
	// A call that is cut off at the end of the time counts for nothing.
	call := func(r *recorder, do func() error) {
		begin := time.Now()
		if err := do(); ctx.Err() == nil {
			r.add(time.Since(begin), err)
		}
	}
	call(&m.create, func() error {
		sb, err := t.clients[w].CreateSandbox(ctx, api.CreateSandbox{Template: templateName(rnd.IntN(t.o.templates))}, fmt.Sprintf("worked-%d", n))
		if err == nil {
			t.mu.Lock()
			t.ids[w] = append(t.ids[w], sb.ID)
			t.mu.Unlock()
		}
		return err
	})
	for range 3 {
		if id, ok := t.some(w, rnd, false); ok {
			call(&m.get, func() error {
				_, err := t.clients[w].GetSandbox(ctx, id)
				if api.StatusOf(err) == http.StatusNotFound {
					return nil // another client has deleted it meanwhile
				}
				return err
			})
		}
	}
	if n%4 == 0 {
		call(&m.list, func() error {
			_, _, err := t.clients[w].ListSandboxes(ctx, api.Page{Limit: 100})
			return err
		})
	}
	if id, ok := t.some(w, rnd, true); ok {
		call(&m.remove, func() error { return t.clients[w].DeleteSandbox(ctx, id) })
	}
}
