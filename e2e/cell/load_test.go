package cell

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/berth-cloud/berth/controlplane/api"
)

// What the clients do at once.
const (
	workspaces = 3
	clientsOf  = 3 // a workspace
	quota      = 8 // sandboxes of a workspace
	between    = 150 * time.Millisecond
	attempt    = 4 * time.Second // of one request; then another replica is asked
)

// operation is one on one sandbox, which its idempotency key names.
type operation struct {
	kind      string // "create", "get", "list" or "delete"
	found     bool   // of a get or list; of a delete: it was there
	again     bool   // an attempt before it may have done it
	key       string
	call, ret int64 // ns
}

// refusal is a create for which there was no room.
type refusal struct {
	call, ret int64
	again     bool // it was tried before; that attempt may have taken room until this answer
}

// tenant is a workspace and what its clients know.
type tenant struct {
	c     *cell
	id    string
	token string
	began time.Time

	mu       sync.Mutex
	keys     map[string]string // of sandboxes that are known, by id
	gone     []string          // ids that were deleted
	history  []operation
	refusals []refusal
	last     time.Time // a create was answered
	worst    time.Duration
	faults   []string // answers that there must not be
}

// client is one of a tenant's. It stays with a replica that answers.
type client struct {
	*tenant
	at int // of the replicas
}

// load are clients at work.
type load struct {
	tenants []*tenant
	stop    context.CancelFunc
	done    sync.WaitGroup
	calls   atomic.Int64
}

// begin has clients work until the load is ended.
func (c *cell) begin() *load {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{stop: cancel}
	for i := range workspaces {
		var ws api.Workspace
		c.operator(http.MethodPost, "/v1/admin/workspaces", api.CreateWorkspace{Name: fmt.Sprintf("w%d", i), Quotas: &api.Quotas{Sandboxes: new(quota), CreatesPerHour: new(-1)}}, http.StatusCreated, &ws)
		var token api.NewToken
		c.operator(http.MethodPost, "/v1/admin/workspaces/"+ws.ID+"/tokens", api.CreateToken{Name: "cell"}, http.StatusCreated, &token)
		t := &tenant{c: c, id: ws.ID, token: token.Key, began: time.Now(), keys: map[string]string{}, last: time.Now()}
		l.tenants = append(l.tenants, t)
		for n := range clientsOf {
			who := &client{tenant: t, at: (i + n) % len(c.replicas)}
			l.done.Go(func() {
				for ctx.Err() == nil {
					who.act(ctx)
					l.calls.Add(1)
					select {
					case <-time.After(between):
					case <-ctx.Done():
					}
				}
			})
		}
	}
	c.t.Cleanup(cancel)
	return l
}

// act does one thing at random.
func (t *client) act(ctx context.Context) {
	switch n := mathrand.IntN(10); {
	case n < 3:
		t.create(ctx)
	case n < 5:
		t.remove(ctx)
	case n < 8:
		t.get(ctx)
	default:
		t.list(ctx)
	}
}

func (w *tenant) now() int64 { return int64(time.Since(w.began)) }

func (w *tenant) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// ask makes a request of one replica after the other until one answers for good. first is
// when the first attempt began, last when the one did that was answered.
func (t *client) ask(ctx context.Context, method, path string, body any, key string) (status int, answer []byte, first, last int64, ok bool) {
	first = t.now()
	last = first
	for n := 0; ; n++ {
		if n > 0 {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				// What may have been done is asked for to the end: it is part of the history.
				if method == http.MethodGet {
					return 0, nil, first, last, false
				}
				pause(100 * time.Millisecond)
			}
			last = t.now()
		}
		status, answer, err := t.c.call(attempt, t.c.replicas[t.at], t.token, method, path, body, key)
		switch {
		case err != nil, status >= 500:
			t.at = (t.at + 1) % len(t.c.replicas)
			continue
		case status == http.StatusTooManyRequests && strings.Contains(string(answer), "rate limit"):
			continue
		case status == http.StatusConflict && strings.Contains(string(answer), "idempotency"): // the attempt before is under way
			continue
		}
		return status, answer, first, last, true
	}
}

func (t *client) create(ctx context.Context) {
	key := rand.Text()
	status, answer, first, last, ok := t.ask(ctx, http.MethodPost, "/v1/sandboxes", api.CreateSandbox{Template: templateName}, key)
	if !ok {
		return
	}
	ret := t.now()
	switch status {
	case http.StatusCreated:
		var s api.Sandbox
		if err := json.Unmarshal(answer, &s); err != nil || s.ID == "" {
			t.fault("create: %v: %s", err, answer)
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if other, double := t.keys[s.ID]; double {
			t.faults = append(t.faults, fmt.Sprintf("keys %s and %s have one sandbox", other, key))
		}
		t.keys[s.ID] = key
		t.history = append(t.history, operation{kind: "create", key: key, again: first != last, call: first, ret: ret})
		t.worst, t.last = max(t.worst, time.Since(t.last)), time.Now()
	case http.StatusTooManyRequests:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.refusals = append(t.refusals, refusal{first, ret, first != last})
		t.worst, t.last = max(t.worst, time.Since(t.last)), time.Now()
	default:
		t.fault("create: status %d: %s", status, answer)
	}
}

// some chooses a sandbox that is known, one that was deleted now and then.
func (w *tenant) some() (id, key string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, len(w.keys))
	for id := range w.keys {
		if !slices.Contains(w.gone, id) {
			ids = append(ids, id)
		}
	}
	if len(w.gone) > 0 && mathrand.IntN(5) == 0 {
		ids = w.gone[max(0, len(w.gone)-5):]
	}
	if len(ids) == 0 {
		return "", "", false
	}
	slices.Sort(ids)
	id = ids[mathrand.IntN(len(ids))]
	return id, w.keys[id], true
}

