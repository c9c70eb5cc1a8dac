package httpapi

import (
	"context"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/domain"
)

var _ AppDomains = (*domain.Domains)(nil)

// fakeDomains has one domain of "app-1", and notes what it is asked.
type fakeDomains struct {
	names []string
	key   core.Idempotency
	limit int
}

func (f *fakeDomains) one(appID, name string) (api.AppDomain, error) {
	f.names = append(f.names, name)
	if appID != "app-1" || name == "none.example.com" {
		return api.AppDomain{}, apierror.NotFound()
	}
	return exampleNewDomain, nil
}

func (f *fakeDomains) Create(_ context.Context, _ core.Caller, appID string, in api.CreateAppDomain, i core.Idempotency) (api.AppDomain, error) {
	f.key = i
	return f.one(appID, in.Domain)
}

func (f *fakeDomains) Get(_ context.Context, _ core.Caller, appID, name string) (api.AppDomain, error) {
	return f.one(appID, name)
}

func (f *fakeDomains) List(_ context.Context, _ core.Caller, appID string, o core.ListOptions) ([]api.AppDomain, string, error) {
	f.limit = o.Limit
	d, err := f.one(appID, "")
	return []api.AppDomain{d}, "next", err
}

func (f *fakeDomains) Verify(_ context.Context, _ core.Caller, appID, name string) (api.AppDomain, error) {
	if _, err := f.one(appID, name); err != nil {
		return api.AppDomain{}, err
	}
	return exampleDomain, nil
}

func (f *fakeDomains) Delete(_ context.Context, _ core.Caller, appID, name string) error {
	_, err := f.one(appID, name)
	return err
}

func TestRoutesOfDomains(t *testing.T) {
	f := &fakeDomains{}
	r := newRig(t, func(c *Config) { c.Domains = f })
	const all = "/v1/apps/app-1/domains"
	long := strings.Repeat("a.", 110) + "example.com"
	for _, c := range []struct {
		method, target, body string
		status               int
		has                  string
	}{
		{"POST", all, `{"domain":"shop.example.com"}`, 201, `"dns":[{"type":"TXT","name":"_berth.shop.example.com"`},
		{"POST", all, `{"domain":7}`, 400, `"invalid json"`},
		{"POST", all, ``, 411, ``},
		{"POST", "/v1/apps/no/domains", `{"domain":"shop.example.com"}`, 404, `"not found"`},
		{"GET", all + "?limit=7", ``, 200, `[{"domain":"shop.example.com"`},
		{"GET", all + "/" + long, ``, 200, `"certificate":{"status":"none"`},
		{"GET", all + "/b%C3%BCcher.example.com", ``, 200, ``},
		{"GET", all + "/none.example.com", ``, 404, `"not found"`},
		{"GET", "/v1/apps/%2F/domains", ``, 404, `"not found"`},
		{"POST", all + "/shop.example.com/verify", `{}`, 200, `"status":"verified"`},
		{"POST", all + "/shop.example.com/verify", ``, 411, ``},
		{"POST", all + "/shop.example.com/verify", `[]`, 400, `"invalid json"`},
		{"DELETE", all + "/shop.example.com", ``, 204, ``},
		{"DELETE", all + "/none.example.com", ``, 404, `"not found"`},
	} {
		w := r.call(c.method, c.target, "tenant", c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) {
			t.Errorf("%s %.60s %s: %d %s, want %d %s", c.method, c.target, c.body, w.Code, w.Body, c.status, c.has)
		}
	}
	if got := strings.Join(f.names, " "); !strings.Contains(got, long) || !strings.Contains(got, "bücher.example.com") || f.limit != 7 {
		t.Errorf("%q %d", got, f.limit)
	}
	if r.call("POST", all, "tenant", `{"domain":"shop.example.com"}`, api.HeaderIdempotencyKey, "k"); f.key.Key != "k" {
		t.Errorf("%+v", f.key)
	}
	without := newRig(t, func(c *Config) { c.Domains = nil })
	for _, rt := range appDomainRoutes() {
		body := ""
		if rt.method == post {
			body = "{}"
		}
		if w := without.call(rt.method, strings.NewReplacer(":id", "app-1", ":domain", "shop.example.com").Replace(rt.path), "tenant", body); w.Code != 404 {
			t.Errorf("%s: %d %s", rt.doc.id, w.Code, w.Body)
		}
	}
}
