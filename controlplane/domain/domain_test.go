package domain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestADomainIsClaimedAndProven(t *testing.T) {
	r := newRig(t, 1, false)
	d := r.must(caller, "app-1", "Shop.Example.com")
	token := d.DNS[0].Value
	if diff := cmp.Diff([]api.DNSRecord{
		{Type: "TXT", Name: "_berth.shop.example.com", Value: token}, {Type: "CNAME", Name: shop, Value: "app-1.app.berth.example"},
	}, d.DNS); diff != "" || len(token) < 40 || d.Status != api.DomainPending || d.URL != "https://shop.example.com/" || d.Certificate.Status != api.CertificateNone || d.CheckedAt != nil {
		t.Errorf("%+v %s", d, diff)
	}
	d = r.becomes(caller, "app-1", shop, api.DomainPending)
	if !strings.Contains(d.Error, "there is no TXT record _berth.shop.example.com") || d.CheckedAt == nil || r.holder(shop) != "" {
		t.Errorf("%+v", d)
	}
	r.zone.set(shop, "v=spf1 -all", "another")
	if d = r.becomes(caller, "app-1", shop, api.DomainPending); !strings.Contains(d.Error, "another value") {
		t.Errorf("%+v", d)
	}
	r.zone.set(shop, "another", ` "`+token+`"`)
	d = r.becomes(caller, "app-1", "SHOP.example.com.", api.DomainVerified)
	if d.Error != "" || d.VerifiedAt == nil || r.holder(shop) != "app-1" || d.Certificate.Status != api.CertificateUnavailable || !strings.Contains(d.Certificate.Error, "no ACME") {
		t.Errorf("%+v", d)
	}
	got, err := r.domains().Get(t.Context(), caller, "app-1", shop)
	if diff := cmp.Diff(d, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if a := r.must(caller, "app-1", "example.org").DNS[1]; a.Type != "ALIAS" {
		t.Errorf("%+v", a)
	}
	page, _, err := r.domains().List(t.Context(), caller, "app-1", core.ListOptions{})
	if err != nil || len(page) != 2 || page[1].Domain != shop {
		t.Errorf("%+v %v", page, err)
	}
	if err := r.domains().Delete(t.Context(), caller, "app-1", shop); err != nil || r.holder(shop) != "" {
		t.Error(err)
	}
	want(t, r.domains().Delete(t.Context(), caller, "app-1", shop), apierror.ENotFound, "not found")
	// What is left in DNS proves nothing for the next claim.
	r.must(caller, "app-2", shop)
	r.becomes(caller, "app-2", shop, api.DomainPending)
}

func TestAClaimThatIsRepeated(t *testing.T) {
	r := newRig(t, 1, false)
	once := core.Idempotency{Key: "k", BodySHA256: []byte("b")}
	first, err := r.domains().Create(t.Context(), caller, "app-1", api.CreateAppDomain{Domain: shop}, once)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.domains().Create(t.Context(), caller, "app-1", api.CreateAppDomain{Domain: shop}, once)
	if diff := cmp.Diff(first, again); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if err := r.domains().Delete(t.Context(), caller, "app-1", shop); err != nil {
		t.Fatal(err)
	}
	again, err = r.domains().Create(t.Context(), caller, "app-1", api.CreateAppDomain{Domain: shop}, once)
	if diff := cmp.Diff(first, again); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestWhoMayNotClaimWhat(t *testing.T) {
	r := newRig(t, 1, false)
	for _, c := range []struct {
		who         core.Caller
		app, name   string
		code        apierror.Code
		wantMessage string
	}{
		{core.Caller{}, "app-1", shop, apierror.EUnauthorized, "unauthorized"},
		{stranger, "app-1", shop, apierror.ENotFound, "not found"},
		{caller, "app-none", shop, apierror.ENotFound, "not found"},
		{caller, "app-1", "", apierror.EInvalid, "domain is required"},
		{caller, "app-1", "*.example.com", apierror.EInvalid, "invalid domain"},
		{caller, "app-1", "app.berth.example.com", apierror.ENotFound, ""}, // fine
		{caller, "app-1", "shop.app.berth.example", apierror.EInvalid, "invalid domain"},
	} {
		_, err := r.create(c.who, c.app, c.name)
		if c.wantMessage == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		want(t, err, c.code, c.wantMessage)
	}
	d := r.domains()
	d.cfg.Suffixes, d.cfg.Own = []string{"App.berth.dev", "p.berth.dev"}, func(name string) bool { return name == "api.berth.dev" }
	for name, reserved := range map[string]bool{
		"app.berth.dev": true, "x.app.berth.dev": true, "APP-1.APP.berth.dev": true, "a.b.p.berth.dev": true, "api.berth.dev": true,
		"www.berth.dev": false, "happ.berth.dev": false, "berth.dev": false,
	} {
		_, err := r.create(caller, "app-1", name)
		if reserved {
			want(t, err, apierror.EInvalid, "domain is reserved")
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.must(caller, "app-1", shop)
	_, err := r.create(caller, "app-1", shop)
	want(t, err, apierror.EConflict, "domain exists")
	_, err = r.create(caller, "app-2", shop)
	want(t, err, apierror.EConflict, "domain is in use")
	for _, name := range []string{"other.example.com", "not a name", "app-1"} {
		_, err = d.Get(t.Context(), caller, "app-1", name)
		want(t, err, apierror.ENotFound, "not found")
	}
	_, err = d.Get(t.Context(), caller, "app-2", shop)
	want(t, err, apierror.ENotFound, "not found")
	_, err = d.Verify(t.Context(), stranger, "app-1", shop)
	want(t, err, apierror.ENotFound, "not found")
	_, _, err = d.List(t.Context(), stranger, "app-1", core.ListOptions{})
	want(t, err, apierror.ENotFound, "not found")
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Suspended: true})
		return nil
	})
	_, err = r.create(caller, "app-2", "new.example.com")
	want(t, err, apierror.EForbidden, "account suspended")
}