func (t *client) get(ctx context.Context) {
	id, key, ok := t.some()
	if !ok {
		return
	}
	status, answer, _, last, ok := t.ask(ctx, http.MethodGet, "/v1/sandboxes/"+id, nil, "")
	switch {
	case !ok:
	case status == http.StatusOK || status == http.StatusNotFound:
		t.note(operation{kind: "get", key: key, found: status == http.StatusOK, call: last, ret: t.now()})
	default:
		t.fault("get: status %d: %s", status, answer)
	}
}

func (w *tenant) note(o operation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, o)
}

func (t *client) list(ctx context.Context) {
	t.mu.Lock()
	before := make(map[string]string, len(t.keys)) // those of which a list may be the newest news
	for id, key := range t.keys {
		before[id] = key
	}
	t.mu.Unlock()
	status, answer, _, last, ok := t.ask(ctx, http.MethodGet, "/v1/sandboxes?limit=200", nil, "")
	if !ok {
		return
	}
	ret := t.now()
	var page []api.Sandbox
	if err := json.Unmarshal(answer, &page); err != nil || status != http.StatusOK {
		t.fault("list: status %d: %v: %s", status, err, answer)
		return
	}
	counted := 0 // what is being deleted does not count
	for _, s := range page {
		if s.Status != api.SandboxDeleting {
			counted++
		}
	}
	if counted > quota {
		t.fault("list: %d sandboxes, and %d are allowed", counted, quota)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, key := range before {
		in := slices.ContainsFunc(page, func(s api.Sandbox) bool { return s.ID == id })
		t.history = append(t.history, operation{kind: "list", key: key, found: in, call: last, ret: ret})
	}
}

func (t *client) remove(ctx context.Context) {
	id, key, ok := t.some()
	if !ok {
		return
	}
	status, answer, first, last, ok := t.ask(ctx, http.MethodDelete, "/v1/sandboxes/"+id, nil, "")
	if !ok {
		return
	}
	switch status {
	case http.StatusNoContent, http.StatusAccepted, http.StatusNotFound:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.history = append(t.history, operation{kind: "delete", key: key, found: status != http.StatusNotFound, again: first != last, call: first, ret: t.now()})
		if !slices.Contains(t.gone, id) {
			t.gone = append(t.gone, id)
		}
	default:
		t.fault("delete: status %d: %s", status, answer)
	}
}

// The life of one sandbox.
const (
	unborn = iota
	alive
	dead
)

// model is a sandbox that is created once and deleted once, and of which every answer is
// of one moment between its request and itself.
var model = porcupine.Model{
	Init: func() any { return unborn },
	Step: func(state, input, _ any) (bool, any) {
		o, _ := input.(operation)
		switch o.kind {
		case "create":
			return state == unborn, alive
		case "delete":
			// Whoever asks while it is being deleted is told the same, and whoever asks again
			// may be told that it is gone.
			return state == alive && (o.found || o.again) || state == dead, dead
		}
		return o.found == (state == alive), state
	},
	DescribeOperation: func(input, _ any) string {
		o, _ := input.(operation)
		return fmt.Sprintf("%s found=%t", o.kind, o.found)
	},
}

// end stops the clients, and checks what they were told.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.done.Wait()
	var rows []string
	for _, w := range l.tenants {
		for _, f := range w.faults {
			t.Error(f)
		}
		for _, f := range slices.Concat(w.unexplained(), w.overQuota()) {
			t.Error(f)
		}
		rows = append(rows, w.exact(t)...)
		t.Logf("%s: %d sandboxes, %d answers, %d refused; the longest time without a create that was answered: %s",
			w.id, len(w.keys), len(w.history), len(w.refusals), w.worst.Round(time.Millisecond))
	}
	// What hosts have is what there is.
	slices.Sort(rows)
	c := l.tenants[0].c
	var boxes []string
	for deadline := time.Now().Add(patience); ; pause(200 * time.Millisecond) {
		if boxes = c.boxes(); len(boxes) == len(rows) {
			break
		}
		if time.Now().After(deadline) {
			break
		}
	}
	if slices.Sort(boxes); !slices.Equal(boxes, rows) {
		t.Errorf("the hosts have %d boxes, the service %d sandboxes:\n%q\n%q", len(boxes), len(rows), boxes, rows)
	}
}

