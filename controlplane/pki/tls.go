package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// Node is one member's certificate with the CA that everyone is verified against.
type Node struct {
	Identity Identity
	CAPEM    []byte

	leaf *x509.Certificate
	cert tls.Certificate
	pool *x509.CertPool
	ca   *x509.Certificate
}

// ParseNode reads a member from its PEM files.
func ParseNode(caPEM, certPEM, keyPEM []byte) (*Node, error) {
	ca, err := parseCert(caPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate and key: %w", err)
	}
	id, err := ParseIdentity(cert.Leaf.Subject.CommonName)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	// Signature only: an expired certificate is reported by whoever meets it.
	if err := cert.Leaf.CheckSignatureFrom(ca); err != nil {
		return nil, fmt.Errorf("certificate is not from this CA: %w", err)
	}
	// The CA goes along in every handshake: a host that joins knows it by its
	// digest alone, and must be sure of the cluster before it sends its token.
	cert.Certificate = append(cert.Certificate, ca.Raw)
	return &Node{Identity: id, CAPEM: caPEM, leaf: cert.Leaf, cert: cert, pool: pool, ca: ca}, nil
}

// Leaf is the member's own certificate.
func (n *Node) Leaf() *x509.Certificate { return n.leaf }

// CAFingerprint is the lower-case hex SHA-256 of the CA's certificate.
func (n *Node) CAFingerprint() string { return fingerprint(n.ca.Raw) }

// ServerTLS is a server's configuration. A client certificate is verified when
// one is sent; who must send one is decided per protocol, by PeerIdentity.
func (n *Node) ServerTLS(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{n.cert},
		ClientCAs:    n.pool,
		ClientAuth:   tls.VerifyClientCertIfGiven,
		NextProtos:   protocols,
	}
}

// ClientTLS is a client's configuration. It presents the member's certificate
// and speaks only to a server whose certificate chains to the CA and whose
// identity accept allows.
func (n *Node) ClientTLS(accept func(Identity) error, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{n.cert},
		NextProtos:   protocols,
		// The standard check compares the address dialled with the names in the
		// certificate. Here the identity decides, so the chain is verified below
		// and the address is not looked at.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies chain and identity
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return errors.New("server sent no certificate")
			}
			opts := x509.VerifyOptions{Roots: n.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			if _, err := cs.PeerCertificates[0].Verify(opts); err != nil {
				return fmt.Errorf("server certificate: %w", err)
			}
			id, err := ParseIdentity(cs.PeerCertificates[0].Subject.CommonName)
			if err != nil {
				return fmt.Errorf("server certificate: %w", err)
			}
			return accept(id)
		},
	}
}

// Exactly accepts one identity.
func Exactly(want Identity) func(Identity) error {
	return func(got Identity) error {
		if got != want {
			return fmt.Errorf("server is %s, want %s", got.CommonName(), want.CommonName())
		}
		return nil
	}
}

// AnyOf accepts every holder of a role.
func AnyOf(role Role) func(Identity) error {
	return func(got Identity) error {
		if got.Role != role {
			return fmt.Errorf("server is %s, want a %s", got.CommonName(), role)
		}
		return nil
	}
}

// PeerIdentity is who the other side of a server's connection is: false without
// a client certificate. The handshake has already verified the chain.
func PeerIdentity(cs *tls.ConnectionState) (Identity, bool) {
	if cs == nil || len(cs.VerifiedChains) == 0 {
		return Identity{}, false
	}
	id, err := ParseIdentity(cs.PeerCertificates[0].Subject.CommonName)
	return id, err == nil
}