func TestHowManyDomainsThereAre(t *testing.T) {
	r := newRig(t, 1, false)
	r.Update(func(tx *raftstore.Tx) error {
		for i := range MaxPerWorkspace/MaxPerApp + 1 {
			raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: fmt.Sprint("many-", i)}, WorkspaceID: "ws", Status: record.AppCreated})
		}
		return nil
	})
	for i := range MaxPerWorkspace {
		r.must(caller, fmt.Sprint("many-", i/MaxPerApp), fmt.Sprintf("n%d.example.com", i))
	}
	for _, id := range []string{"many-0", fmt.Sprint("many-", MaxPerWorkspace/MaxPerApp)} {
		_, err := r.create(caller, id, "more.example.com")
		want(t, err, apierror.ERateLimited, "max domains reached")
	}
	r.must(stranger, "app-x", "more.example.com")
}

// A claim that is not proven is in nobody's way, and one that is proven is safe.
func TestAnotherWorkspaceTakesNothing(t *testing.T) {
	r := newRig(t, 1, false)
	squatter := r.must(stranger, "app-x", shop)
	mine := r.must(caller, "app-1", shop)
	r.zone.set(shop, mine.DNS[0].Value)
	r.becomes(caller, "app-1", shop, api.DomainVerified)
	r.becomes(stranger, "app-x", shop, api.DomainPending)
	if err := r.domains().Delete(t.Context(), stranger, "app-x", shop); err != nil {
		t.Fatal(err)
	}
	_, err := r.create(stranger, "app-x", shop)
	want(t, err, apierror.EConflict, "domain is taken")
	if r.holder(shop) != "app-1" || squatter.DNS[0].Value == mine.DNS[0].Value {
		t.Error("the domain is not its owner's")
	}
}

// A domain that still leads here when its app is gone is nobody's: the record that leads
// here proves nothing, nor does the one that once proved it.
func TestADanglingDomainIsNobodys(t *testing.T) {
	r := newRig(t, 1, false)
	mine := r.must(caller, "app-1", shop)
	r.zone.set(shop, mine.DNS[0].Value)
	r.becomes(caller, "app-1", shop, api.DomainVerified)
	if err := r.domains().Delete(t.Context(), caller, "app-1", shop); err != nil {
		t.Fatal(err)
	}
	theirs := r.must(stranger, "app-x", shop)
	r.becomes(stranger, "app-x", shop, api.DomainPending)
	if r.holder(shop) != "" {
		t.Error("it was taken over")
	}
	r.zone.set(shop, mine.DNS[0].Value, theirs.DNS[0].Value) // its owner means it
	r.becomes(stranger, "app-x", shop, api.DomainVerified)
}

