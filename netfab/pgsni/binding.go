package pgsni

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
)

// endPointBinding is the channel binding data "tls-server-end-point" of a
// certificate (RFC 5929, section 4.1): its hash by its signature's algorithm, or
// SHA-256 for MD5 and SHA-1. nil where that is not defined, as for Ed25519: then
// channel binding is not offered.
func endPointBinding(cert *tls.Certificate) []byte {
	if cert == nil || len(cert.Certificate) == 0 {
		return nil
	}
	leaf := cert.Leaf
	if leaf == nil {
		var err error
		if leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return nil
		}
	}
	switch leaf.SignatureAlgorithm {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.ECDSAWithSHA1,
		x509.SHA256WithRSA, x509.SHA256WithRSAPSS, x509.ECDSAWithSHA256:
		sum := sha256.Sum256(leaf.Raw)
		return sum[:]
	case x509.SHA384WithRSA, x509.SHA384WithRSAPSS, x509.ECDSAWithSHA384:
		sum := sha512.Sum384(leaf.Raw)
		return sum[:]
	case x509.SHA512WithRSA, x509.SHA512WithRSAPSS, x509.ECDSAWithSHA512:
		sum := sha512.Sum512(leaf.Raw)
		return sum[:]
	}
	return nil
}
