package certs

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	loopOrder = "certificates of domains"
	loopSweep = "old certificates of domains"

	// ordersAtOnce limits the orders under way.
	ordersAtOnce = 4
	// renewAt sets when a certificate is renewed: with 1/renewAt of its lifetime left.
	renewAt = 3
	// challengeKept is how long the answer to a challenge may be useful.
	challengeKept = time.Hour
	// maxInterrupted limits how many orders in a row are repeated at once because a
	// leader was lost during them: the orders may be what ends leaders.
	maxInterrupted = 3
)

// keeper orders certificates during one term.
type keeper struct {
	*loops.Term
	d      *Domains
	orders *rate.Limiter

	mu   sync.Mutex
	each map[string]*rate.Limiter // by workspace
	mine map[string]bool          // domains with an order in this term
}

// Loops returns the loops that get missing certificates, renew those that expire soon, and
// remove those of names that are no longer domains.
func (d *Domains) Loops(t *loops.Term) []loops.Loop {
	k := &keeper{Term: t, d: d, orders: perHour(d.cfg.PerHour), each: map[string]*rate.Limiter{}, mine: map[string]bool{}}
	return []loops.Loop{
		{Name: loopOrder, Pass: k.pass, Every: d.cfg.Look, Wake: func() <-chan struct{} { return t.Store.View().Changed(record.Domains.Name) }},
		{Name: loopSweep, Pass: k.sweep, Every: loops.ExpiryEvery},
	}
}

// perHour allows n events an hour, a quarter of them at once.
func perHour(n int) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(float64(n)/time.Hour.Seconds()), max(1, n/4))
}

// pass starts the orders that are due, up to ordersAtOnce at a time: renewals first, then
// the domains that have waited longest.
func (k *keeper) pass(ctx context.Context) {
	view, now := k.Store.View(), k.Clock()
	var due []*record.Domain
	for _, d := range raftstore.All(view, record.Domains) {
		if k.due(view, d, now) {
			due = append(due, d)
		}
	}
	slices.SortFunc(due, func(a, b *record.Domain) int {
		if x, y := renews(a), renews(b); x != y {
			if x {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Certificate.ExpiresAt.Compare(b.Certificate.ExpiresAt), a.Certificate.NextAt.Compare(b.Certificate.NextAt), strings.Compare(a.ID, b.ID))
	})
	for _, d := range due {
		k.Begin(loops.Job{What: loopOrder, ID: d.ID}, ordersAtOnce, func() { k.order(ctx, d.ID) })
	}
}

// renews reports whether an order for a domain is a renewal: the domain already has a
// certificate.
func renews(d *record.Domain) bool { return !d.Certificate.ExpiresAt.IsZero() }

func (k *keeper) due(r raftstore.Reader, d *record.Domain, now time.Time) bool {
	c := d.Certificate
	if d.Status != record.DomainVerified || k.d.cfg.Covered != nil && k.d.cfg.Covered(d.Name) {
		return false
	}
	if now.Before(c.NextAt) && !k.interrupted(d) {
		return false
	}
	if c.ExpiresAt.IsZero() || !now.Before(c.ExpiresAt.Add(-c.ExpiresAt.Sub(c.IssuedAt)/renewAt)) {
		return true
	}
	_, there := raftstore.Get(r, record.CertFiles, k.d.certKey(d.Name)) // the certificate of another authority has another key
	return !there
}

// interrupted reports whether a former leader was lost during an order that may be
// repeated at once.
func (k *keeper) interrupted(d *record.Domain) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return d.Certificate.Ordering && !k.mine[d.ID] && d.Certificate.Tries <= maxInterrupted
}

// mayOrder counts an order against the limits and reports whether it may begin. A renewal
// does not count for its workspace, because the workspace did not cause it.
func (k *keeper) mayOrder(d *record.Domain) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.Clock()
	if k.orders.TokensAt(now) < 1 {
		return false // at no cost for the workspace
	}
	if !renews(d) {
		if k.each[d.WorkspaceID] == nil {
			k.each[d.WorkspaceID] = perHour(k.d.cfg.Each)
		}
		if !k.each[d.WorkspaceID].AllowN(now, 1) {
			return false
		}
	}
	k.orders.AllowN(now, 1)
	k.mine[d.ID] = true
	return true
}

