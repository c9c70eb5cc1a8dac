package webhook_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	caller   = testplane.Caller
	stranger = testplane.Stranger
)

// clock is a clock that a test moves. It starts later than any time that the store records.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// rig is a cluster whose leader sends webhooks.
type rig struct {
	*testcluster.Cluster
	t     *testing.T
	clock *clock
	of    map[*testcluster.Replica]*webhook.Webhooks
}

// newRig returns a rig with some replicas. Its endpoints may be on this machine.
func newRig(t *testing.T, replicas int, cfg webhook.Config) *rig {
	t.Helper()
	cfg.AllowPrivate = true
	return newRigOf(t, replicas, cfg)
}

func newRigOf(t *testing.T, replicas int, cfg webhook.Config) *rig {
	t.Helper()
	r := &rig{Cluster: testcluster.New(t, replicas), t: t, clock: &clock{now: time.Now().Add(time.Hour)}, of: map[*testcluster.Replica]*webhook.Webhooks{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for _, rep := range r.Replicas {
		w := webhook.New(core.New(core.Core{Store: rep.Store, Sealer: testplane.Sealer{}, Clock: r.clock.Now, Logger: testcluster.Log()}), cfg)
		all := loops.New(loops.Config{Store: rep.Store, Clock: r.clock.Now, Logger: testcluster.Log(), Every: 20 * time.Millisecond})
		all.Register(w.Loops)
		r.of[rep] = w
		wg.Go(func() { loops.WhileLeading(ctx, rep.Store.Leadership(), all.Run) })
	}
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "other"}})
		return nil
	})
	return r
}

// webhooks returns the use cases of the leader.
func (r *rig) webhooks() *webhook.Webhooks {
	r.t.Helper()
	return r.of[r.Leader()]
}

// register creates an endpoint in the caller's workspace.
func (r *rig) register(url string, events ...api.WebhookEventType) api.NewWebhookEndpoint {
	r.t.Helper()
	e, err := r.webhooks().Create(r.t.Context(), caller, api.CreateWebhookEndpoint{URL: url, Events: events}, core.Idempotency{})
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

// test sends a test event to one endpoint.
func (r *rig) test(id string) api.WebhookDelivery {
	r.t.Helper()
	d, err := r.webhooks().Test(r.t.Context(), caller, id)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// enqueue makes an event happen in a workspace.
func (r *rig) enqueue(workspace string, t api.WebhookEventType, data any) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error { return webhook.Enqueue(tx, workspace, t, data) })
}

// deliveries returns the deliveries of an endpoint, newest first.
func (r *rig) deliveries(id string) []api.WebhookDelivery {
	r.t.Helper()
	var out []api.WebhookDelivery
	testcluster.Await(r.t, "an answer", func() bool {
		var err error
		out, _, err = r.webhooks().Deliveries(r.t.Context(), caller, id, core.ListOptions{Limit: core.MaxLimit})
		return err == nil
	})
	return out
}

// becomes waits until the latest delivery of an endpoint has a status after a number of
// attempts.
func (r *rig) becomes(id string, status api.WebhookStatus, attempts int) api.WebhookDelivery {
	r.t.Helper()
	var d api.WebhookDelivery
	testcluster.Await(r.t, "delivery that is "+string(status), func() bool {
		all := r.deliveries(id)
		if len(all) == 0 {
			return false
		}
		d = all[0]
		return d.Status == status && len(d.Attempts) == attempts && d.Attempts[attempts-1].DurationMS != nil // none is under way
	})
	return d
}

// request is a request that a receiver got.
type request struct {
	header http.Header
	body   []byte
}

// receiver is an endpoint that records its requests and answers as told.
type receiver struct {
	URL string

	mu     sync.Mutex
	got    []request
	answer http.HandlerFunc // nil: 204
}

func newReceiver(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.URL = server.URL
	return r
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	r.got = append(r.got, request{header: req.Header.Clone(), body: body})
	answer := r.answer
	r.mu.Unlock()
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, req)
}

func (r *receiver) say(answer http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]request(nil), r.got...)
}

// times returns how often each delivery arrived.
func (r *receiver) times() map[string]int {
	out := map[string]int{}
	for _, q := range r.requests() {
		out[q.header.Get(api.HeaderWebhookDelivery)]++
	}
	return out
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}
