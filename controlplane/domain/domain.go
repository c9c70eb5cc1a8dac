// Package domain is the life of the host names that workspaces bring for their apps: a
// workspace claims one, proves by a TXT record in DNS that it is its own, and has its
// app served there. A loop on the leader looks for the records of those that are
// pending, and takes back those whose record is gone for long. Package edge routes
// requests to what is verified, package certs has the certificates. DESIGN.md says what
// is relied on.
package domain

import (
	"cmp"
	"context"
	"net"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Limits of how many domains there are.
const (
	MaxPerApp       = 10
	MaxPerWorkspace = 50
)

// Resolver finds TXT records. A *net.Resolver is one.
type Resolver interface {
	LookupTXT(ctx context.Context, name string) ([]string, error)
}

// Authority is what makes the certificates of domains.
type Authority int

// The authorities. Without one domains are routed, and have no TLS.
const (
	NoAuthority Authority = iota
	ACME                  // certificates are ordered, and are in the store
	Development           // every replica makes them, when they are asked for
)

// Config is what domains need beside the core. A time of zero is its default.
type Config struct {
	Resolver Resolver // nil: the system's

	// URL is where the app of a domain is.
	URL func(name string) string
	// Target is the host name that a domain leads to; nil: apps have none.
	Target func(appID string) string
	// Suffixes are those of the service's own names, which with all below them are no
	// domains; Own is whether another name is the service's.
	Suffixes []string
	Own      func(name string) bool

	Authority Authority
	// Covered is whether the service's own certificate covers a name, which then needs
	// no other; nil: it never does.
	Covered func(name string) bool

	Lookup       time.Duration // of one look into DNS; default 5 s
	Again        time.Duration // between two looks that somebody asks for; default 2 s
	FirstLook    time.Duration // after a claim; doubled after each look, to LastLook; default a minute
	LastLook     time.Duration // default an hour
	PendingFor   time.Duration // until a claim that is not proven has failed; default 7 days
	VerifiedLook time.Duration // between two looks for the record of a verified domain; default 6 hours
	MissingLook  time.Duration // likewise, while it is gone; default an hour
	MissingFor   time.Duration // until it is verified no more; default 3 days
	OrderAgain   time.Duration // from an order of a certificate until another can be asked for; default 10 minutes
}

func (c *Config) defaults() {
	if c.Resolver == nil {
		c.Resolver = net.DefaultResolver
	}
	const day = 24 * time.Hour
	c.Lookup = cmp.Or(c.Lookup, timescale.Limit(5*time.Second))
	c.Again = cmp.Or(c.Again, 2*time.Second)
	c.FirstLook = cmp.Or(c.FirstLook, time.Minute)
	c.LastLook = cmp.Or(c.LastLook, time.Hour)
	c.PendingFor = cmp.Or(c.PendingFor, 7*day)
	c.VerifiedLook = cmp.Or(c.VerifiedLook, 6*time.Hour)
	c.MissingLook = cmp.Or(c.MissingLook, time.Hour)
	c.MissingFor = cmp.Or(c.MissingFor, 3*day)
	c.OrderAgain = cmp.Or(c.OrderAgain, 10*time.Minute)
}

// Domains are the use cases of domains.
type Domains struct {
	core *core.Core
	cfg  Config
}

// New makes the use cases.
func New(c *core.Core, cfg Config) *Domains {
	cfg.defaults()
	return &Domains{core: c, cfg: cfg}
}

// Verified finds the domain that a host name is, in the form of Name.
func Verified(r raftstore.Reader, name string) (*record.Domain, bool) {
	rows := raftstore.Find(r, record.Domains, "verified", name)
	if len(rows) == 0 {
		return nil, false
	}
	return rows[0], true
}

// The errors of a claim.
var (
	errReserved = &apierror.Error{Code: apierror.EInvalid, Message: "domain is reserved", Detail: "it is a name of the service itself"}
	errExists   = &apierror.Error{Code: apierror.EConflict, Message: "domain exists", Detail: "this app has it already"}
	errOtherApp = &apierror.Error{Code: apierror.EConflict, Message: "domain is in use", Detail: "another app of this workspace has it: remove it there first"}
	errTaken    = &apierror.Error{Code: apierror.EConflict, Message: "domain is taken", Detail: "another workspace has verified it"}
)

// tokenRandom is the length of a token in characters of five random bits each.
const (
	tokenPrefix = "berth-verify-"
	tokenRandom = 32
	idRandom    = 20
)

// Create claims a name for an app.
func (s *Domains) Create(ctx context.Context, c core.Caller, appID string, in api.CreateAppDomain, i core.Idempotency) (api.AppDomain, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.AppDomain{}, err
	}
	name, err := Name(in.Domain)
	if err != nil {
		return api.AppDomain{}, err
	}
	if s.reserved(name) {
		return api.AppDomain{}, errReserved
	}
	return core.Once(ctx, s.core, c, "POST /v1/apps/"+appID+"/domains", i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.AppDomain, error) {
			d, ok := raftstore.Get(view, record.Domains, key.ResourceID)
			if !ok {
				return api.AppDomain{}, core.ErrKeyGone("domain")
			}
			return s.show(d), nil
		},
		func(keyID string) (out api.AppDomain, err error) {
			d := &record.Domain{
				Meta: record.Meta{ID: "dom-" + core.RandomText(idRandom)}, WorkspaceID: c.WorkspaceID, AppID: appID, Name: name,
				Token: tokenPrefix + core.RandomText(tokenRandom), Status: record.DomainPending,
			}
			d.Since = s.core.Clock().UTC()
			d.NextCheckAt = d.Since.Add(s.cfg.FirstLook)
			err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
				if err := s.admit(tx, c, d); err != nil {
					return err
				}
				d := d.Clone()
				raftstore.Put(tx, record.Domains, d)
				out = s.show(d)
				return core.ClaimAnswer(tx, s.core, i, keyID, d.ID, out)
			})
			return out, err
		})
}

