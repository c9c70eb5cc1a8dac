// Package rotation tells who trusts which of the cluster's certificate authorities, and when
// the next step of an exchange may be taken. Each replica knows itself and what hosts and
// routers have told it; the command that exchanges the CA asks all replicas.
package rotation

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Status is what one replica knows. Authorities are named by nodecert.CAID.
type Status struct {
	Replica  string       `json:"replica"`
	Signs    string       `json:"signs"`  // the authority that signs here
	Trusts   []string     `json:"trusts"` // those that count here
	Issuer   string       `json:"issuer"` // of this replica's own certificate
	Replicas []pki.Member `json:"replicas"`
	Hosts    []string     `json:"hosts"` // all that are not removed
	Told     []Saying     `json:"told"`
	UpMS     int64        `json:"up_ms,omitempty"` // how long it has been listening to what it is told; 0: an older version
}

// Saying is what one host or router said last.
type Saying struct {
	Member string   `json:"member"` // host:h1
	Trusts []string `json:"trusts"`
	Issuer string   `json:"issuer"`
	AgeMS  int64    `json:"age_ms"`
}

// routerKept is for how long a router that says nothing is remembered, and who is no member. No
// record tells which routers there are; one that runs says something every minute.
const routerKept = 24 * time.Hour

// maxTold and maxKnown bound what callers make a replica keep.
const (
	maxTold  = 16 << 10 // of a request, in bytes
	maxKnown = 16
)

// Told is what hosts and routers have said of themselves.
type Told struct {
	clock func() time.Time
	since time.Time

	mu   sync.Mutex
	last map[pki.Identity]said
}

type said struct {
	hostapi.AuthoritiesKnown
	at time.Time
}

// NewTold returns a Told that has heard nothing.
func NewTold(clock func() time.Time) *Told {
	return &Told{clock: clock, since: clock(), last: map[pki.Identity]said{}}
}

// Up returns for how long it has been listening, in milliseconds, at least 1.
func (t *Told) Up() int64 { return max(1, t.clock().Sub(t.since).Milliseconds()) }

// Note remembers what a member says. Its certificate is known.
func (t *Told) Note(id pki.Identity, known hostapi.AuthoritiesKnown) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last[id] = said{known, t.clock()}
}

// All returns what members have said that still are some, by their names.
func (t *Told) All(member func(pki.Identity) bool) []Saying {
	t.mu.Lock()
	defer t.mu.Unlock()
	out, now := []Saying{}, t.clock()
	for id, s := range t.last {
		age := now.Sub(s.at)
		is := member(id)
		if age > routerKept && (!is || id.Role == pki.RoleRouter) {
			delete(t.last, id)
			continue
		}
		if !is { // perhaps not yet: this replica may be behind
			continue
		}
		out = append(out, Saying{Member: id.CommonName(), Trusts: s.Trusts, Issuer: s.Issuer, AgeMS: age.Milliseconds()})
	}
	slices.SortFunc(out, func(a, b Saying) int { return strings.Compare(a.Member, b.Member) })
	return out
}

// Handler serves hostapi.PathAuthorities.
func (t *Told) Handler(ca *pki.CA) func(w http.ResponseWriter, r *http.Request, id pki.Identity) {
	return func(w http.ResponseWriter, r *http.Request, id pki.Identity) {
		if r.Method != http.MethodPost {
			http.Error(w, "POST only", http.StatusMethodNotAllowed)
			return
		}
		var in hostapi.AuthoritiesKnown
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTold)).Decode(&in); err != nil || len(in.Trusts) > maxKnown {
			http.Error(w, "not what a member knows", http.StatusBadRequest)
			return
		}
		t.Note(id, in)
		now := ca.Authorities()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(hostapi.Authorities{Bundle: string(now.Bundle), Signs: now.Signs}) // a caller that is gone asks again
	}
}

// Handler serves peer.PathRotation.
func Handler(status func() Status) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(status()) // the caller may be gone
	})
}
