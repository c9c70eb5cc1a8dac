package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/httpapi"
)

// planeDomains find the proof of a domain that begins with "proven" at the second look.
type planeDomains struct {
	httpapi.AppDomains
	*plane
	domains []api.AppDomain
}

func (p *planeDomains) one(name string) (*api.AppDomain, error) {
	i := slices.IndexFunc(p.domains, func(d api.AppDomain) bool { return d.Domain == name })
	if i < 0 {
		return nil, apierror.NotFound()
	}
	return &p.domains[i], nil
}

func (p *planeDomains) Create(_ context.Context, _ core.Caller, appID string, in api.CreateAppDomain, _ core.Idempotency) (api.AppDomain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !strings.Contains(in.Domain, ".") {
		return api.AppDomain{}, apierror.Invalid("invalid domain", "it has one label alone")
	}
	d := api.AppDomain{
		Domain: in.Domain, AppID: appID, Status: api.DomainPending, URL: "https://" + in.Domain + "/", CreatedAt: api.Time{Time: time.Now()},
		DNS:         []api.DNSRecord{{Type: "TXT", Name: "_berth." + in.Domain, Value: "secret-of-dns"}, {Type: "CNAME", Name: in.Domain, Value: appID + ".app.test"}},
		Certificate: api.DomainCertificate{Status: api.CertificateNone},
	}
	p.domains = append(p.domains, d)
	return d, nil
}

func (p *planeDomains) Get(_ context.Context, _ core.Caller, _, name string) (api.AppDomain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, err := p.one(name)
	if err != nil {
		return api.AppDomain{}, err
	}
	d.Certificate.Status = api.CertificateIssued
	return *d, nil
}

func (p *planeDomains) List(context.Context, core.Caller, string, core.ListOptions) ([]api.AppDomain, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.domains), "", nil
}

func (p *planeDomains) Verify(_ context.Context, _ core.Caller, _, name string) (api.AppDomain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, err := p.one(name)
	if err != nil {
		return api.AppDomain{}, err
	}
	if strings.HasPrefix(name, "proven") && d.Error != "" {
		d.Status, d.Error, d.Certificate.Status = api.DomainVerified, "", api.CertificatePending
	} else {
		d.Error = "there is no TXT record _berth." + name
	}
	return *d, nil
}

func (p *planeDomains) Delete(_ context.Context, _ core.Caller, _, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.one(name); err != nil {
		return err
	}
	p.domains = slices.DeleteFunc(p.domains, func(d api.AppDomain) bool { return d.Domain == name })
	return nil
}
