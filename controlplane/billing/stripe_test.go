package billing

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// standIn speaks Stripe's API as documented, as far as it is read.
type standIn struct {
	*httptest.Server
	mu            sync.Mutex
	customers     []map[string]any
	subscriptions map[string][]map[string]any // by customer, the latest first
	down          bool
	asked         []string
}

const stripeKey = "rk_test_key"

func newStandIn(t *testing.T) *standIn {
	s := &standIn{subscriptions: map[string][]map[string]any{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *standIn) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.URL.Path)
	answer := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	fail := func(status int, kind, code string) {
		answer(status, map[string]any{"error": map[string]any{"type": kind, "code": code, "message": "no"}})
	}
	list := func(data []map[string]any) {
		if data == nil {
			data = []map[string]any{}
		}
		answer(200, map[string]any{"object": "list", "data": data, "has_more": false, "url": r.URL.Path})
	}
	user, _, _ := r.BasicAuth()
	id, one := strings.CutPrefix(r.URL.Path, "/v1/customers/")
	switch {
	case s.down:
		fail(500, "api_error", "")
	case user != stripeKey:
		fail(401, "invalid_request_error", "")
	case r.Header.Get("Stripe-Version") == "", r.Method != http.MethodGet:
		fail(400, "invalid_request_error", "")
	case r.URL.Path == "/v1/customers/search":
		var found []map[string]any
		for _, c := range s.customers {
			meta, _ := c["metadata"].(map[string]any)
			ws, _ := meta["workspace_id"].(string)
			if strings.EqualFold(r.URL.Query().Get("query"), "metadata['workspace_id']:'"+ws+"'") {
				found = append(found, c)
			}
		}
		list(found)
	case r.URL.Path == "/v1/subscriptions":
		if r.URL.Query().Get("status") != "all" { // otherwise those that are canceled are left out
			fail(400, "invalid_request_error", "")
			return
		}
		list(s.subscriptions[r.URL.Query().Get("customer")])
	case one:
		for _, c := range s.customers {
			if c["id"] == id {
				answer(200, c)
				return
			}
		}
		fail(404, "invalid_request_error", "resource_missing")
	default:
		fail(404, "invalid_request_error", "")
	}
}

func (s *standIn) customer(id, workspace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.customers = append(s.customers, map[string]any{"id": id, "object": "customer", "metadata": map[string]any{"workspace_id": workspace}})
}

func (s *standIn) subscribe(customer, status, lookupKey string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscriptions[customer] = append([]map[string]any{{
		"id": "sub_1", "object": "subscription", "status": status,
		"items": map[string]any{"object": "list", "data": []any{map[string]any{"price": map[string]any{"lookup_key": lookupKey, "metadata": map[string]any{}}}}},
	}}, s.subscriptions[customer]...)
}

func (s *standIn) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func TestSyncMakesAWorkspaceWhatStripeSays(t *testing.T) {
	stripe := newStandIn(t)
	c := testcluster.New(t, 1)
	tiers, err := limits.Load("", "free")
	if err != nil {
		t.Fatal(err)
	}
	c.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, SubscriptionStatus: record.SubscriptionTrialing})
		return nil
	})
	now := time.Now()
	k := core.New(core.Core{Store: c.Leader().Store, Tiers: tiers, Clock: func() time.Time { return now }})
	b := New(k, Config{Provider: &Stripe{Key: stripeKey, URL: stripe.URL + "/"}})
	caller := core.Caller{WorkspaceID: "ws"}
	want := func(what, status, tier string) {
		t.Helper()
		now = now.Add(syncEvery)
		out, err := b.Sync(t.Context(), caller)
		if err != nil || out.SubscriptionStatus != status || out.Tier != tier {
			t.Errorf("%s: %+v, %v", what, out, err)
		}
	}
	want("nobody knows it", "trialing", "free")
	stripe.customer("cus_other", "WS")
	want("one whose id differs in case", "trialing", "free")
	stripe.customer("cus_1", "ws")
	want("without a subscription", "", "free")
	stripe.subscribe("cus_1", "incomplete", "team")
	want("never paid", "", "free")
	stripe.subscribe("cus_1", "active", "pro")
	want("active", "active", "pro")
	stripe.subscribe("cus_1", "canceled", "team")
	want("an older one is active", "active", "pro")
	stripe.set(func() { stripe.subscriptions["cus_1"] = nil })
	stripe.subscribe("cus_1", "unpaid", "pro")
	want("unpaid", "past_due", "pro")
	stripe.subscribe("cus_1", "trialing", "no such tier")
	want("trialing", "trialing", "pro")
	stripe.set(func() { stripe.asked = nil })
	want("again", "trialing", "pro")
	stripe.set(func() {
		if len(stripe.asked) != 2 || stripe.asked[0] != "/v1/customers/cus_1" {
			t.Errorf("asked %v: the customer is known", stripe.asked)
		}
		stripe.down = true
	})
	now = now.Add(syncEvery)
	_, err = b.Sync(t.Context(), caller)
	if apierror.CodeOf(err) != apierror.EBadGateway || strings.Contains(err.Error(), stripeKey) {
		t.Errorf("stripe is down: %v", err)
	}
	stripe.set(func() { stripe.down, stripe.customers = false, nil })
	want("the customer was deleted", "canceled", "pro")
	want("and is still", "canceled", "pro")

	bad := New(k, Config{Provider: &Stripe{Key: "wrong", URL: stripe.URL}})
	if _, err := bad.Sync(t.Context(), caller); apierror.CodeOf(err) != apierror.EBadGateway {
		t.Errorf("a wrong key: %v", err)
	}
	if _, err := New(k, Config{}).Sync(t.Context(), caller); apierror.CodeOf(err) != apierror.ENotImplemented {
		t.Errorf("without a provider: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Sync(ctx, caller); err == nil {
		t.Error("a caller that is gone")
	}
}