// Two workspaces prove one name: the first keeps it while its record is there, and the
// other has it as soon as it is not.
func TestADomainThatIsSold(t *testing.T) {
	r := newRig(t, 1, false)
	theirs, mine := r.must(stranger, "app-x", shop), r.must(caller, "app-1", shop)
	r.zone.set(shop, theirs.DNS[0].Value, mine.DNS[0].Value)
	r.becomes(stranger, "app-x", shop, api.DomainVerified)
	_, err := r.verify(caller, "app-1", shop)
	want(t, err, apierror.EConflict, "domain is taken")
	if d, err := r.domains().Get(t.Context(), caller, "app-1", shop); err != nil || d.Status != api.DomainPending || d.Error != whyTaken {
		t.Errorf("%+v %v", d, err)
	}
	r.zone.set(shop, mine.DNS[0].Value)
	r.becomes(caller, "app-1", shop, api.DomainVerified)
	if d, err := r.domains().Get(t.Context(), stranger, "app-x", shop); err != nil || d.Status != api.DomainFailed || d.Error != whyTakenOver || r.holder(shop) != "app-1" {
		t.Errorf("%+v %v", d, err)
	}
}

func TestAClaimFailsAfterAWhile(t *testing.T) {
	r := newRig(t, 1, true)
	r.must(caller, "app-1", shop)
	looks, at := 0, time.Duration(0)
	for _, pause := range []time.Duration{time.Minute, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 32 * time.Minute, time.Hour, time.Hour} {
		r.clock.add(pause - time.Second)
		r.settled()
		if n := r.zone.times(shop); n != looks {
			t.Fatalf("%d looks before %s", n, at+pause)
		}
		r.clock.add(time.Second)
		looks++
		at += pause
		testcluster.Await(t, "the next look", func() bool { return r.row(shop).Looks == looks })
	}
	for range 7 {
		r.clock.add(day)
		looks++
		testcluster.Await(t, "the next look", func() bool { return r.zone.times(shop) == looks && r.row(shop).NextCheckAt != r.clock.Now() })
		testcluster.Await(t, "its end", func() bool { d := r.row(shop); return d.Looks == looks || d.Status == record.DomainFailed })
	}
	d := r.row(shop)
	if d.Status != record.DomainFailed || !d.NextCheckAt.IsZero() || !strings.Contains(d.Error, "given up after 168h0m0s") {
		t.Fatalf("%+v", d)
	}
	r.clock.add(30 * day)
	r.settled()
	if r.zone.times(shop) != looks {
		t.Error("it is looked for still")
	}
	again := r.becomes(caller, "app-1", shop, api.DomainPending)
	if again.NextCheckAt == nil {
		t.Errorf("%+v", again)
	}
	r.zone.set(shop, again.DNS[0].Value)
	r.clock.add(time.Minute)
	testcluster.Await(t, "its proof", func() bool { return r.holder(shop) == "app-1" })
}

// row is the claim of the caller's workspace.
func (r *rig) row(name string) *record.Domain {
	d, ok := claimOf(r.Leader().Store.View(), "ws", name)
	if !ok {
		r.t.Fatalf("no claim of %s", name)
	}
	return d
}

// settled waits until the loop has nothing to do: another claim comes, and is looked for.
func (r *rig) settled() {
	r.t.Helper()
	const marker = "marker.example.net"
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.Domains, "marker")
		return nil
	})
	before := r.zone.times(marker)
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Domains, &record.Domain{
			Meta: record.Meta{ID: "marker"}, WorkspaceID: "other", AppID: "app-x", Name: marker, Status: record.DomainPending, Since: r.clock.Now(), NextCheckAt: r.clock.Now(),
		})
		return nil
	})
	testcluster.Await(r.t, "a look for the marker", func() bool { return r.zone.times(marker) > before })
}