// unexplained lists the sandboxes of which the answers are not linearizable.
func (w *tenant) unexplained() (findings []string) {
	of := map[string][]porcupine.Operation{}
	for _, o := range w.history {
		of[o.key] = append(of[o.key], porcupine.Operation{Input: o, Call: o.call, Return: o.ret})
	}
	for key, ops := range of {
		if result := porcupine.CheckOperationsTimeout(model, ops, time.Minute); result != porcupine.Ok {
			var lines []string
			for _, o := range ops {
				in, _ := o.Input.(operation)
				lines = append(lines, fmt.Sprintf("%s..%s %s found=%t again=%t", time.Duration(o.Call), time.Duration(o.Return), in.kind, in.found, in.again))
			}
			findings = append(findings, fmt.Sprintf("the answers about the sandbox of key %s are not linearizable (%s):\n%s", key, result, strings.Join(lines, "\n")))
		}
	}
	return findings
}

// overQuota lists the moments at which there were more sandboxes than are allowed, and the
// creates that were refused while there was room.
func (w *tenant) overQuota() (findings []string) {
	type life struct{ call, born, leaves, gone int64 }
	const never = int64(1) << 62
	lives := map[string]*life{}
	for _, o := range w.history {
		if o.kind == "create" {
			lives[o.key] = &life{o.call, o.ret, never, never}
		}
	}
	for _, o := range w.history {
		if l := lives[o.key]; o.kind == "delete" && l != nil {
			l.leaves, l.gone = min(l.leaves, o.call), min(l.gone, o.ret)
		}
	}
	for _, l := range lives {
		sure := 0
		for _, other := range lives {
			if other.born <= l.born && l.born < other.leaves {
				sure++
			}
		}
		if sure > quota {
			findings = append(findings, fmt.Sprintf("at %s there were %d sandboxes, and %d are allowed", time.Duration(l.born), sure, quota))
		}
	}
	for i, r := range w.refusals {
		took := make([]life, 0, len(lives)+1) // what may have taken room
		for _, l := range lives {
			took = append(took, *l)
		}
		for k, other := range w.refusals {
			if k != i && other.again {
				took = append(took, life{call: other.call, gone: other.ret})
			}
		}
		most, at := 0, []int64{r.call}
		for _, l := range took {
			if l.call > r.call && l.call <= r.ret {
				at = append(at, l.call)
			}
		}
		for _, now := range at {
			possible := 0
			for _, l := range took {
				if l.call <= now && now <= l.gone {
					possible++
				}
			}
			most = max(most, possible)
		}
		if most < quota {
			findings = append(findings, fmt.Sprintf("a create was refused between %s and %s, when there were at most %d sandboxes:\n%s",
				time.Duration(r.call), time.Duration(r.ret), most, w.around(r)))
		}
	}
	return findings
}

// around lists the creates and deletes from ten seconds before a refusal until one after it.
func (w *tenant) around(r refusal) string {
	from, to := r.call-int64(10*time.Second), r.ret+int64(time.Second)
	var lines []string
	line := func(call, ret int64, what string) {
		if ret >= from && call <= to {
			lines = append(lines, fmt.Sprintf("%14s..%14s %s", time.Duration(call), time.Duration(ret), what))
		}
	}
	for _, o := range w.history {
		if o.kind == "create" || o.kind == "delete" {
			line(o.call, o.ret, fmt.Sprintf("%s %s found=%t again=%t", o.kind, o.key, o.found, o.again))
		}
	}
	for _, other := range w.refusals {
		line(other.call, other.ret, fmt.Sprintf("refused again=%t", other.again))
	}
	return strings.Join(lines, "\n")
}

// exact checks that what is free of the quota can be used, and no more, and returns the
// workspace's sandboxes.
func (w *tenant) exact(t *testing.T) (ids []string) {
	t.Helper()
	ask := (&client{tenant: w}).ask
	listed := func() []string {
		_, answer, _, _, _ := ask(t.Context(), http.MethodGet, "/v1/sandboxes?limit=200", nil, "")
		var page []api.Sandbox
		if err := json.Unmarshal(answer, &page); err != nil {
			t.Fatal(err)
		}
		out := make([]string, 0, len(page))
		for _, s := range page {
			if s.Status != api.SandboxDeleting {
				out = append(out, s.ID)
			}
		}
		return out
	}
	for free := quota - len(listed()); free >= 0; free-- {
		status, answer, _, _, _ := ask(t.Context(), http.MethodPost, "/v1/sandboxes", api.CreateSandbox{Template: templateName}, rand.Text())
		want := http.StatusCreated
		if free == 0 {
			want = http.StatusTooManyRequests
		}
		if status != want {
			t.Errorf("%s: a create with %d free of the quota: status %d: %s", w.id, free, status, answer)
		}
		if free == 0 && (!strings.Contains(string(answer), fmt.Sprintf(`"active":%d`, quota)) || !strings.Contains(string(answer), fmt.Sprintf(`"max":%d`, quota))) {
			t.Errorf("%s: the refusal is %s", w.id, answer)
		}
	}
	return listed()
}
