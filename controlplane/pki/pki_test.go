package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func newCA(t *testing.T) *CA {
	t.Helper()
	ca, err := NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func newNode(t *testing.T, ca *CA, id Identity, addresses ...string) *Node {
	t.Helper()
	cert, key, err := ca.Issue(id, addresses, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	n, err := ParseNode(ca.CertPEM(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// handshake connects client to server and returns each side's error.
func handshake(t *testing.T, server, client *tls.Config) (id Identity, known bool, serverErr, clientErr error) {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan error, 1)
	srv := tls.Server(a, server)
	go func() {
		err := srv.Handshake()
		if err == nil {
			cs := srv.ConnectionState()
			id, known = PeerIdentity(&cs)
			_, err = srv.Write([]byte("x")) // in TLS 1.3 the server finishes before the client has verified it
		}
		a.Close()
		done <- err
	}()
	cli := tls.Client(b, client)
	clientErr = cli.Handshake()
	if clientErr == nil {
		_, clientErr = cli.Read(make([]byte, 1))
	}
	b.Close()
	serverErr = <-done
	return id, known, serverErr, clientErr
}

func TestMembersProveWhoTheyAre(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	replica := newNode(t, ca, Identity{RoleReplica, "a"}, "127.0.0.1")
	host := newNode(t, ca, Identity{RoleHost, "h1"})
	operator := newNode(t, ca, Identity{RoleOperator, "ann"})
	stranger := newNode(t, other, Identity{RoleReplica, "a"}, "127.0.0.1")

	for _, c := range []struct {
		name           string
		server, client *Node
		accept         func(Identity) error
		wantErr        string
	}{
		{"a host reaches a replica", replica, host, AnyOf(RoleReplica), ""},
		{"a replica reaches one host", host, replica, Exactly(Identity{RoleHost, "h1"}), ""},
		{"another host in its place is refused", host, replica, Exactly(Identity{RoleHost, "h2"}), "want host:h2"},
		{"a host in a replica's place is refused", host, replica, AnyOf(RoleReplica), "want a replica"},
		{"a server of another CA is refused", stranger, host, AnyOf(RoleReplica), "server certificate"},
		{"a client of another CA is refused", replica, newNode(t, other, Identity{RoleHost, "h1"}), AnyOf(RoleReplica), ""},
		{"an operator cannot serve", operator, replica, AnyOf(RoleOperator), "server certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			id, known, serverErr, clientErr := handshake(t, c.server.ServerTLS("x"), c.client.ClientTLS(c.accept, "x"))
			wrongClient := c.client.CAFingerprint() != c.server.CAFingerprint()
			switch {
			case c.wantErr != "":
				if clientErr == nil || !strings.Contains(clientErr.Error(), c.wantErr) {
					t.Fatalf("client error %v, want %q", clientErr, c.wantErr)
				}
			case wrongClient:
				if clientErr == nil && serverErr == nil {
					t.Fatal("handshake succeeded across authorities")
				}
			case serverErr != nil || clientErr != nil:
				t.Fatalf("server %v, client %v", serverErr, clientErr)
			case !known || id != c.client.Identity:
				t.Fatalf("server saw %v %v, want %v", id, known, c.client.Identity)
			}
		})
	}
}

func TestExpiredCertificateIsRefused(t *testing.T) {
	ca := newCA(t)
	cert, key, err := ca.Issue(Identity{RoleReplica, "a"}, nil, time.Now().Add(-leafValidity-time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	expired, err := ParseNode(ca.CertPEM(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	host := newNode(t, ca, Identity{RoleHost, "h1"})
	if _, _, _, clientErr := handshake(t, expired.ServerTLS("x"), host.ClientTLS(AnyOf(RoleReplica), "x")); clientErr == nil {
		t.Fatal("an expired server certificate was accepted")
	}
}

func TestSignCSRTakesOnlyTheKey(t *testing.T) {
	ca := newCA(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "replica:a"},
		DNSNames: []string{"replica.example", "a.replica.berth"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	signed, err := ca.SignCSR(csr, Identity{RoleHost, "h1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := parseCert(signed)
	if err != nil {
		t.Fatal(err)
	}
	if cert.Subject.CommonName != "host:h1" || len(cert.IPAddresses) != 0 || len(cert.DNSNames) != 1 || cert.DNSNames[0] != "h1.host.berth" || cert.IsCA {
		t.Fatalf("certificate has %v %v %v", cert.Subject, cert.DNSNames, cert.IPAddresses)
	}
}

func TestSignCSRRefusesBadInput(t *testing.T) {
	ca := newCA(t)
	t.Setenv("GODEBUG", "rsa1024min=0") // otherwise Go refuses to generate the weak key
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
	if err != nil {
		t.Fatal(err)
	}
	for name, csr := range map[string][]byte{
		"empty":       nil,
		"not PEM":     []byte("hello\x00"),
		"wrong block": ca.CertPEM(),
		"truncated":   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der[:40]}),
		"weak key":    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
	} {
		if _, err := ca.SignCSR(csr, Identity{RoleHost, "h1"}, time.Now()); !errors.Is(err, ErrCSR) {
			t.Errorf("%s: error %v, want ErrCSR", name, err)
		}
	}
}

func TestParseIdentity(t *testing.T) {
	for _, good := range []string{"replica:a", "host:h-1", "operator:ann"} {
		id, err := parseIdentity(good)
		if err != nil || id.CommonName() != good {
			t.Errorf("%q: %v %v", good, id, err)
		}
	}
	for _, bad := range []string{"", "replica", "replica:", "root:a", "host:A", "host:a b", "host:-a", "host:a:b", "host:é", "host:\x00", "host:" + strings.Repeat("a", 64)} {
		if _, err := parseIdentity(bad); !errors.Is(err, ErrIdentity) {
			t.Errorf("%q: error %v, want ErrIdentity", bad, err)
		}
	}
}

func TestInitClusterWritesOneDirectoryAReplica(t *testing.T) {
	dir := t.TempDir()
	members := []Member{{"a", "127.0.0.1:7001"}, {"b", "b.example:7002"}, {"c", "[::1]:7003"}}
	if err := InitCluster(dir, members, "admin", []byte("seal"), time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		d := filepath.Join(dir, m.ID)
		n, err := LoadNode(d)
		if err != nil {
			t.Fatal(err)
		}
		r, err := LoadReplica(d)
		if err != nil || r.Member != m || len(r.Members) != 3 {
			t.Fatalf("replica.json: %+v, %v", r, err)
		}
		host, _, _ := net.SplitHostPort(m.Address)
		if err := n.Leaf().VerifyHostname(host); err != nil {
			t.Errorf("certificate of %s: %v", m.ID, err)
		}
		ca, err := LoadCA(d)
		if err != nil || ca.Fingerprint() != n.CAFingerprint() {
			t.Fatalf("CA of %s: %v", m.ID, err)
		}
		for _, f := range []string{FileCAKey, FileNodeKey, FileSealKey} {
			info, err := os.Stat(filepath.Join(d, f))
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v; want mode 0600", f, info, err)
			}
		}
	}
	if _, err := LoadOperator(filepath.Join(dir, "operator")); err != nil {
		t.Fatal(err)
	}

	before, err := os.ReadFile(filepath.Join(dir, "a", FileNodeKey))
	if err != nil {
		t.Fatal(err)
	}
	if err := InitCluster(dir, members, "admin", []byte("seal"), time.Now()); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("second init: %v, want ErrExist", err)
	}
	after, _ := os.ReadFile(filepath.Join(dir, "a", FileNodeKey))
	if string(before) != string(after) {
		t.Fatal("a key was overwritten")
	}

	if err := AddReplica(dir, filepath.Join(dir, "a"), Member{"d", "127.0.0.1:7004"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	r, err := LoadReplica(filepath.Join(dir, "d"))
	if err != nil || len(r.Members) != 0 {
		t.Fatalf("added replica: %+v, %v; it must not bootstrap", r, err)
	}
}

func TestInitClusterRefusesBadMembers(t *testing.T) {
	for name, members := range map[string][]Member{
		"none":             nil,
		"bad id":           {{"A/..", "127.0.0.1:1"}},
		"no port":          {{"a", "127.0.0.1"}},
		"port 0":           {{"a", "127.0.0.1:0"}},
		"no such port":     {{"a", "127.0.0.1:70000"}},
		"a URL":            {{"a", "http://127.0.0.1:1"}},
		"unspecified":      {{"a", "0.0.0.0:7001"}},
		"id twice":         {{"a", "127.0.0.1:1"}, {"a", "127.0.0.1:2"}},
		"address twice":    {{"a", "127.0.0.1:1"}, {"b", "127.0.0.1:1"}},
		"operator's place": {{"operator", "127.0.0.1:1"}},
	} {
		dir := t.TempDir()
		if err := InitCluster(dir, members, "admin", nil, time.Now()); err == nil {
			t.Errorf("%s: no error", name)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s: left %v behind", name, left)
		}
	}
}

func TestParseNodeRefusesAForeignCertificate(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	cert, key, err := other.Issue(Identity{RoleHost, "h1"}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseNode(ca.CertPEM(), cert, key); err == nil {
		t.Fatal("a certificate of another CA was loaded")
	}
}

func TestReplicasDeriveTheSameSecrets(t *testing.T) {
	ca, err := NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	other, err := parseCA(ca.CertPEM(), keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	derive := func(ca *CA, purpose string) string {
		secret, err := ca.Derive(purpose)
		if err != nil || len(secret) != 32 {
			t.Fatal(secret, err)
		}
		return string(secret)
	}
	if derive(ca, "a") != derive(other, "a") {
		t.Error("two replicas have different secrets")
	}
	if derive(ca, "a") == derive(ca, "b") {
		t.Error("two purposes have one secret")
	}
}

func TestARenewalIsForTheSameIdentityAndAddresses(t *testing.T) {
	ca := newCA(t)
	n := newNode(t, ca, Identity{RoleReplica, "a"}, "10.0.0.1", "a.example.com")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "operator:eve"}, DNSNames: []string{"eve"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(20 * 24 * time.Hour)
	certPEM, err := ca.RenewCSR(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), n.Leaf(), now)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	before := n.Leaf()
	if err := n.Certificate().Replace(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	after := n.Leaf()
	if after.Subject.CommonName != "replica:a" || len(after.IPAddresses) != 1 || !slices.Equal(after.DNSNames, before.DNSNames) || after.NotAfter.Sub(now).Round(time.Hour) != leafValidity {
		t.Errorf("%s, %v, %v, until %s", after.Subject, after.IPAddresses, after.DNSNames, after.NotAfter)
	}
	// Servers and clients present it from the next handshake on, followed by the CA's.
	shown, err := n.ServerTLS().GetCertificate(nil)
	if err != nil || shown.Leaf != after || len(shown.Certificate) != 2 {
		t.Errorf("%v, %v", shown.Leaf.NotAfter, err)
	}
	if shown, err = n.ClientTLS(AnyOf(RoleHost)).GetClientCertificate(nil); err != nil || shown.Leaf != after {
		t.Errorf("%v, %v", shown.Leaf.NotAfter, err)
	}
}

// An operator's certificate is not renewed automatically, so it is valid for longer.
func TestHowLongCertificatesAreValid(t *testing.T) {
	ca, now := newCA(t), time.Now()
	for role, want := range map[Role]time.Duration{RoleReplica: 30 * 24 * time.Hour, RoleHost: 30 * 24 * time.Hour, RoleRouter: 30 * 24 * time.Hour, RoleOperator: 3 * 365 * 24 * time.Hour} {
		if got := newNode(t, ca, Identity{role, "n"}).Leaf().NotAfter.Sub(now).Round(time.Hour); got != want {
			t.Errorf("%s: %s", role, got)
		}
	}
}

func parseCert(certPEM []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}