// admit refuses a claim that the caller's workspace may not make.
func (s *Domains) admit(tx *raftstore.Tx, c core.Caller, d *record.Domain) error {
	if err := core.MayCreate(tx, c); err != nil {
		return err
	}
	if _, err := app.Owned(tx, c, d.AppID); err != nil {
		return err
	}
	if mine, ok := claimOf(tx, c.WorkspaceID, d.Name); ok {
		if mine.AppID == d.AppID {
			return errExists
		}
		return errOtherApp
	}
	// Whoever has lost the record has to give way to who proves the name now.
	if holder, ok := Verified(tx, d.Name); ok && holder.MissingAt.IsZero() {
		return errTaken
	}
	for _, of := range []struct {
		index, value string
		most         int
	}{{"app", d.AppID, MaxPerApp}, {"workspace", c.WorkspaceID, MaxPerWorkspace}} {
		if n := len(raftstore.Find(tx, record.Domains, of.index, of.value)); n >= of.most {
			return &apierror.Error{
				Code: apierror.ERateLimited, Message: "max domains reached", Detail: "of one " + of.index, Fields: map[string]any{"max": of.most, "active": n},
			}
		}
	}
	return nil
}

func claimOf(r raftstore.Reader, workspaceID, name string) (*record.Domain, bool) {
	rows := raftstore.Find(r, record.Domains, "claim", workspaceID+"/"+name)
	if len(rows) == 0 {
		return nil, false
	}
	return rows[0], true
}

// owned finds a domain of an app of the caller's workspace.
func owned(r raftstore.Reader, c core.Caller, appID, domain string) (*record.Domain, error) {
	if _, err := app.Owned(r, c, appID); err != nil {
		return nil, err
	}
	name, err := Name(domain)
	if err != nil {
		return nil, apierror.NotFound()
	}
	d, ok := claimOf(r, c.WorkspaceID, name)
	if !ok || d.AppID != appID {
		return nil, apierror.NotFound()
	}
	return d, nil
}

// Get returns one domain of an app.
func (s *Domains) Get(ctx context.Context, c core.Caller, appID, domain string) (api.AppDomain, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return api.AppDomain{}, err
	}
	d, err := owned(view, c, appID, domain)
	if err != nil {
		return api.AppDomain{}, err
	}
	return s.show(d), nil
}

// List returns a page of an app's domains, newest first.
func (s *Domains) List(ctx context.Context, c core.Caller, appID string, o core.ListOptions) (page []api.AppDomain, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	if _, err := app.Owned(view, c, appID); err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.Find(view, record.Domains, "app", appID), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, s.show), next, nil
}

// Delete gives a domain up: it is routed no more, and whoever proves it can have it.
func (s *Domains) Delete(ctx context.Context, c core.Caller, appID, domain string) error {
	if err := c.RequireWorkspace(); err != nil {
		return err
	}
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		d, err := owned(tx, c, appID, domain)
		if err != nil {
			return err
		}
		raftstore.Delete(tx, record.Domains, d.ID)
		return nil
	})
}
