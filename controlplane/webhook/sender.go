package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// Limits on how much of a response is read, in bytes. The body is not used; it is read so
// that the receiver can finish its response.
const (
	maxAnswerHeader = 16 << 10
	maxAnswerBody   = 16 << 10
)

// sender makes the HTTP requests to endpoints.
type sender struct {
	client  *http.Client
	timeout time.Duration
	plain   bool // also allows HTTP without TLS
}

var (
	errPrivateAddress = errors.New("the address is not public")
	errPlain          = errors.New("the URL does not begin with https://") // registered while AllowPrivate was set
)

func newSender(cfg Config) *sender {
	dialer := &net.Dialer{
		Resolver: cfg.Resolver,
		// Called after the name lookup, for each address, right before connecting.
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil || !cfg.Allowed(to.Addr().Unmap()) {
				return errPrivateAddress
			}
			return nil
		},
	}
	return &sender{
		timeout: cfg.Timeout, plain: cfg.AllowPrivate,
		client: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			// No proxy: it would dial in our place. A new connection for each attempt:
			// the address of a reused one is not checked again. No compression: the limits
			// apply to the response as it arrives.
			Transport: &http.Transport{
				DialContext: dialer.DialContext, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHeader,
			},
		},
	}
}

// message is one request to an endpoint.
type message struct {
	url, secret, id string
	kind            string
	body            []byte
}

// result is the outcome of an attempt.
type result struct {
	status int           // HTTP status; 0: no response
	err    string        // why the attempt failed; "": it succeeded
	took   time.Duration // never 0
}

// send makes one attempt. It does not follow redirects; they count as failures.
func (s *sender) send(ctx context.Context, m message, at time.Time) result {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	start := time.Now()
	status, err := s.post(ctx, m, at)
	out := result{status: status, took: max(time.Since(start), time.Nanosecond)}
	switch {
	case err != nil:
		out.err = s.reason(err)
	case status >= 300 && status < 400:
		out.err = "redirects are not followed"
	case status < 200 || status >= 300:
		out.err = "the status is not 2xx"
	}
	return out
}

func (s *sender) post(ctx context.Context, m message, at time.Time) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(m.body))
	if err != nil {
		return 0, err
	}
	if r.URL.Scheme != "https" && !s.plain {
		return 0, errPlain
	}
	standard, err := standardSignature(m, at)
	if err != nil {
		return 0, err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "Berth-Webhooks/1",
		api.HeaderWebhookEvent: m.kind, api.HeaderWebhookDelivery: m.id, api.HeaderWebhookSignature: api.SignWebhook(m.secret, at, m.body),
		api.HeaderStandardWebhookID: m.id, api.HeaderStandardWebhookTimestamp: strconv.FormatInt(at.Unix(), 10),
		api.HeaderStandardWebhookSignature: standard,
	} {
		r.Header.Set(name, value)
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, nil // the body is the bare connection, which ctx no longer ends
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswerBody) // only the status counts, and it has been read
	return resp.StatusCode, nil
}

// standardSignature returns the signature of Standard Webhooks. Its key is the decoded
// secret.
func standardSignature(m message, at time.Time) (string, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.secret, secretPrefix))
	if err != nil {
		return "", fmt.Errorf("decode a signing secret: %w", err)
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.", m.id, at.Unix())
	mac.Write(m.body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)), nil
}

// reason says why there was no response. It does not use the error's own text, which may
// name our servers.
func (s *sender) reason(err error) string {
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var timeout net.Error
	switch {
	case errors.Is(err, errPrivateAddress):
		return errPrivateAddress.Error()
	case errors.Is(err, errPlain):
		return errPlain.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("no answer within %s", s.timeout)
	case errors.As(err, &dns):
		return "the host name could not be resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	case errors.As(err, &certificate):
		return "the certificate is not valid"
	}
	return "the connection failed, or was no HTTP"
}