func TestAProofThatIsGoneForLong(t *testing.T) {
	r := newRig(t, 1, true)
	d := r.must(caller, "app-1", shop)
	token := d.DNS[0].Value
	r.zone.set(shop, token)
	r.becomes(caller, "app-1", shop, api.DomainVerified)
	look := func(step time.Duration) *record.Domain {
		t.Helper()
		before := r.row(shop)
		r.clock.add(step)
		testcluster.Await(t, "a look", func() bool { return r.row(shop).CheckedAt.After(before.CheckedAt) })
		return r.row(shop)
	}
	if d := look(6 * time.Hour); d.Status != record.DomainVerified || d.Error != "" {
		t.Errorf("%+v", d)
	}
	// Servers that fail say nothing, for however long.
	for _, err := range []error{&net.DNSError{Err: "server misbehaving", IsTemporary: true}, &net.DNSError{Err: "i/o timeout", IsTimeout: true}, errors.New("refused")} {
		r.zone.fail(err)
		for range 3 {
			if d := look(10 * day); d.Status != record.DomainVerified || d.Error == "" || !d.MissingAt.IsZero() || strings.Contains(d.Error, err.Error()) {
				t.Errorf("%v: %+v", err, d)
			}
		}
	}
	r.zone.set(shop, "other")
	first := look(day)
	if first.Status != record.DomainVerified || first.MissingAt.IsZero() || r.holder(shop) != "app-1" {
		t.Fatalf("%+v", first)
	}
	// Its return in time is as if nothing had been.
	r.zone.set(shop, token)
	if d := look(day); !d.MissingAt.IsZero() || d.Error != "" {
		t.Errorf("%+v", d)
	}
	r.zone.set(shop)
	look(day)
	if d := look(4 * day); d.Status != record.DomainVerified { // of two looks one may have been a mistake
		t.Errorf("%+v", d)
	}
	r.zone.fail(errors.New("refused")) // which is no third
	look(time.Hour)
	r.zone.set(shop)
	if d := look(time.Hour); d.Status != record.DomainFailed || r.holder(shop) != "" || !strings.Contains(d.Error, "since") {
		t.Errorf("%+v", d)
	}
	r.zone.set(shop, token)
	r.becomes(caller, "app-1", shop, api.DomainVerified)
}

// Another workspace need not wait until that time is over, once it has proven the name.
func TestAProofThatIsGoneGivesWay(t *testing.T) {
	r := newRig(t, 1, false)
	mine := r.must(caller, "app-1", shop)
	r.zone.set(shop, mine.DNS[0].Value)
	r.becomes(caller, "app-1", shop, api.DomainVerified)
	r.zone.set(shop, "sold")
	r.becomes(caller, "app-1", shop, api.DomainVerified)
	theirs := r.must(stranger, "app-x", shop)
	r.becomes(stranger, "app-x", shop, api.DomainPending)
	if r.holder(shop) != "app-1" {
		t.Error("it was taken without a proof")
	}
	r.zone.set(shop, theirs.DNS[0].Value)
	r.becomes(stranger, "app-x", shop, api.DomainVerified)
}

func TestALookThatIsAskedForTooSoon(t *testing.T) {
	r := newRig(t, 1, false)
	r.must(caller, "app-1", shop)
	r.becomes(caller, "app-1", shop, api.DomainPending)
	_, err := r.domains().Verify(t.Context(), caller, "app-1", shop)
	want(t, err, apierror.ERateLimited, "looked a moment ago")
	if r.zone.times(shop) != 1 {
		t.Error("DNS was asked all the same")
	}
}

func TestALookThatTakesTooLong(t *testing.T) {
	r := newRig(t, 1, false, func(c *Config) { c.Lookup = 20 * time.Millisecond })
	r.must(caller, "app-1", shop)
	r.zone.during(func(ctx context.Context) { <-ctx.Done() })
	r.zone.fail(context.DeadlineExceeded)
	if d := r.becomes(caller, "app-1", shop, api.DomainPending); d.Error != "the DNS servers of this name do not answer" {
		t.Errorf("%+v", d)
	}
}