// order makes one order. It commits the beginning of the order before it contacts the ACME
// server, so that changes of leaders cannot cause more orders than the delays allow.
func (k *keeper) order(ctx context.Context, id string) {
	d := k.begin(ctx, id)
	if d == nil {
		return
	}
	pair, leaf, err := k.d.order(ctx, d.Name)
	if ctx.Err() != nil {
		return // the next leader sees that it was interrupted
	}
	var file *record.CertFile
	if err == nil {
		file, err = k.d.seal(d.Name, pair)
	}
	if err != nil {
		k.Logger.WarnContext(ctx, "certificate of a domain not obtained", "domain", d.Name, "app_id", d.AppID, "error", err)
	}
	k.Update(ctx, loopOrder, func(tx *raftstore.Tx) error {
		now, ok := raftstore.Get(tx, record.Domains, id)
		if !ok || now.Status != record.DomainVerified {
			return nil
		}
		now = now.Clone()
		c := &now.Certificate
		c.Ordering = false
		if err != nil {
			c.Error = reason(err)
		} else {
			*c = record.DomainTLS{TriedAt: c.TriedAt, IssuedAt: k.Clock().UTC(), ExpiresAt: leaf.NotAfter.UTC()}
			raftstore.Put(tx, record.CertFiles, file)
		}
		raftstore.Put(tx, record.Domains, now)
		return nil
	})
	if err == nil {
		k.Logger.InfoContext(ctx, "certificate of a domain obtained", "domain", d.Name, "app_id", d.AppID, "expires_at", leaf.NotAfter)
	}
}

func (d *Domains) seal(name string, pair pairFile) (*record.CertFile, error) {
	raw, err := json.Marshal(pair)
	if err != nil {
		return nil, err
	}
	key := d.certKey(name)
	sealed, err := d.cfg.Sealer.Seal(raw, record.CertFileContext(key))
	return &record.CertFile{Meta: record.Meta{ID: key}, ValueSealed: sealed, ModifiedAt: d.cfg.Clock().UTC()}, err
}

// begin records that an order begins. It returns nil if the order may not begin.
func (k *keeper) begin(ctx context.Context, id string) *record.Domain {
	view, now := k.Store.View(), k.Clock()
	d, ok := raftstore.Get(view, record.Domains, id)
	if !ok || !k.due(view, d, now) || !k.mayOrder(d) {
		return nil
	}
	var begun *record.Domain
	written := k.Update(ctx, loopOrder, func(tx *raftstore.Tx) error {
		begun = nil
		row, ok := raftstore.Get(tx, record.Domains, id)
		if !ok || row.Status != record.DomainVerified {
			return nil
		}
		begun = row.Clone()
		c := &begun.Certificate
		c.NextAt = now.UTC().Add(k.d.cfg.Delays[min(c.Tries, len(k.d.cfg.Delays)-1)])
		c.Ordering, c.TriedAt = true, now.UTC()
		c.Tries++
		raftstore.Put(tx, record.Domains, begun)
		return nil
	})
	if !written {
		return nil
	}
	return begun
}

// sweep removes the certificates of names that are not verified domains, and answers to
// challenges that were left behind. It does so for every authority.
func (k *keeper) sweep(ctx context.Context) {
	view := k.Store.View()
	var old []*record.CertFile
	for _, f := range raftstore.All(view, record.CertFiles) {
		rest, ok := strings.CutPrefix(f.ID, domainFiles)
		_, rest, cut := strings.Cut(rest, "/") // the authority
		if !ok || !cut {
			continue
		}
		if name, ok := strings.CutPrefix(rest, domainCerts); ok && !verified(view, name) {
			old = append(old, f)
		}
		if strings.HasPrefix(rest, domainChallenges) && k.Clock().Sub(f.ModifiedAt) > challengeKept {
			old = append(old, f)
		}
	}
	loops.InParts(ctx, k.Term, loopSweep, old, func(tx *raftstore.Tx, part []*record.CertFile) error {
		for _, f := range part {
			if now, ok := raftstore.Get(tx, record.CertFiles, f.ID); ok && now.ModifyIndex == f.ModifyIndex {
				raftstore.Delete(tx, record.CertFiles, f.ID)
			}
		}
		return nil
	}, nil)
	k.forget(view)
}

// forget drops the limiters of workspaces without domains, once they are full again, and
// the entries of domains that are gone.
func (k *keeper) forget(view *raftstore.Snapshot) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.each {
		if len(raftstore.Find(view, record.Domains, "workspace", id)) == 0 && k.each[id].TokensAt(k.Clock()) >= float64(k.each[id].Burst()) {
			delete(k.each, id)
		}
	}
	for id := range k.mine {
		if _, ok := raftstore.Get(view, record.Domains, id); !ok {
			delete(k.mine, id)
		}
	}
}

func verified(r raftstore.Reader, name string) bool {
	return len(raftstore.Find(r, record.Domains, "verified", name)) > 0
}
