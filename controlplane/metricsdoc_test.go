package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/telemetry/telemetrytest"
)

// What a replica with everything exports, and what docs/monitoring.md says it does.
func TestDocumentedMetricsAreTheMetrics(t *testing.T) {
	s := runRouter(t, func(c *Config) {
		c.DBDevCA, c.AppSuffix = t.TempDir(), "apps.test"
	})
	awaitLeader(t, s)
	_, strangers := raw(t, http.MethodGet, "http://"+s.Addr()+"/metrics", "", "")
	_, operators := raw(t, http.MethodGet, "http://"+s.Addr()+"/metrics", adminToken, "")
	if name := "berth_usage_month_usd"; strings.Contains(strangers, name) || !strings.Contains(operators, name) || !strings.Contains(strangers, "berth_raft_") {
		t.Error("what operators are shown is what everybody is")
	}
	all := prometheus.NewRegistry()
	all.MustRegister(s.metrics.registry, s.metrics.operators)
	telemetrytest.Exported(t, all, "../docs/monitoring.md", "### Replicas", "### Routers")
}

// ending are certificates by name, and when they end.
type ending map[string]time.Time

// GetCertificate implements certs.Source, for names as in certificates.
func (e ending) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	end, ok := e[hello.ServerName]
	if !ok {
		return nil, errors.New("there is none yet")
	}
	return &tls.Certificate{Leaf: &x509.Certificate{NotAfter: end}}, nil
}

func TestAReplicaTellsWhenItsCertificatesEnd(t *testing.T) {
	running := runRouter(t, func(c *Config) { c.DBDevCA = t.TempDir() })
	awaitLeader(t, running)
	soon, later := time.Now().Add(time.Hour), time.Now().Add(24*time.Hour)
	acme := Config{ACMEDirectory: "https://acme.test", ACMETSIGName: "x", PreviewSuffix: "p.test", AppSuffix: "a.test", DBDomain: "DB.test"}
	for name, c := range map[string]struct {
		cfg  Config
		has  certificates
		want map[string]time.Time
	}{
		"plain HTTP":        {Config{}, certificates{}, nil},
		"files":             {Config{TLSCert: "x", DBDomain: "db.test", DBTLSCert: "y"}, certificates{ending{"": soon}, ending{"*.db.test": later}}, map[string]time.Time{"api": soon, "databases": later}},
		"ACME, which waits": {acme, certificates{ending{}, ending{}}, nil},
		"ACME": {
			acme, certificates{ending{"*.p.test": later, "*.a.test": soon, "*.db.test": later}, ending{"*.db.test": later}},
			map[string]time.Time{"api": soon, "databases": later},
		},
	} {
		s := &Server{me: running.me, cfg: c.cfg, certs: c.has}
		got := s.certificateEnds()
		if node, ca := time.Until(got["node"]), time.Until(got["ca"]); node < 29*24*time.Hour || ca < 9*365*24*time.Hour {
			t.Errorf("%s: the replica's own end in %s, %s", name, node, ca)
		}
		delete(got, "node")
		delete(got, "ca")
		if !maps.EqualFunc(got, c.want, time.Time.Equal) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	var shown []string
	families, err := running.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		switch f.GetName() {
		case "berth_certificate_remaining_seconds":
			for _, m := range f.GetMetric() {
				shown = append(shown, m.GetLabel()[0].GetValue())
			}
		case "berth_disk_free_bytes":
			if free := f.GetMetric()[0].GetGauge().GetValue(); free > 0 {
				shown = append(shown, "disk")
			}
		}
	}
	slices.Sort(shown)
	if !slices.Equal(shown, []string{"ca", "databases", "disk", "node"}) {
		t.Errorf("exported are %q", shown)
	}
}

// covering is a certificate for one name.
type covering string

// GetCertificate implements certs.Source.
func (c covering) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return &tls.Certificate{Leaf: &x509.Certificate{DNSNames: []string{string(c)}}}, nil
}

func TestAReplicaTellsWhenCertificatesOfDomainsEnd(t *testing.T) {
	running := runRouter(t, func(c *Config) { c.DBDevCA = t.TempDir() })
	awaitLeader(t, running)
	in := func(d time.Duration) time.Time { return time.Now().Add(d).UTC() }
	const day = 24 * time.Hour
	first := in(-day)
	rows := []*record.Domain{
		{Name: "later.test", Status: record.DomainVerified, Certificate: record.DomainTLS{ExpiresAt: in(80 * day)}},
		{Name: "first.test", Status: record.DomainVerified, Certificate: record.DomainTLS{ExpiresAt: first, Error: "no address"}},
		{Name: "left.test", Status: record.DomainVerified, Certificate: record.DomainTLS{ExpiresAt: in(-8 * day), Error: "no address"}},
		{Name: "covered.test", Status: record.DomainVerified, Certificate: record.DomainTLS{ExpiresAt: in(-2 * day), Error: "no address"}},
		{Name: "new.test", Status: record.DomainVerified, Certificate: record.DomainTLS{Error: "no address"}},
		{Name: "given-up.test", Status: record.DomainFailed, Certificate: record.DomainTLS{ExpiresAt: in(-2 * day), Error: "no address"}},
	}
	err := running.store.Update(t.Context(), func(tx *raftstore.Tx) error {
		for _, d := range rows {
			d.ID = d.Name
			before := *d
			before.Status = record.DomainPending
			raftstore.Put(tx, record.Domains, &before)
		}
		return nil
	})
	if err == nil {
		err = running.store.Update(t.Context(), func(tx *raftstore.Tx) error {
			for _, d := range rows {
				raftstore.Put(tx, record.Domains, d)
			}
			return nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{me: running.me, store: running.store, domainCerts: &certs.Domains{}, certs: certificates{public: covering("covered.test")}, cfg: Config{TLSCert: "x"}}
	if end, failing := s.certificateEnds()["domains"], s.failingRenewals(); !end.Equal(first) || failing != 2 {
		t.Errorf("the first ends at %s, want %s; %v are not renewed, want first.test and left.test", end, first, failing)
	}
	s.domainCerts = nil // domains have none
	if end, is := s.certificateEnds()["domains"]; is || s.failingRenewals() != 0 {
		t.Errorf("without ACME the first ends at %s, and %v are not renewed", end, s.failingRenewals())
	}
}
