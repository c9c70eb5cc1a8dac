package server

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
)

// verified is what the TLS layer says of a peer whose certificate it checked.
func verified(commonName string) *tls.ConnectionState {
	return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: commonName}}}}}
}
