package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/berth-cloud/berth/nodecert"
)

// Node is one member's certificate together with the authorities that verify all members.
type Node struct {
	Identity Identity

	cert  *nodecert.Certificate
	trust *nodecert.Trust
	joins atomic.Pointer[joins] // nil: it takes no joins
}

// ErrForeign is returned for a certificate that is from none of the authorities beside it.
var ErrForeign = errors.New("certificate is not from this CA")

// ParseNode reads a member from its PEM files. Renewed certificates are not saved.
func ParseNode(caPEM, certPEM, keyPEM []byte) (*Node, error) {
	return parseNode("", caPEM, certPEM, keyPEM)
}

// parseNode is like ParseNode, but renewed certificates are saved in dir, unless dir is
// empty, and, except of a replica, the authorities that count.
func parseNode(dir string, caPEM, certPEM, keyPEM []byte) (*Node, error) {
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate and key: %w", err)
	}
	id, err := parseIdentity(cert.Leaf.Subject.CommonName)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	trustDir := dir
	if id.Role == RoleReplica {
		trustDir = "" // its operator changes the file
	}
	trust, err := nodecert.NewTrust(trustDir, caPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	// Check only the signature: an expired certificate is reported where it is used.
	issuer := trust.Issuer(cert.Leaf)
	if issuer == nil {
		return nil, ErrForeign
	}
	// Send the CA's certificate in every handshake: a joining host knows only its
	// fingerprint and must be sure of the cluster before it sends the join token.
	cert.Certificate = append(cert.Certificate[:1:1], issuer.Raw)
	return &Node{Identity: id, cert: nodecert.New(dir, cert, trust), trust: trust}, nil
}

// Leaf returns the member's current certificate.
func (n *Node) Leaf() *x509.Certificate { return n.cert.Leaf() }

// Certificate returns the member's certificate, which can be replaced while in use, and the
// authorities that the member trusts.
func (n *Node) Certificate() *nodecert.Certificate { return n.cert }

// CAFingerprint returns the lower-case hex SHA-256 of the certificate of the authority that
// signed the member's, or "" if it does not count any more.
func (n *Node) CAFingerprint() string {
	if ca := n.trust.Issuer(n.Leaf()); ca != nil {
		return fingerprint(ca.Raw)
	}
	return ""
}

// ServerTLS returns a server's configuration. The server verifies a client certificate if
// the client sends one. Each protocol decides with PeerIdentity who must send one.
func (n *Node) ServerTLS(protocols ...string) *tls.Config {
	base := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: n.certificateFor,
		ClientCAs:      n.trust.Pool(),
		ClientAuth:     tls.VerifyClientCertIfGiven,
		NextProtos:     protocols,
		// A resumed connection would count as if its authority still did. No member resumes any.
		SessionTicketsDisabled: true,
	}
	config := base.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := base.Clone()
		now.ClientCAs = n.trust.Pool()
		return now, nil
	}
	return config
}

// ClientTLS returns a client's configuration. The client presents the member's certificate.
// It talks to a server only if the server's certificate chains to the CA and accept
// returns nil for the server's identity.
func (n *Node) ClientTLS(accept func(Identity) error, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetClientCertificate: n.cert.ForClient,
		NextProtos:           protocols,
		// The standard check compares the dialled address with the names in the
		// certificate. Here the identity counts, so VerifyConnection verifies the chain
		// and ignores the address.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies chain and identity
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return errors.New("server sent no certificate")
			}
			opts := x509.VerifyOptions{Roots: n.trust.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			if _, err := cs.PeerCertificates[0].Verify(opts); err != nil {
				return fmt.Errorf("server certificate: %w", err)
			}
			id, err := parseIdentity(cs.PeerCertificates[0].Subject.CommonName)
			if err != nil {
				return fmt.Errorf("server certificate: %w", err)
			}
			return accept(id)
		},
	}
}

// Exactly returns a check for ClientTLS that accepts one identity.
func Exactly(want Identity) func(Identity) error {
	return func(got Identity) error {
		if got != want {
			return fmt.Errorf("server is %s, want %s", got.CommonName(), want.CommonName())
		}
		return nil
	}
}

// AnyOf returns a check for ClientTLS that accepts every holder of a role.
func AnyOf(role Role) func(Identity) error {
	return func(got Identity) error {
		if got.Role != role {
			return fmt.Errorf("server is %s, want a %s", got.CommonName(), role)
		}
		return nil
	}
}

// PeerIdentity returns the identity of the client on a server's connection, or false if
// the client sent no certificate. The handshake has already verified the chain.
func PeerIdentity(cs *tls.ConnectionState) (Identity, bool) {
	if cs == nil || len(cs.VerifiedChains) == 0 {
		return Identity{}, false
	}
	id, err := parseIdentity(cs.PeerCertificates[0].Subject.CommonName)
	return id, err == nil
}
