package domain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// seen is what one look into DNS has found.
type seen struct {
	values []string
	err    string // why nothing is known; "": values are all that there are
}

// look asks for the TXT records that prove a name. The name ends with a dot, so that no
// resolver tries it below the domains of its own network.
func (s *Domains) look(ctx context.Context, name string) seen {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Lookup)
	defer cancel()
	values, err := s.cfg.Resolver.LookupTXT(ctx, proofLabel+"."+name+".")
	var of *net.DNSError
	switch {
	case err == nil:
		return seen{values: values}
	case errors.As(err, &of) && of.IsNotFound:
		return seen{}
	case ctx.Err() != nil || of != nil && of.IsTimeout:
		return seen{err: "the DNS servers of this name do not answer"}
	}
	return seen{err: "the DNS servers of this name answer with an error"} // not err's text: it names servers of ours
}

// Verify looks into DNS now. What it finds is in the answer: a domain whose record is
// not there is pending, for another while if it had failed.
func (s *Domains) Verify(ctx context.Context, c core.Caller, appID, domain string) (api.AppDomain, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return api.AppDomain{}, err
	}
	d, err := owned(view, c, appID, domain)
	if err != nil {
		return api.AppDomain{}, err
	}
	if wait := d.CheckedAt.Add(s.cfg.Again).Sub(s.core.Clock()); wait > 0 && wait <= s.cfg.Again {
		return api.AppDomain{}, &apierror.Error{
			Code: apierror.ERateLimited, Message: "looked a moment ago", Detail: "DNS was asked within the last " + s.cfg.Again.String(), RetryAfter: wait,
		}
	}
	saw := s.look(ctx, d.Name)
	if ctx.Err() != nil {
		return api.AppDomain{}, core.StoreError(context.Cause(ctx))
	}
	taken := false
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		now, err := owned(tx, c, appID, domain)
		if err != nil {
			return err
		}
		if now.ID != d.ID { // removed and claimed again meanwhile: its token is another
			return apierror.NotFound()
		}
		if now.Status == record.DomainFailed {
			now = now.Clone()
			now.Status, now.Since, now.Looks, now.MissingAt = record.DomainPending, s.core.Clock().UTC(), 0, time.Time{}
		}
		after, conflict := s.settle(tx, now, saw)
		s.orderSoon(after)
		taken = conflict
		raftstore.Put(tx, record.Domains, after)
		return nil
	})
	if err != nil {
		return api.AppDomain{}, err
	}
	if taken {
		return api.AppDomain{}, errTaken
	}
	written, ok := raftstore.Get(s.core.Store.View(), record.Domains, d.ID)
	if !ok {
		return api.AppDomain{}, apierror.NotFound()
	}
	return s.show(written), nil
}

// orderSoon lets a certificate that could not be had be ordered again, now that its
// owner has reason to think that it can.
func (s *Domains) orderSoon(d *record.Domain) {
	c := &d.Certificate
	if now := s.core.Clock(); d.Status == record.DomainVerified && c.Error != "" && now.Sub(c.TriedAt) >= s.cfg.OrderAgain && now.Before(c.NextAt) {
		c.NextAt = now.UTC()
	}
}

// What a domain's error says.
const (
	whyTaken     = "another workspace has verified this domain, and its TXT record is there"
	whyTakenOver = "another workspace has proven this domain, whose TXT record for this one is gone"
)

func (s *Domains) whyAbsent(d *record.Domain, saw seen) string {
	if len(saw.values) > 0 {
		return "the TXT record " + proofLabel + "." + d.Name + " has another value"
	}
	return "there is no TXT record " + proofLabel + "." + d.Name
}

// missingLooks is how often a record has to be looked for in vain until it is gone,
// however much time a clock says has passed.
const missingLooks = 3

// settle returns what becomes of a domain by what was seen. It takes the name from
// another workspace whose record is not there any more. taken reports that another one
// has it with good reason.
func (s *Domains) settle(tx *raftstore.Tx, before *record.Domain, saw seen) (d *record.Domain, taken bool) {
	d = before.Clone()
	now := s.core.Clock().UTC()
	d.CheckedAt = now
	verified := d.Status == record.DomainVerified
	if !verified || saw.err == "" {
		d.Looks++
	}
	switch {
	case saw.err != "":
		d.Error = saw.err // whoever has proven it keeps it: nothing says that the record is gone
		d.NextCheckAt = now.Add(s.pause(d))
	case slices.Contains(trimmed(saw.values), d.Token):
		holder, held := Verified(tx, d.Name)
		if held && holder.ID != d.ID {
			if slices.Contains(trimmed(saw.values), holder.Token) {
				d.Error, taken = whyTaken, true
				d.NextCheckAt = now.Add(s.pause(d))
				break
			}
			raftstore.Put(tx, record.Domains, failed(holder, whyTakenOver))
		}
		if !verified {
			d.Status, d.VerifiedAt, d.Certificate = record.DomainVerified, now, record.DomainTLS{}
		}
		d.Error, d.Looks, d.MissingAt = "", 0, time.Time{}
		d.NextCheckAt = now.Add(s.cfg.VerifiedLook)
		return d, false
	case verified:
		if d.MissingAt.IsZero() {
			d.MissingAt, d.Looks = now, 1
		}
		d.Error = s.whyAbsent(d, saw)
		if now.Sub(d.MissingAt) >= s.cfg.MissingFor && d.Looks >= missingLooks {
			return failed(d, fmt.Sprintf("%s since %s", d.Error, d.MissingAt.Format(time.RFC3339))), false
		}
		d.NextCheckAt = now.Add(s.cfg.MissingLook)
	default:
		d.Error = s.whyAbsent(d, saw)
		d.NextCheckAt = now.Add(s.pause(d))
	}
	if d.Status == record.DomainPending && now.Sub(d.Since) >= s.cfg.PendingFor {
		return failed(d, d.Error+": given up after "+s.cfg.PendingFor.String()), taken
	}
	return d, taken
}

// failed is a domain that is looked for no more.
func failed(before *record.Domain, why string) *record.Domain {
	d := before.Clone()
	d.Status, d.Error, d.NextCheckAt, d.Certificate = record.DomainFailed, why, time.Time{}, record.DomainTLS{}
	return d
}

// pause is how long a domain is left alone after a look: ever longer while it is
// pending.
func (s *Domains) pause(d *record.Domain) time.Duration {
	if d.Status == record.DomainVerified {
		return s.cfg.MissingLook
	}
	wait := s.cfg.FirstLook
	for range min(d.Looks-1, 30) {
		if wait = 2 * wait; wait >= s.cfg.LastLook {
			return s.cfg.LastLook
		}
	}
	return wait
}

// trimmed are values without what forms of providers add.
func trimmed(values []string) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = strings.Trim(strings.TrimSpace(v), `"`)
	}
	return out
}
