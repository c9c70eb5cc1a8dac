package rotation

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

const old, next = "00000000000000aa", "00000000000000bb"

func replicaOf(id, signs, issuer string, trusts ...string) Replica {
	return Replica{ID: id, Signs: signs, Issuer: issuer, Trusts: trusts}
}

func memberOf(name, issuer string, trusts ...string) Member {
	return Member{Name: name, Heard: true, Issuer: issuer, Trusts: trusts}
}

func TestWhoIsNotReadyIsNamed(t *testing.T) {
	both := []string{old, next}
	for name, c := range map[string]struct {
		cluster     Cluster
		use, remove []string // what keeps the new one from signing, and the old one from being removed; each a part of a reason
	}{
		"before the exchange": {
			Cluster{Replicas: []Replica{replicaOf("a", old, old, old)}, Members: []Member{memberOf("host h1", old, old)}},
			[]string{"replica a does not trust it", "host h1 does not trust it"}, []string{"replica a signs with " + old, "host h1 does not trust"},
		},
		"the new one is known to all": {
			Cluster{Replicas: []Replica{replicaOf("a", old, old, both...), replicaOf("b", old, old, both...)}, Members: []Member{memberOf("host h1", old, both...), memberOf("router r1", old, both...)}},
			nil, []string{"replica a signs", "replica b signs", "host h1 has not renewed", "router r1 has not renewed"},
		},
		"one replica and one router lag": {
			Cluster{Replicas: []Replica{replicaOf("a", old, old, both...), replicaOf("b", old, old, old)}, Members: []Member{memberOf("host h1", old, both...), memberOf("router r1", old, old)}},
			[]string{"replica b does not trust it: copy ca.crt and ca.key", "router r1 does not trust it"}, []string{"replica a", "replica b", "host h1", "router r1"},
		},
		"the new one signs at one replica": {
			Cluster{Replicas: []Replica{replicaOf("a", next, next, both...), replicaOf("b", old, old, both...)}, Members: []Member{memberOf("host h1", next, both...)}},
			nil, []string{"replica b signs with " + old + ": copy ca.key"},
		},
		"a replica has not renewed": {
			Cluster{Replicas: []Replica{replicaOf("a", next, next, both...), replicaOf("b", next, old, both...), replicaOf("c", next, "", both...)}},
			nil, []string{"replica b has no certificate of " + next, "replica c has no certificate of " + next},
		},
		"a replica is off": {
			Cluster{Replicas: []Replica{{ID: "a", Err: errors.New("refused")}, replicaOf("b", next, next, both...)}},
			[]string{"replica a does not answer: start it, or remove it (berth raft remove-peer a): refused"}, []string{"replica a does not answer"},
		},
		"a host is off, and another cannot keep what it got": {
			Cluster{Replicas: []Replica{replicaOf("a", next, next, both...)}, Members: []Member{{Name: "host h1"}, memberOf("host h2", "", both...), memberOf("host h3", next, next)}},
			[]string{"host h1 has told no replica", "berth agents rm h1"}, []string{"berth agents rm h1", "host h2 has no certificate"},
		},
		"a replica has just started": {
			Cluster{Replicas: []Replica{
				{ID: "a", Signs: next, Issuer: next, Trusts: both, Up: 90 * time.Second}, {ID: "b", Signs: next, Issuer: next, Trusts: both, Up: time.Hour},
			}, Settled: settled},
			[]string{"replica a has started 1m30s ago"}, []string{"replica a has started 1m30s ago"},
		},
		"all have run for long": {
			Cluster{Replicas: []Replica{{ID: "a", Signs: next, Issuer: next, Trusts: both, Up: settled}, replicaOf("b", next, next, both...)}, Settled: settled},
			nil, nil,
		},
		"all have renewed": {
			Cluster{Replicas: []Replica{replicaOf("a", next, next, both...), replicaOf("b", next, next, next)}, Members: []Member{memberOf("host h1", next, both...), memberOf("router r1", next, next)}},
			nil, nil,
		},
	} {
		for what, got := range map[string][2][]string{"use": {c.cluster.KeepsFromUsing(next), c.use}, "rm": {c.cluster.KeepsFromRemoving(old, next), c.remove}} {
			text := strings.Join(got[0], "\n")
			if len(got[1]) == 0 && len(got[0]) > 0 {
				t.Errorf("%s: %s: %q keeps from it", name, what, text)
			}
			for _, want := range got[1] {
				if !strings.Contains(text, want) {
					t.Errorf("%s: %s: %q lacks %q", name, what, text, want)
				}
			}
		}
	}
}

