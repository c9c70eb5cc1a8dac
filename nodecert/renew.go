package nodecert

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"time"
)

// Renewer replaces a certificate before it expires.
type Renewer struct {
	Certificate *Certificate
	// Ask gets a certificate for a request, in PEM, from who knows the present one.
	Ask func(ctx context.Context, csrPEM []byte) (certPEM []byte, err error)
	// Authorities tells what this member knows, and asks which authorities count. The
	// certificate is renewed at once if its own does not sign any more. nil: nobody is asked.
	Authorities func(ctx context.Context, known Known) (Authorities, error)
	// Wake makes Run look at once; nil: it looks every minute alone.
	Wake   <-chan struct{}
	Clock  func() time.Time
	Jitter func() float64 // from 0 to 1, so that those who were set up together do not come together
	Remedy string         // what an operator does once it has expired
	Log    *slog.Logger

	of    *x509.Certificate
	due   time.Time // of that certificate
	retry time.Time // not before; zero: at once

	signs  string    // the ID of the authority that signs, as was told last
	silent time.Time // since when nobody tells, or when that was logged; zero: somebody does
}

// Known is what a member says of itself, by the IDs of authorities. Both would hold after a
// restart.
type Known struct {
	Trusts []string
	Issuer string // of its certificate
}

// Authorities are those that count.
type Authorities struct {
	Bundle []byte // their certificates, in PEM
	Signs  string // the ID of the one that signs
}

const (
	lookEvery  = time.Minute      // a clock that jumps is noticed this late
	retryEvery = 10 * time.Minute // up to twice as long
	askTimeout = time.Minute
)

// Due is when a certificate is renewed: when a third of its validity is left, or up to a
// tenth of that third earlier. jitter is from 0 to 1.
func Due(leaf *x509.Certificate, jitter float64) time.Time {
	third := leaf.NotAfter.Sub(leaf.NotBefore) / 3
	return leaf.NotAfter.Add(-third - time.Duration(jitter*float64(third)/10))
}

// Run renews until ctx ends.
func (r *Renewer) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		r.Check(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.Wake:
		}
	}
}

// Check asks which authorities count, renews the certificate if it is time, and logs what
// comes of it. It is not for concurrent use.
func (r *Renewer) Check(ctx context.Context) {
	if r.follow(ctx); r.check(ctx) {
		r.follow(ctx) // so that it is known at once
	}
}

// follow takes over which authorities count, and says so.
func (r *Renewer) follow(ctx context.Context) {
	if r.Authorities == nil {
		return
	}
	trust := r.Certificate.Trust()
	if err := trust.Keep(); err != nil {
		r.unkept(ctx, err)
	}
	for range 2 { // after a change, once more, so that it is known
		changed, err := r.ask(ctx, trust)
		switch {
		case changed && err != nil:
			r.unkept(ctx, err)
		case err != nil:
			r.unheard(ctx, err)
		default:
			r.silent = time.Time{}
		}
		if !changed {
			return
		}
		r.Log.InfoContext(ctx, "the authorities whose certificates are accepted have changed", "authorities", IDs(trust.CAs()))
	}
}

func (r *Renewer) ask(ctx context.Context, trust *Trust) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	told, err := r.Authorities(ctx, Known{Trusts: trust.Kept(), Issuer: r.Certificate.KeptIssuer()})
	if err != nil {
		return false, err
	}
	if changed, err = trust.Replace(told.Bundle); changed || err == nil {
		r.signs = told.Signs
	}
	return changed, err
}

// unheard logs that nobody tells which authorities count, once that lasts.
func (r *Renewer) unheard(ctx context.Context, err error) {
	now := r.Clock()
	if r.silent.IsZero() || r.silent.After(now) {
		r.silent = now
	}
	if ctx.Err() == nil && now.Sub(r.silent) >= retryEvery {
		r.silent = now
		r.Log.WarnContext(ctx, "no replica says which authorities count", "error", err,
			"remedy", "if the cluster's CA was exchanged while this machine was off: "+r.Remedy)
	}
}

// outdated reports whether the certificate is of an authority that does not sign any more.
func (r *Renewer) outdated(leaf *x509.Certificate) bool {
	if r.signs == "" {
		return false
	}
	issuer := r.Certificate.Trust().Issuer(leaf)
	return issuer == nil || CAID(issuer) != r.signs
}

// wrong reports whether the certificate was issued while a clock was ahead: it is not valid
// yet. If its authority is not either, it is the clock of now that is wrong, and a certificate
// by it would be worse.
func (r *Renewer) wrong(leaf *x509.Certificate, now time.Time) bool {
	issuer := r.Certificate.Trust().Issuer(leaf)
	return early(leaf, now) && issuer != nil && !early(issuer, now)
}

// check renews the certificate if it is time, and reports whether it did.
func (r *Renewer) check(ctx context.Context) bool {
	leaf, now := r.Certificate.Leaf(), r.Clock()
	if err := r.Certificate.Keep(); err != nil && r.of == leaf {
		r.unkept(ctx, err)
	}
	if r.of != leaf {
		r.of, r.due, r.retry = leaf, Due(leaf, r.Jitter()), time.Time{}
	}
	wrong := r.wrong(leaf, now)
	if now.Before(r.due) && !r.outdated(leaf) && !wrong || now.Before(r.retry) && r.retry.Sub(now) <= 2*retryEvery { // further away only if the clock was set back
		return false
	}
	err := r.renew(ctx)
	if next := r.Certificate.Leaf(); next != leaf {
		r.Log.InfoContext(ctx, "this node's certificate is renewed", "identity", next.Subject.CommonName, "expires_at", next.NotAfter)
		if err != nil {
			r.unkept(ctx, err)
		}
		return true
	}
	r.retry = now.Add(retryEvery + time.Duration(r.Jitter()*float64(retryEvery)))
	if wrong {
		r.Log.ErrorContext(ctx, "this node's certificate is not valid yet, and the others refuse it: it was issued while a clock was wrong", "identity", leaf.Subject.CommonName,
			"valid_from", leaf.NotBefore, "remedy", r.Remedy, "error", err)
		return false
	}
	if now.After(leaf.NotAfter) {
		r.Log.ErrorContext(ctx, "this node's certificate has expired, and the others refuse it", "identity", leaf.Subject.CommonName,
			"expired_at", leaf.NotAfter, "remedy", r.Remedy, "error", err)
		return false
	}
	r.Log.WarnContext(ctx, "this node's certificate is not renewed yet; another attempt follows", "identity", leaf.Subject.CommonName,
		"expires_at", leaf.NotAfter, "error", err)
	return false
}

func (r *Renewer) unkept(ctx context.Context, err error) {
	r.Log.ErrorContext(ctx, "what was renewed is in use, but would be lost at a restart", "error", err,
		"remedy", "let the service write to BERTH_PKI_DIR")
}

func (r *Renewer) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	name := r.Certificate.Leaf().Subject.CommonName
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		return fmt.Errorf("make certificate request: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	cert, err := r.Ask(ctx, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))
	if err != nil {
		return err
	}
	return r.Certificate.Replace(cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}
