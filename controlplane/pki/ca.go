package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hkdf"
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
	"slices"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/nodecert"
)

// Validity of certificates. Members renew their certificates automatically (package
// nodecert), so a stolen one soon becomes useless. An operator's certificate is replaced
// by hand.
const (
	caValidity       = 10 * 365 * 24 * time.Hour
	leafValidity     = 30 * 24 * time.Hour
	operatorValidity = 3 * 365 * 24 * time.Hour
	clockSkew        = time.Hour // certificates are backdated by this much
)

// CA is the cluster's certificate authority with its private key. While it is exchanged there
// are two of them: both count, and one signs; see rotate.go. It may be read again while it is
// in use.
type CA struct {
	now atomic.Pointer[keyring]
}

// keyring is the content of FileCACert and FileCAKey.
type keyring struct {
	cas    []*x509.Certificate // all that count
	bundle []byte              // these, in PEM
	signer signer              // signs new certificates
	others []signer            // could
	own    bool                // certificates of the signer are renewed, and of no other authority
	keyPEM []byte
	root   []byte // what secrets are derived from
}

type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA creates an authority with a new key.
func NewCA(now time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate CA key: %w", err)
	}
	cert, err := selfSigned(key, now)
	if err != nil {
		return nil, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return parseCA(encodeCert(cert.Raw), keyPEM)
}

