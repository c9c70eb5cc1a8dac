package pgsni

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"
)

// alpn is the protocol name of direct TLS (manual, "SSL Session Encryption").
const alpn = "postgresql"

// greeting is what a client opened its connection with: a StartupMessage, or a
// cancel request.
type greeting struct {
	cancel  *CancelKey
	startup packet
}

// greet goes with the client from its first byte to its StartupMessage, by
// SSLRequest or by direct TLS, within HandshakeTimeout.
func (c *conn) greet() (greeting, error) {
	_ = c.wire.SetDeadline(time.Now().Add(c.router.cfg.HandshakeTimeout))
	p, err := c.plaintext()
	if err != nil {
		return greeting{}, err
	}
	if !c.encrypted() {
		key, err := p.cancelKey() // the one request that may come in plaintext
		return greeting{cancel: &key}, err
	}
	if p, err = readPacket(c.stream); err != nil {
		return greeting{}, err
	}
	if err := c.wire.SetDeadline(time.Time{}); err != nil {
		return greeting{}, err
	}
	switch p.code {
	case codeCancel:
		key, err := p.cancelKey()
		return greeting{cancel: &key}, err
	case codeSSL, codeGSSEnc:
		return greeting{}, refuse(codeProtocolViolation, messageDoubleEncryption)
	}
	return greeting{startup: p}, nil
}

// plaintext handles what comes before TLS, and returns with TLS up or with a
// cancel request. GSSAPI encryption is declined; libpq then asks for TLS. Each
// question may be asked once.
func (c *conn) plaintext() (packet, error) {
	for declined := false; ; declined = true {
		head, err := readHead(c.wire)
		if err != nil {
			return packet{}, err
		}
		if head[0] == tlsHandshake {
			c.wire.head = head
			return packet{}, c.startTLS(true)
		}
		p, err := readBody(c.wire, head)
		if err != nil {
			return packet{}, err
		}
		switch {
		case p.code == codeCancel:
			return p, nil
		case p.code == codeGSSEnc && !declined:
			if _, err := c.wire.Write([]byte{'N'}); err != nil {
				return packet{}, err
			}
		case p.code == codeSSL:
			if _, err := c.wire.Write([]byte{'S'}); err != nil {
				return packet{}, err
			}
			return packet{}, c.startTLS(false)
		case p.code>>16 == protocolMajor:
			return packet{}, &Refusal{Code: codeInvalidAuth, Message: messageTLSRequired, Hint: messageTLSHint}
		default:
			return packet{}, fmt.Errorf("%w: start-up code %d", errNotOurs, p.code)
		}
	}
}

// startTLS ends TLS here. A client that begins with it must say that it is
// PostgreSQL it means, so that no other protocol's client can be led here
// (CVE-2021-3618, "ALPACA").
func (c *conn) startTLS(direct bool) error {
	t := tls.Server(c.wire, c.router.tls)
	if err := t.Handshake(); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	c.stream = t
	if direct && t.ConnectionState().NegotiatedProtocol != alpn {
		return fmt.Errorf("%w: direct TLS without ALPN %q", errNotOurs, alpn)
	}
	return nil
}

// serverName is what the client's ClientHello named.
func (c *conn) serverName() string {
	t, ok := c.stream.(*tls.Conn)
	if !ok {
		return ""
	}
	return t.ConnectionState().ServerName
}

// serverTLS is the router's own form of the configured TLS.
func serverTLS(cfg *tls.Config) *tls.Config {
	t := cfg.Clone()
	t.MinVersion = max(t.MinVersion, tls.VersionTLS12)
	t.NextProtos = []string{alpn}
	// As PostgreSQL: no driver resumes sessions, and a resumed one shows no
	// certificate to bind to.
	t.SessionTicketsDisabled = true
	// Records of full size from the start: a database's answers are read whole.
	t.DynamicRecordSizingDisabled = true
	get := t.GetCertificate
	if get == nil {
		get = firstFitting(t.Certificates)
	}
	t.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := get(hello)
		if w, ok := hello.Conn.(*wire); ok && err == nil {
			w.leaf = cert
		}
		return cert, err
	}
	t.Certificates = nil // crypto/tls would choose of a single one without asking
	return t
}

// firstFitting chooses as crypto/tls does.
func firstFitting(certs []tls.Certificate) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if len(certs) == 0 {
			return nil, errors.New("no certificate")
		}
		for i := range certs {
			if hello.SupportsCertificate(&certs[i]) == nil {
				return &certs[i], nil
			}
		}
		return &certs[0], nil
	}
}
