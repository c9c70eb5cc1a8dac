package export

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// settings say how the collector is reached. The names and defaults are those of
// https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
type settings struct {
	endpoint *url.URL
	header   http.Header
	timeout  time.Duration // of one batch, repetitions included
	gzip     bool
	tls      *tls.Config // nil: the system's
}

const (
	defaultEndpoint = "http://localhost:4318"
	defaultTimeout  = 10 * time.Second
	tracesPath      = "v1/traces"
)

// variable is a setting's value for traces, or for all signals.
func variable(name string) (value, from string) {
	from = "OTEL_EXPORTER_OTLP_TRACES_" + name
	if value = os.Getenv(from); value != "" {
		return value, from
	}
	from = "OTEL_EXPORTER_OTLP_" + name
	return os.Getenv(from), from
}

func fromEnvironment() (settings, error) {
	s := settings{timeout: defaultTimeout, header: http.Header{}}
	if protocol, from := variable("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return s, fmt.Errorf("%s is %q, want http/protobuf", from, protocol)
	}
	return s, errors.Join(s.readEndpoint(), s.readHeaders(), s.readTimeout(), s.readCompression(), s.readTLS())
}

func (s *settings) readEndpoint() error {
	raw, from := variable("ENDPOINT")
	if raw == "" {
		raw = defaultEndpoint
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		// Not the value: it may have a password.
		return fmt.Errorf("%s is no http:// or https:// URL", from)
	}
	// The endpoint for all signals is a base, to which the path of traces is added; the
	// endpoint for traces is used as it is.
	if from != "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" {
		u = u.JoinPath(tracesPath)
	}
	s.endpoint = u
	return nil
}

// readHeaders reads key=value,key=value, whose values are percent-encoded.
func (s *settings) readHeaders() error {
	raw, from := variable("HEADERS")
	for pair := range strings.SplitSeq(raw, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || key == "" || err != nil || strings.ContainsAny(key, " \t\r\n:") || strings.ContainsAny(value, "\r\n\x00") {
			return fmt.Errorf("%s is not key=value,key=value", from) // whose values are secrets
		}
		s.header.Set(key, value)
	}
	return nil
}

func (s *settings) readTimeout() error {
	raw, from := variable("TIMEOUT")
	if raw == "" {
		return nil
	}
	ms, err := strconv.Atoi(raw)
	if err != nil || ms < 1 || ms > int(time.Hour/time.Millisecond) {
		return fmt.Errorf("%s is %q, want milliseconds", from, raw)
	}
	s.timeout = time.Duration(ms) * time.Millisecond
	return nil
}

func (s *settings) readCompression() error {
	raw, from := variable("COMPRESSION")
	switch raw {
	case "", "none":
	case "gzip":
		s.gzip = true
	default:
		return fmt.Errorf("%s is %q, want gzip or none", from, raw)
	}
	return nil
}

// readTLS reads whom to trust, and what to show.
func (s *settings) readTLS() error {
	ca, caFrom := variable("CERTIFICATE")
	cert, certFrom := variable("CLIENT_CERTIFICATE")
	key, _ := variable("CLIENT_KEY")
	if ca == "" && cert == "" && key == "" {
		return nil
	}
	s.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return fmt.Errorf("%s: %w", caFrom, err)
		}
		s.tls.RootCAs = x509.NewCertPool()
		if !s.tls.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s: %s has no certificate", caFrom, ca)
		}
	}
	if cert == "" && key == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("%s and its key: %w", certFrom, err)
	}
	s.tls.Certificates = []tls.Certificate{pair}
	return nil
}

// shown is the endpoint without what may be secret in it.
func (s *settings) shown() string { return s.endpoint.Redacted() }
