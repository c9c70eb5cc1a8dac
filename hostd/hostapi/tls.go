package hostapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
)

// The kinds of peer, as the prefix of a certificate's common name.
const (
	ReplicaPrefix  = "replica:"
	HostPrefix     = "host:"
	OperatorPrefix = "operator:"
	RouterPrefix   = "router:" // of databases
)

// PeerTLS is the client side of a connection inside the cluster: cert is
// presented, and the peer is the one whose certificate is from ca and whose
// common name verify accepts. Names and addresses in certificates play no part:
// a machine's address may change, its identity does not.
func PeerTLS(cert tls.Certificate, ca *x509.CertPool, verify func(commonName string) bool) *tls.Config {
	return PeerTLSBy(func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }, func() *x509.CertPool { return ca }, verify)
}

// PeerTLSBy is PeerTLS with a certificate and authorities that may be replaced.
func PeerTLSBy(cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error), cas func() *x509.CertPool, verify func(commonName string) bool) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetClientCertificate: cert,
		// Go's own check is of the name that was dialled; VerifyConnection below
		// does the whole check instead, on resumed connections too.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies chain and identity
		VerifyConnection: func(cs tls.ConnectionState) error {
			return verifyPeer(cs, cas(), x509.ExtKeyUsageServerAuth, verify)
		},
	}
}

// IsHost accepts one host.
func IsHost(hostID string) func(string) bool {
	return func(cn string) bool { return cn == HostPrefix+hostID }
}

// IsReplica accepts every control-plane replica.
func IsReplica(cn string) bool {
	return strings.HasPrefix(cn, ReplicaPrefix) && len(cn) > len(ReplicaPrefix)
}

func verifyPeer(cs tls.ConnectionState, ca *x509.CertPool, usage x509.ExtKeyUsage, verify func(string) bool) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("peer shows no certificate")
	}
	inter := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		inter.AddCert(c)
	}
	leaf := cs.PeerCertificates[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: ca, Intermediates: inter, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
		return fmt.Errorf("peer's certificate: %w", err)
	}
	if !verify(leaf.Subject.CommonName) {
		return fmt.Errorf("peer is %q, which is not who was called", leaf.Subject.CommonName)
	}
	return nil
}