// The claim is removed and made again while DNS is asked: what was found is not about
// the new one.
func TestALookOfAClaimThatIsReplaced(t *testing.T) {
	r := newRig(t, 1, false)
	d := r.must(caller, "app-1", shop)
	r.zone.set(shop, d.DNS[0].Value)
	var once sync.Once
	r.zone.during(func(context.Context) {
		once.Do(func() {
			if err := r.domains().Delete(t.Context(), caller, "app-1", shop); err != nil {
				t.Error(err)
			}
			r.must(caller, "app-1", shop)
		})
	})
	_, err := r.verify(caller, "app-1", shop)
	want(t, err, apierror.ENotFound, "not found")
	if r.holder(shop) != "" {
		t.Error("the new claim is proven by the old one's record")
	}
}

// The leader is lost while it looks: the next one looks again, and commits it once.
func TestALeaderThatIsLostWhileItLooks(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, true)
	d := r.must(caller, "app-1", shop)
	r.zone.set(shop, d.DNS[0].Value)
	first := r.Leader()
	var once sync.Once
	r.zone.during(func(context.Context) { once.Do(func() { r.Cut(first) }) })
	r.clock.add(time.Minute)
	testcluster.Await(t, "a proof by the next leader", func() bool {
		for _, rep := range r.Replicas {
			if rep == first {
				continue
			}
			if _, ok := Verified(rep.Store.View(), shop); ok {
				return true
			}
		}
		return false
	})
	if _, ok := Verified(first.Store.View(), shop); ok {
		t.Error("a leader that was cut off has committed")
	}
	if r.zone.times(shop) < 2 {
		t.Error("nobody looked again")
	}
}

func TestTheStateOfACertificate(t *testing.T) {
	now := time.Now()
	r := newRig(t, 1, false)
	d := r.domains()
	row := func(c record.DomainTLS) *record.Domain {
		return &record.Domain{Name: shop, Status: record.DomainVerified, Certificate: c}
	}
	d.cfg.Authority = ACME
	for name, c := range map[string]struct {
		row  *record.Domain
		want api.CertificateStatus
		err  string
	}{
		"to come":         {row(record.DomainTLS{}), api.CertificatePending, ""},
		"refused":         {row(record.DomainTLS{Error: "no"}), api.CertificateFailed, "no"},
		"there":           {row(record.DomainTLS{ExpiresAt: now.Add(day)}), api.CertificateIssued, ""},
		"not renewed":     {row(record.DomainTLS{ExpiresAt: now.Add(day), Error: "no"}), api.CertificateIssued, "no"},
		"over":            {row(record.DomainTLS{ExpiresAt: now.Add(-day), Error: "no"}), api.CertificateFailed, "no"},
		"of a mere claim": {&record.Domain{Status: record.DomainPending}, api.CertificateNone, ""},
	} {
		if got := d.certificate(c.row); got.Status != c.want || got.Error != c.err {
			t.Errorf("%s: %+v", name, got)
		}
	}
	d.cfg.Authority = Development
	if got := d.certificate(row(record.DomainTLS{})); got.Status != api.CertificateIssued {
		t.Errorf("%+v", got)
	}
	d.cfg.Authority, d.cfg.Covered = NoAuthority, func(name string) bool { return name == shop }
	if got := d.certificate(row(record.DomainTLS{})); got.Status != api.CertificateIssued {
		t.Errorf("%+v", got)
	}
}

// Who asks for a look after an order that failed wants another order, but not at once.
func TestAnOrderThatIsAskedFor(t *testing.T) {
	r := newRig(t, 1, false)
	d := r.must(caller, "app-1", shop)
	r.zone.set(shop, d.DNS[0].Value)
	r.becomes(caller, "app-1", shop, api.DomainVerified)
	set := func(tried, next time.Duration) {
		r.Update(func(tx *raftstore.Tx) error {
			c := r.row(shop).Clone()
			c.Certificate = record.DomainTLS{Error: "no", TriedAt: r.clock.Now().Add(tried), NextAt: r.clock.Now().Add(next)}
			raftstore.Put(tx, record.Domains, c)
			return nil
		})
	}
	set(-time.Minute, day)
	r.becomes(caller, "app-1", shop, api.DomainVerified)
	if c := r.row(shop).Certificate; !c.NextAt.After(r.clock.Now()) {
		t.Errorf("too soon: %+v", c)
	}
	set(-time.Hour, day)
	r.becomes(caller, "app-1", shop, api.DomainVerified)
	if c := r.row(shop).Certificate; c.NextAt.After(r.clock.Now()) {
		t.Errorf("not at all: %+v", c)
	}
}
