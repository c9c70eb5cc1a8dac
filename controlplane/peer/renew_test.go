package peer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/nodecert"
)

// renewerOf returns a renewer that renews a node's certificate at the rig's port.
func (r *rig) renewerOf(n *pki.Node) *nodecert.Renewer {
	return &nodecert.Renewer{
		Certificate: n.Certificate(), Clock: func() time.Time { return r.now() }, Jitter: func() float64 { return 0 }, Log: slog.New(slog.DiscardHandler),
		Ask: func(ctx context.Context, csr []byte) ([]byte, error) {
			return hostapi.AskRenewal(ctx, []string{"127.0.0.1:1", r.address}, n.ClientTLS(pki.AnyOf(pki.RoleReplica)), csr)
		},
	}
}

func TestHostsAndRoutersRenewByTheirPresentCertificate(t *testing.T) {
	r := newRig(t)
	for _, role := range []pki.Role{pki.RoleHost, pki.RoleRouter} {
		n := r.node(t, role, "n1")
		renewer, before := r.renewerOf(n), n.Leaf()
		renewer.Check(t.Context())
		if n.Leaf() != before {
			t.Fatalf("%s: renewed on its first day", role)
		}
		later := time.Now().Add(21 * 24 * time.Hour) // beyond two thirds of 30 days
		r.now = func() time.Time { return later }
		renewer.Check(t.Context())
		after := n.Leaf()
		r.now = time.Now
		if after == before || after.Subject.CommonName != string(role)+":n1" || !after.NotAfter.After(later.Add(29*24*time.Hour)) {
			t.Fatalf("%s: %s until %s", role, after.Subject, after.NotAfter)
		}
		if before.PublicKey.(*ecdsa.PublicKey).Equal(after.PublicKey) {
			t.Errorf("%s: the key is the same", role)
		}
	}
}

// A renewal ignores everything in the request except the key.
func TestARenewalIsForTheSameIdentity(t *testing.T) {
	r := newRig(t)
	n := r.node(t, pki.RoleHost, "h1")
	csr := csrOf(t, "replica:a", "10.0.0.1")
	cert, err := hostapi.AskRenewal(t.Context(), []string{r.address}, n.ClientTLS(pki.AnyOf(pki.RoleReplica)), csr)
	if err != nil {
		t.Fatal(err)
	}
	leaf := parse(t, cert)
	if leaf.Subject.CommonName != "host:h1" || len(leaf.IPAddresses) != 0 || len(leaf.DNSNames) != 1 {
		t.Errorf("%s, %v, %v", leaf.Subject, leaf.IPAddresses, leaf.DNSNames)
	}
	for name, csr := range map[string]string{"nothing": "", "noise": "-----BEGIN X-----", "a certificate": string(cert)} {
		if _, err := hostapi.AskRenewal(t.Context(), []string{r.address}, n.ClientTLS(pki.AnyOf(pki.RoleReplica)), []byte(csr)); err == nil || !strings.Contains(err.Error(), "400") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnExpiredCertificateRenewsNothing(t *testing.T) {
	r := newRig(t)
	cert, key, err := r.ca.Issue(pki.Identity{Role: pki.RoleHost, Name: "h1"}, nil, time.Now().Add(-60*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	n, err := pki.ParseNode(r.ca.CertPEM(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	before := n.Leaf()
	r.renewerOf(n).Check(t.Context())
	if n.Leaf() != before {
		t.Error("renewed")
	}
}

func TestWhoWasRemovedRenewsNothing(t *testing.T) {
	r := newRig(t)
	n := r.node(t, pki.RoleRouter, "r1")
	r.Trust(func(id pki.Identity, _ *x509.Certificate) bool { return id.Role != pki.RoleRouter || id.Name != "r1" })
	if _, err := hostapi.AskRenewal(t.Context(), []string{r.address}, n.ClientTLS(pki.AnyOf(pki.RoleReplica)), csrOf(t, "router:r1")); err == nil {
		t.Error("renewed")
	}
	other := r.node(t, pki.RoleRouter, "r2")
	if _, err := hostapi.AskRenewal(t.Context(), []string{r.address}, other.ClientTLS(pki.AnyOf(pki.RoleReplica)), csrOf(t, "router:r2")); err != nil {
		t.Error(err)
	}
}

// While the CA is exchanged after a theft of its key, whoever has that key can sign certificates
// of any member's name. By these no certificate of the new CA can be had, if the operator says
// so, and none without a trace.
func TestACertificateOfAnotherCAIsRenewedOnlyIfTheOperatorWantsIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.InitCluster(dir, []pki.Member{{ID: "a", Address: "127.0.0.1:7001"}}, "ann", []byte("seal"), time.Now()); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "a")
	ca, err := pki.LoadCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, old := newRigOf(t, ca, handshakeTimeout), ca.Signs()
	member := r.node(t, pki.RoleHost, "h1")
	next, _, err := pki.AddAuthority(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	renewed := func(n *pki.Node) error {
		t.Helper()
		if _, err := ca.Reload(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Port.node.Certificate().Trust().Replace(ca.CertPEM()); err != nil {
			t.Fatal(err)
		}
		_, err := hostapi.AskRenewal(t.Context(), []string{r.address}, n.ClientTLS(pki.AnyOf(pki.RoleReplica)), csrOf(t, "host:h1"))
		return err
	}
	if err := renewed(member); err != nil || strings.Contains(r.renewals.String(), "another CA") {
		t.Errorf("before the exchange: %v, %s", err, &r.renewals)
	}
	if _, err := pki.UseAuthority(dir, next); err != nil {
		t.Fatal(err)
	}
	if err := renewed(member); err != nil || !strings.Contains(r.renewals.String(), "a certificate of another CA is renewed") || !strings.Contains(r.renewals.String(), "identity=host:h1 issuer="+old) {
		t.Errorf("as it is: %v, %s", err, &r.renewals)
	}
	for range 2 {
		if _, err := pki.UseAuthorityAlone(dir, next); err != nil {
			t.Fatal(err)
		}
		if err := renewed(member); err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), "of another CA are not renewed") {
			t.Errorf("after a theft: %v", err)
		}
	}
	if !strings.Contains(r.renewals.String(), "a certificate of another CA is not renewed") {
		t.Error(&r.renewals)
	}
	if err := renewed(r.node(t, pki.RoleHost, "h1")); err != nil { // by hand
		t.Errorf("one of the new CA: %v", err)
	}
	if changed, err := pki.UseAuthority(dir, next); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if err := renewed(member); err != nil {
		t.Errorf("as it is again: %v", err)
	}
}

// csrOf returns a certificate request that asks for a name and addresses.
func csrOf(t *testing.T, commonName string, addresses ...string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := &x509.CertificateRequest{Subject: pkix.Name{CommonName: commonName}}
	for _, a := range addresses {
		request.IPAddresses = append(request.IPAddresses, net.ParseIP(a))
		request.DNSNames = append(request.DNSNames, "a.replica.berth")
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, request, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func parse(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certPEM)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}
