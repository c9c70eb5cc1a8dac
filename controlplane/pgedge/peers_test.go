package pgedge

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/netfab/pgsni"
)

// roundTripper is a network of replicas, keyed by their addresses.
type roundTripper map[string]*Peers

func (n roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	p := n[req.URL.Host]
	if p == nil {
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, req)
	return w.Result(), nil
}

// peersOf returns the configuration of a replica that does not lead and knows the others.
func peersOf(n roundTripper, leader string, others ...string) PeersConfig {
	return PeersConfig{
		Leading: func() bool { return false }, Leader: func() (string, string) { return leader, leader },
		Others: func() []string { return others }, Transport: n, Log: slog.New(slog.DiscardHandler),
	}
}

func TestAFollowerHasTheLeaderWake(t *testing.T) {
	n := roundTripper{}
	var answer error
	leader := peersOf(n, "leader")
	leader.Leading = func() bool { return true }
	leader.Awake = func(_ context.Context, id string) error {
		if id != database {
			t.Errorf("wake of %q", id)
		}
		return answer
	}
	n["leader"] = NewPeers(leader)
	follower := NewPeers(peersOf(n, "leader"))
	if err := follower.Wake(t.Context(), database); err != nil {
		t.Error(err)
	}
	want := &apierror.Error{Code: apierror.EInsufficient, Message: "no memory", Detail: "on any host", RetryAfter: 2 * time.Second, Fields: map[string]any{"budget_usd": 2.5}}
	answer = want
	for _, p := range []*Peers{follower, n["leader"]} {
		var got *apierror.Error
		if err := p.Wake(t.Context(), database); !errors.As(err, &got) || got.Code != want.Code || got.Message != want.Message || got.Detail != want.Detail || got.RetryAfter != want.RetryAfter || got.Fields["budget_usd"] != 2.5 {
			t.Errorf("%+v", got)
		}
	}
}

func TestAWakeWithoutALeaderMayBeTriedAgain(t *testing.T) {
	n := roundTripper{}
	for what, leader := range map[string]string{"no leader": "", "one that is gone": "gone", "one that does not lead": "other"} {
		n["other"] = NewPeers(peersOf(n, ""))
		if err := NewPeers(peersOf(n, leader)).Wake(t.Context(), database); apierror.CodeOf(err) != apierror.EUnavailable {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestCancelRequestsAreForwardedAtABoundedRate(t *testing.T) {
	n := roundTripper{}
	asked := 0
	n["other"] = NewPeers(peersOf(n, ""))
	n["other"].cancel = func(_ context.Context, key pgsni.CancelKey) bool {
		if key.PID != 7 || string(key.Secret) != "key" {
			t.Errorf("%+v", key)
		}
		asked++
		return false
	}
	p := NewPeers(peersOf(n, "", "other", "gone"))
	for range 5 * cancelBurst {
		p.CancelElsewhere(t.Context(), pgsni.CancelKey{PID: 7, Secret: []byte("key")})
	}
	if asked < cancelBurst || asked > 2*cancelBurst {
		t.Errorf("asked %d times", asked)
	}
}

func TestAFollowerAsksHowNewARowIs(t *testing.T) {
	n := roundTripper{}
	leader := peersOf(n, "leader")
	leader.Leading = func() bool { return true }
	leader.Lookup = func(id string) (Entry, bool) { return Entry{Index: 7}, id == database }
	n["leader"] = NewPeers(leader)
	follower := NewPeers(peersOf(n, "leader"))
	if index, ok := follower.Latest(t.Context(), database); !ok || index != 7 {
		t.Error(index, ok)
	}
	if _, ok := n["leader"].Latest(t.Context(), database); ok {
		t.Error("the leader asks somebody")
	}
	delete(n, "leader")
	if _, ok := follower.Latest(t.Context(), database); ok {
		t.Error("nobody has answered")
	}
	n["leader"] = NewPeers(leader)
	if _, ok := follower.Latest(t.Context(), database); ok {
		t.Error("a leader that did not answer is asked at each login")
	}
}