// stripeRig is a workspace ws that is made what a stand-in of Stripe says.
func stripeRig(t *testing.T) (stripe *standIn, ask func() (status, tier string)) {
	stripe = newStandIn(t)
	c := testcluster.New(t, 1)
	tiers, err := limits.Load("", "free")
	if err != nil {
		t.Fatal(err)
	}
	c.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		return nil
	})
	now := time.Now()
	b := New(core.New(core.Core{Store: c.Leader().Store, Tiers: tiers, Clock: func() time.Time { return now }}), Config{Provider: &Stripe{Key: stripeKey, URL: stripe.URL}})
	return stripe, func() (string, string) {
		t.Helper()
		now = now.Add(syncEvery)
		out, err := b.Sync(t.Context(), core.Caller{WorkspaceID: "ws"})
		if err != nil {
			t.Fatal(err)
		}
		return out.SubscriptionStatus, out.Tier
	}
}

// A checkout may make another customer of the same workspace: whoever pays, it is paid.
func TestAnyCustomerOfAWorkspaceMayPay(t *testing.T) {
	stripe, ask := stripeRig(t)
	want := func(what, status, tier string) {
		t.Helper()
		if gotStatus, gotTier := ask(); gotStatus != status || gotTier != tier {
			t.Errorf("%s: %q %q, want %q %q", what, gotStatus, gotTier, status, tier)
		}
	}
	stripe.customer("cus_old", "ws")
	stripe.subscribe("cus_old", "active", "pro")
	want("the first", "active", "pro")
	stripe.subscribe("cus_old", "canceled", "pro")
	stripe.set(func() { stripe.subscriptions["cus_old"] = stripe.subscriptions["cus_old"][:1] })
	want("it has ended", "canceled", "pro")
	stripe.customer("cus_new", "ws")
	want("another that has paid nothing", "canceled", "pro")
	stripe.subscribe("cus_new", "active", "team")
	want("another pays", "active", "team")
	stripe.set(func() { stripe.asked = nil })
	want("again", "active", "team")
	stripe.set(func() {
		if len(stripe.asked) != 2 || stripe.asked[0] != "/v1/customers/cus_new" {
			t.Errorf("asked %v: the customer that pays is known", stripe.asked)
		}
	})

	// Of those who were never known, the best counts at once.
	stripe, ask = stripeRig(t)
	stripe.customer("cus_old", "ws")
	stripe.subscribe("cus_old", "canceled", "pro")
	stripe.customer("cus_new", "ws")
	stripe.subscribe("cus_new", "trialing", "team")
	want("two at once", "trialing", "team")
}

// A checkout that is begun and abandoned makes a customer without a subscription, which
// takes nothing back of what has ended: the tier that was paid for would be free.
func TestACustomerWithoutASubscriptionLiftsNothing(t *testing.T) {
	tier.Slow(t)
	for _, last := range []string{"active", "unpaid"} {
		stripe, ask := stripeRig(t)
		stripe.customer("cus_1", "ws")
		stripe.subscribe("cus_1", "active", "pro")
		ask()
		stripe.set(func() { stripe.subscriptions["cus_1"] = nil })
		stripe.subscribe("cus_1", last, "pro")
		ask()
		stripe.set(func() { stripe.customers = nil })
		for _, step := range []func(){
			func() {}, // the customer is deleted
			func() { stripe.customer("cus_2", "ws") },
			func() { stripe.subscribe("cus_2", "incomplete", "team") },
		} {
			step()
			if status, tier := ask(); status != "canceled" || tier != "pro" {
				t.Errorf("after %s: %q %q", last, status, tier)
			}
		}
		stripe.subscribe("cus_2", "active", "team")
		if status, tier := ask(); status != "active" || tier != "team" {
			t.Errorf("paid again after %s: %q %q", last, status, tier)
		}
	}
}
