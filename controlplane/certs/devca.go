package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
)

// devFiles describes a development authority and its files. The replicas of one machine
// share its directory.
type devFiles struct {
	cert, key string
	name      string   // common name of the authority
	permitted []string // domains that it can sign for; empty: all
}

type devCA struct {
	devFiles
	authority *x509.Certificate
	signer    *ecdsa.PrivateKey
}

// maxCommonName is the maximum length of a common name (RFC 5280, A.1). A certificate for
// a longer name has none; nothing needs it.
const maxCommonName = 64

// sign issues a certificate for one name, with a new key.
func (d *devCA) sign(name string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	subject := pkix.Name{CommonName: name}
	if len(name) > maxCommonName {
		subject = pkix.Name{}
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      subject,
		DNSNames:     []string{name},
		NotBefore:    now.Add(-devClockSkew),
		NotAfter:     now.Add(devLeafValidity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, d.authority, key.Public(), d.signer)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, d.authority.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// openDevCA reads the authority, or creates it. Several replicas may do so at once.
func openDevCA(dir string, f devFiles, now time.Time) (*devCA, error) {
	ca := &devCA{devFiles: f}
	if err := ca.open(dir, now); err != nil {
		return nil, fmt.Errorf("development authority in %s: %w", dir, err)
	}
	return ca, nil
}

func (d *devCA) open(dir string, now time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "."+strings.TrimSuffix(d.cert, ".pem")+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // releases the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	err = d.read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.make(dir, now); err == nil {
			err = d.read(dir)
		}
	}
	return err
}

func (d *devCA) read(dir string) error {
	keyPEM, err := os.ReadFile(filepath.Join(dir, d.key))
	if err != nil {
		return err
	}
	certPEM, err := os.ReadFile(filepath.Join(dir, d.cert))
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || pair.Leaf.Subject.CommonName != d.name {
		return fmt.Errorf("it is %q, and not %q", pair.Leaf.Subject.CommonName, d.name)
	}
	d.authority, d.signer = pair.Leaf, key
	return nil
}

func (d *devCA) make(dir string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:                serial(),
		Subject:                     pkix.Name{CommonName: d.name},
		NotBefore:                   now.Add(-devClockSkew),
		NotAfter:                    now.Add(devCAValidity),
		IsCA:                        true,
		BasicConstraintsValid:       true,
		MaxPathLenZero:              true,
		KeyUsage:                    x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		PermittedDNSDomainsCritical: len(d.permitted) > 0,
		PermittedDNSDomains:         d.permitted,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	// Write the key last: if it exists, the certificate does too.
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := atomicfile.Write(filepath.Join(dir, d.cert), certPEM, 0o644); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, d.key), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600)
}

func serial() *big.Int {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	raw[0] &= 0x7f        // a serial number is positive (RFC 5280, 4.1.2.2)
	return new(big.Int).SetBytes(raw)
}