func TestWhatReplicasWereToldIsPutTogether(t *testing.T) {
	got := members([]Status{
		{Hosts: []string{"h1", "h2"}, Told: []Saying{{Member: "host:h1", Issuer: old, AgeMS: 90_000}, {Member: "router:r1", Issuer: old, AgeMS: 5}}},
		{}, // it did not answer
		{Hosts: []string{"h1", "h2", "h3"}, Told: []Saying{{Member: "host:h1", Issuer: next, AgeMS: 30_000}, {Member: "host:h3", Issuer: next}}},
	})
	var said []string
	for _, m := range got {
		said = append(said, m.Name+" "+m.Issuer)
		if m.Heard != (m.Name != "host h2") {
			t.Errorf("%+v", m)
		}
	}
	if want := []string{"host h1 " + next, "host h2 ", "host h3 " + next, "router r1 " + old}; !slices.Equal(said, want) {
		t.Errorf("%q, want %q", said, want)
	}
}

// A replica that has just started does not know of a router that told it something before.
func TestAReplicaSaysHowLongItHasListened(t *testing.T) {
	now := time.Now()
	told := NewTold(func() time.Time { return now })
	if up := told.Up(); up != 1 {
		t.Errorf("at once: %d ms", up)
	}
	now = now.Add(90 * time.Second)
	if up := told.Up(); up != 90_000 {
		t.Errorf("after 90 s: %d ms", up)
	}
}

func TestARouterThatWentIsForgotten(t *testing.T) {
	now := time.Now()
	told := NewTold(func() time.Time { return now })
	host, router, removed := pki.Identity{Role: pki.RoleHost, Name: "h1"}, pki.Identity{Role: pki.RoleRouter, Name: "r1"}, pki.Identity{Role: pki.RoleHost, Name: "h2"}
	for _, id := range []pki.Identity{host, router, removed} {
		told.Note(id, hostapi.AuthoritiesKnown{Trusts: []string{old}, Issuer: old})
	}
	names := func() (out []string) {
		for _, s := range told.All(func(id pki.Identity) bool { return id != removed }) {
			out = append(out, s.Member)
		}
		return out
	}
	if got := names(); !slices.Equal(got, []string{"host:h1", "router:r1"}) {
		t.Error(got)
	}
	now = now.Add(2 * routerKept)
	if got := names(); !slices.Equal(got, []string{"host:h1"}) || len(told.last) != 1 { // it knows what it knew, when it comes back
		t.Error(got)
	}
}

func TestBadReportsAreRefused(t *testing.T) {
	ca, err := pki.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	told := NewTold(time.Now)
	handler := told.Handler(ca)
	for name, c := range map[string]struct {
		method, body string
		status       int
	}{
		"a GET":     {http.MethodGet, "", http.StatusMethodNotAllowed},
		"no JSON":   {http.MethodPost, "{", http.StatusBadRequest},
		"too long":  {http.MethodPost, `{"issuer":"` + strings.Repeat("a", maxTold) + `"}`, http.StatusBadRequest},
		"too many":  {http.MethodPost, `{"trusts":[` + strings.Repeat(`"a",`, maxKnown) + `"a"]}`, http.StatusBadRequest},
		"all right": {http.MethodPost, `{"trusts":["` + old + `"],"issuer":"` + old + `"}`, http.StatusOK},
	} {
		w := httptest.NewRecorder()
		handler(w, httptest.NewRequest(c.method, hostapi.PathAuthorities, strings.NewReader(c.body)), pki.Identity{Role: pki.RoleHost, Name: "h1"})
		if w.Code != c.status {
			t.Errorf("%s: %d, want %d: %s", name, w.Code, c.status, w.Body)
		}
		if c.status == http.StatusOK && !strings.Contains(w.Body.String(), ca.Signs()) {
			t.Errorf("%s: %s", name, w.Body)
		}
	}
	if got := told.All(func(pki.Identity) bool { return true }); len(got) != 1 || got[0].Issuer != old {
		t.Errorf("%+v", got)
	}
}