func selfSigned(key *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, error) {
	number := serial()
	template := &x509.Certificate{
		SerialNumber: number,
		// Two authorities of a cluster have different names, because some programs look for
		// an issuer by its name alone.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("berth cluster CA %.8x", number)},
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
	return cert, nil
}

// parseCA reads an authority from its two PEM files.
func parseCA(certPEM, keyPEM []byte) (*CA, error) {
	k, err := parseKeyring(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	ca := &CA{}
	ca.now.Store(k)
	return ca, nil
}

func parseKeyring(certPEM, keyPEM []byte) (*keyring, error) {
	cas, err := nodecert.ParseCAs(certPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	keys, root, err := parseKeys(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	k := &keyring{cas: cas, bundle: nodecert.EncodeCAs(cas), own: onlyOwn(keyPEM), keyPEM: keyPEM, root: root}
	for i, key := range keys {
		cert := certOf(cas, key)
		switch {
		case i == 0 && cert == nil:
			return nil, errors.New("CA key does not belong to the CA certificate")
		case i == 0:
			k.signer = signer{cert, key}
		case cert != nil: // otherwise its certificate is not there yet, or not any more
			k.others = append(k.others, signer{cert, key})
		}
	}
	return k, nil
}

// certOf returns the certificate of a key, or nil.
func certOf(cas []*x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	for _, ca := range cas {
		if key.PublicKey.Equal(ca.PublicKey) {
			return ca
		}
	}
	return nil
}

// Reload reads the authority from a replica's directory again. It refuses what has nothing in
// common with what it was. After an error, what it was holds still.
func (ca *CA) Reload(dir string) (changed bool, err error) {
	files, err := readAll(dir, FileCACert, FileCAKey)
	if err != nil {
		return false, err
	}
	next, err := parseKeyring(files[0], files[1])
	if err != nil {
		return false, err
	}
	now := ca.now.Load()
	if bytes.Equal(now.bundle, next.bundle) && bytes.Equal(now.keyPEM, next.keyPEM) {
		return false, nil
	}
	if !slices.ContainsFunc(next.cas, func(c *x509.Certificate) bool { return slices.ContainsFunc(now.cas, c.Equal) }) {
		return false, errors.New("none of the CA certificates is one that was trusted until now: were they of another cluster?")
	}
	ca.now.Store(next)
	return true, nil
}

// CertPEM returns the certificates of all authorities that count.
func (ca *CA) CertPEM() []byte { return ca.now.Load().bundle }

// KeyPEM returns the content of FileCAKey.
func (ca *CA) KeyPEM() ([]byte, error) { return ca.now.Load().keyPEM, nil }

// IDs returns the authorities that count, by their nodecert.CAID.
func (ca *CA) IDs() []string { return nodecert.IDs(ca.now.Load().cas) }

// Signs returns the ID of the authority that signs.
func (ca *CA) Signs() string { return nodecert.CAID(ca.now.Load().signer.cert) }

// Authorities returns all that count, and which of them signs.
func (ca *CA) Authorities() nodecert.Authorities {
	k := ca.now.Load()
	return nodecert.Authorities{Bundle: k.bundle, Signs: nodecert.CAID(k.signer.cert)}
}

// Derive derives a 32-byte secret from the CA's key for one purpose. Every replica derives the
// same secret; nobody else can. It stays the same when the CA is exchanged.
func (ca *CA) Derive(purpose string) ([]byte, error) {
	return hkdf.Expand(sha256.New, ca.now.Load().root, purpose, sha256.Size)
}

// Fingerprint returns the lower-case hex SHA-256 of the certificate of the authority that
// signs. A joining host compares it with the fingerprint that it was given.
func (ca *CA) Fingerprint() string { return fingerprint(ca.now.Load().signer.cert.Raw) }

// Issue creates a key and a certificate for id. The certificate is valid for the name
// of id and for the given host names and IP addresses.
func (ca *CA) Issue(id Identity, addresses []string, now time.Time) (certPEM, keyPEM []byte, err error) {
	return ca.now.Load().signer.issueFor(id, addresses, now)
}

func (by signer) issueFor(id Identity, addresses []string, now time.Time) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key of %s: %w", id.CommonName(), err)
	}
	if certPEM, err = by.sign(id, addresses, key.Public(), now); err != nil {
		return nil, nil, err
	}
	if keyPEM, err = encodeKey(key); err != nil {
		return nil, nil, err
	}
	return certPEM, keyPEM, nil
}

// ErrCSR is returned for a certificate request that is malformed or has a key that is too
// weak or of an unsupported type.
var ErrCSR = errors.New("unusable certificate request")

// SignCSR issues a certificate for id with the public key of a certificate request. It
// takes nothing else from the request: the names in it are only the requester's wish,
// and a host that asked for a replica's address could pose as that replica.
func (ca *CA) SignCSR(csrPEM []byte, id Identity, now time.Time) ([]byte, error) {
	return ca.now.Load().signer.signCSR(csrPEM, id, nil, now)
}

// RenewCSR issues a new certificate to the holder of present, with the public key of a
// certificate request. Identity and addresses stay the same. RenewCSR takes nothing but
// the key from the request.
func (ca *CA) RenewCSR(csrPEM []byte, present *x509.Certificate, now time.Time) ([]byte, error) {
	return ca.now.Load().signer.renewCSR(csrPEM, present, now)
}

// ErrOthers is returned for a certificate of another authority than the one that signs, while
// those are not renewed.
var ErrOthers = errors.New("certificates of another CA are not renewed")

// RenewMember is RenewCSR for somebody else, who may have made the present certificate with a
// stolen key. issuer names the authority of that one, if it is not the one that signs.
func (ca *CA) RenewMember(csrPEM []byte, present *x509.Certificate, now time.Time) (certPEM []byte, issuer string, err error) {
	k := ca.now.Load()
	if present.CheckSignatureFrom(k.signer.cert) != nil {
		issuer = "unknown"
		if by := nodecert.IssuerOf(present, k.cas); by != nil {
			issuer = nodecert.CAID(by)
		}
		if k.own {
			return nil, issuer, ErrOthers
		}
	}
	certPEM, err = k.signer.renewCSR(csrPEM, present, now)
	return certPEM, issuer, err
}

func (by signer) renewCSR(csrPEM []byte, present *x509.Certificate, now time.Time) ([]byte, error) {
	id, addresses, err := namesOf(present)
	if err != nil {
		return nil, err
	}
	return by.signCSR(csrPEM, id, addresses, now)
}

// namesOf returns what a certificate of this package was issued for.
func namesOf(leaf *x509.Certificate) (id Identity, addresses []string, err error) {
	if id, err = parseIdentity(leaf.Subject.CommonName); err != nil {
		return id, nil, err
	}
	for _, name := range leaf.DNSNames {
		if name != id.dnsName() {
			addresses = append(addresses, name)
		}
	}
	for _, ip := range leaf.IPAddresses {
		addresses = append(addresses, ip.String())
	}
	return id, addresses, nil
}

func (by signer) signCSR(csrPEM []byte, id Identity, addresses []string, now time.Time) ([]byte, error) {
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
	return by.sign(id, addresses, csr.PublicKey, now)
}

func (by signer) sign(id Identity, addresses []string, public any, now time.Time) ([]byte, error) {
	if _, err := parseIdentity(id.CommonName()); err != nil {
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
	if id.Role == RoleOperator {
		template.NotAfter = now.Add(operatorValidity)
	} else { // operators run no servers
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if template.NotAfter.After(by.cert.NotAfter) {
		template.NotAfter = by.cert.NotAfter
	}
	for _, a := range addresses {
		if ip := net.ParseIP(a); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, a)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, public, by.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", id.CommonName(), err)
	}
	return encodeCert(der), nil
}

// SignedAt returns when a certificate was signed, by the signer's clock.
func SignedAt(leaf *x509.Certificate) time.Time { return leaf.NotBefore.Add(clockSkew) }

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
