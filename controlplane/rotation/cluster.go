package rotation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/timescale"
)

// Cluster is what all replicas know together.
type Cluster struct {
	Replicas []Replica
	Members  []Member // hosts that are not removed, and routers that were heard of

	// Settled is how long a replica must have been listening. Until every router has told
	// something again, it may be one that the replica does not know since its start.
	Settled time.Duration
}

// settled is more than a minute, after which every router has told a replica something.
const settled = 2 * time.Minute

// Replica is one replica. Err is why it did not tell.
type Replica struct {
	ID     string
	Signs  string
	Trusts []string
	Issuer string
	Up     time.Duration // how long it has been listening to hosts and routers; 0: it does not say
	Err    error
}

// Member is one host or router.
type Member struct {
	Name   string // "host h1"
	Heard  bool   // it has told a replica since that one started
	Age    time.Duration
	Trusts []string
	Issuer string // of its certificate; empty: none that it trusts, or it cannot keep its certificate
}

// askTime is how long one replica may take.
var askTime = timescale.Limit(5 * time.Second)

// maxStatus limits a replica's answer, in bytes.
const maxStatus = 16 << 20

// Ask asks all replicas, by a replica's certificate. addresses are where the first answer is
// looked for, which says where the others are.
func Ask(ctx context.Context, node *pki.Node, addresses []string) (Cluster, error) {
	transport := peer.NewTransport(node)
	defer transport.CloseIdleConnections()
	var first Status
	errs := []error{errors.New("no replica answers")}
	for _, a := range addresses {
		st, err := ask(ctx, transport, a)
		if err == nil && len(st.Replicas) == 0 {
			err = fmt.Errorf("replica %s is in no cluster", st.Replica)
		}
		if err == nil {
			first, errs = st, nil
			break
		}
		errs = append(errs, fmt.Errorf("%s: %w", a, err))
	}
	if errs != nil {
		return Cluster{}, errors.Join(errs...)
	}
	all := make([]Status, len(first.Replicas))
	out := Cluster{Replicas: make([]Replica, len(first.Replicas)), Settled: settled}
	var wg sync.WaitGroup
	for i, m := range first.Replicas {
		wg.Go(func() {
			st, err := ask(ctx, transport, m.Address)
			if err == nil && st.Replica != m.ID {
				err = fmt.Errorf("at %s is replica %s", m.Address, st.Replica)
			}
			all[i], out.Replicas[i] = st, Replica{ID: m.ID, Signs: st.Signs, Trusts: st.Trusts, Issuer: st.Issuer, Up: time.Duration(st.UpMS) * time.Millisecond, Err: err}
		})
	}
	wg.Wait()
	out.Members = members(all)
	return out, nil
}

func ask(ctx context.Context, transport http.RoundTripper, address string) (st Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	resp, err := peer.Ask(ctx, transport, address, peer.PathRotation, struct{}{})
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return st, fmt.Errorf("%s: an older version?", resp.Status)
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxStatus)).Decode(&st)
	return st, err
}

// members merges what replicas were told. A host is one of any replica: those that lag may
// not know the newest, and a removed one is asked about once more.
func members(all []Status) []Member {
	newest := map[string]Member{}
	for _, st := range all {
		for _, id := range st.Hosts {
			name := string(pki.RoleHost) + " " + id
			if _, ok := newest[name]; !ok {
				newest[name] = Member{Name: name}
			}
		}
	}
	for _, st := range all {
		for _, s := range st.Told {
			name, age := strings.Replace(s.Member, ":", " ", 1), time.Duration(s.AgeMS)*time.Millisecond
			if m, ok := newest[name]; !ok || !m.Heard || age < m.Age {
				newest[name] = Member{Name: name, Heard: true, Age: age, Trusts: s.Trusts, Issuer: s.Issuer}
			}
		}
	}
	out := make([]Member, 0, len(newest))
	for _, m := range newest {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// KeepsFromUsing says what keeps an authority from signing: whoever does not trust it yet
// would be cut off. nil: nothing.
func (c Cluster) KeepsFromUsing(id string) (why []string) {
	for _, r := range c.Replicas {
		switch {
		case r.Err != nil:
			why = append(why, r.silent())
		case !slices.Contains(r.Trusts, id):
			why = append(why, fmt.Sprintf("replica %s does not trust it: copy %s and %s there", r.ID, pki.FileCACert, pki.FileCAKey))
		case c.young(r):
			why = append(why, r.young())
		}
	}
	for _, m := range c.Members {
		switch {
		case !m.Heard:
			why = append(why, m.silent())
		case !slices.Contains(m.Trusts, id):
			why = append(why, m.Name+" does not trust it yet: it asks every minute")
		}
	}
	return why
}

// KeepsFromRemoving says what keeps an authority from being removed while signs signs: whoever
// still has a certificate of it, or may get one, would be cut off. nil: nothing.
func (c Cluster) KeepsFromRemoving(id, signs string) (why []string) {
	for _, r := range c.Replicas {
		switch {
		case r.Err != nil:
			why = append(why, r.silent())
		case r.Signs != signs:
			why = append(why, fmt.Sprintf("replica %s signs with %s: copy %s there", r.ID, r.Signs, pki.FileCAKey))
		case r.Issuer == id || r.Issuer == "":
			why = append(why, fmt.Sprintf("replica %s has no certificate of %s that it could keep: see its log", r.ID, signs))
		case c.young(r):
			why = append(why, r.young())
		}
	}
	for _, m := range c.Members {
		switch {
		case !m.Heard:
			why = append(why, m.silent())
		case !slices.Contains(m.Trusts, signs):
			why = append(why, fmt.Sprintf("%s does not trust %s yet: it asks every minute", m.Name, signs))
		case m.Issuer == id:
			why = append(why, m.Name+" has not renewed its certificate yet: it does within a minute or, after a failure, twenty; after ca use --no-renewal it needs one by hand (controlplane init --ca)")
		case m.Issuer == "":
			why = append(why, m.Name+" has no certificate that it could keep: see its log")
		}
	}
	return why
}

func (c Cluster) young(r Replica) bool { return r.Up > 0 && r.Up < c.Settled }

func (r Replica) young() string {
	return fmt.Sprintf("replica %s has started %s ago, and may not know of every router yet: each tells a replica something every minute", r.ID, r.Up.Round(time.Second))
}

func (r Replica) silent() string {
	return fmt.Sprintf("replica %s does not answer: start it, or remove it (berth raft remove-peer %s): %v", r.ID, r.ID, r.Err)
}

func (m Member) silent() string {
	if id, ok := strings.CutPrefix(m.Name, string(pki.RoleHost)+" "); ok {
		return fmt.Sprintf("%s has told no replica that runs what it trusts: it does every minute; if it is off, start it, or remove it (berth agents rm %s)", m.Name, id)
	}
	return m.Name + " has told no replica that runs what it trusts"
}
