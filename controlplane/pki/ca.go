package pki

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// How long certificates are valid. There is no renewal protocol: a replica's or
// host's certificate is replaced by issuing another (controlplane init --ca, or
// joining again), which nobody should have to do every few months.
const (
	caValidity   = 10 * 365 * 24 * time.Hour
	leafValidity = 3 * 365 * 24 * time.Hour
	clockSkew    = time.Hour // certificates begin this long ago
)

// CA is the cluster's certificate authority with its private key.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// NewCA creates an authority with a new key.
func NewCA(now time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate CA key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "berth cluster CA"},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caValidity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse CA certificate: %w", err)
	}
	return &CA{cert: cert, key: key, pem: encodeCert(der)}, nil
}

// ParseCA reads an authority from its two PEM files.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	cert, err := parseCert(certPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, errors.New("CA key: no PEM block")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("CA key does not belong to the CA certificate")
	}
	return &CA{cert: cert, key: key, pem: certPEM}, nil
}

// CertPEM is the CA's certificate.
func (ca *CA) CertPEM() []byte { return ca.pem }

// KeyPEM is the CA's private key.
func (ca *CA) KeyPEM() ([]byte, error) { return encodeKey(ca.key) }

// Fingerprint is the lower-case hex SHA-256 of the CA's certificate; a host
// that joins compares it with the one it was given.
func (ca *CA) Fingerprint() string { return fingerprint(ca.cert.Raw) }

// Issue makes a key and a certificate for id, valid at the given host names and
// IP addresses besides its own name.
func (ca *CA) Issue(id Identity, addresses []string, now time.Time) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key of %s: %w", id.CommonName(), err)
	}
	if certPEM, err = ca.sign(id, addresses, key.Public(), now); err != nil {
		return nil, nil, err
	}
	if keyPEM, err = encodeKey(key); err != nil {
		return nil, nil, err
	}
	return certPEM, keyPEM, nil
}

// ErrCSR is returned for a certificate request that is malformed or whose key
// is too weak.
var ErrCSR = errors.New("unusable certificate request")

// SignCSR issues id's certificate over the request's public key. Of the request
// nothing but the key is taken: names in it are the requester's wish, and one
// that named a replica's address would let a host pose as it.
func (ca *CA) SignCSR(csrPEM []byte, id Identity, now time.Time) ([]byte, error) {
	block, _ := pem.Decode(csrPEM)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("%w: no PEM certificate request", ErrCSR)
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCSR, err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCSR, err)
	}
	switch k := csr.PublicKey.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
	case *rsa.PublicKey:
		if k.N.BitLen() < 2048 {
			return nil, fmt.Errorf("%w: RSA key of %d bits, want 2048 or more", ErrCSR, k.N.BitLen())
		}
	default:
		return nil, fmt.Errorf("%w: key type %T", ErrCSR, k)
	}
	return ca.sign(id, nil, csr.PublicKey, now)
}

func (ca *CA) sign(id Identity, addresses []string, public any, now time.Time) ([]byte, error) {
	if _, err := ParseIdentity(id.CommonName()); err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: id.CommonName()},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(leafValidity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames:     []string{id.dnsName()},
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	if id.Role != RoleOperator { // an operator serves nothing
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, a := range addresses {
		if ip := net.ParseIP(a); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, a)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, public, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", id.CommonName(), err)
	}
	return encodeCert(der), nil
}

func serial() *big.Int {
	raw := make([]byte, 16)
	rand.Read(raw) // never fails: crypto/rand ends the process first
	raw[0] &= 0x7f // a serial number is positive (RFC 5280, 4.1.2.2)
	return new(big.Int).SetBytes(raw)
}

func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func parseCert(certPEM []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}
