package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ErrForbidden is wrapped by refusals of an address or a scheme.
var ErrForbidden = errors.New("registry not allowed")

// Policy says which registries may be contacted.
type Policy struct {
	// Trusted is for the host's operator: every address is allowed, through the
	// host's proxy if it has one, and with the operator's credentials.
	Trusted bool
	// Allow are exceptions for everybody else: a registry's host, host:port, or an
	// address prefix, which may be private.
	Allow []string
}

const (
	dialTime   = 15 * time.Second
	headerTime = 30 * time.Second
	// stallTime ends a download that makes no progress. Images are pulled one after
	// another, so a registry that stalls would delay all of them.
	stallTime = time.Minute
	// maxManifest limits every answer that is kept in memory, where it may take
	// fifty times its size.
	maxManifest = 1 << 20
)

// closed are the prefixes of a host's own and its neighbours' services: "this"
// network, private and shared space, loopback, link local with the cloud's metadata,
// protocol assignments, benchmarking, multicast, reserved, and the IPv6 forms that
// contain an IPv4 address.
var closed = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
	"::/127", "fc00::/7", "fe80::/10", "ff00::/8", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16",
)

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParsePrefix(t)
	}
	return out
}

// Check checks the exceptions.
func (p Policy) Check() error {
	for _, a := range p.Allow {
		if strings.Contains(a, "/") {
			if _, err := netip.ParsePrefix(a); err != nil {
				return fmt.Errorf("%q is neither a registry's host[:port] nor an address prefix", a)
			}
			continue
		}
		if a == "" || strings.ContainsAny(a, " @?#") {
			return fmt.Errorf("%q is neither a registry's host[:port] nor an address prefix", a)
		}
	}
	return nil
}

// allowsHost reports whether an exception contains the address as it was dialled.
func (p Policy) allowsHost(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (slices.Contains(p.Allow, address) || slices.Contains(p.Allow, host))
}

func (p Policy) allowsAddr(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	in := func(n netip.Prefix) bool { return n.Contains(addr) }
	if !slices.ContainsFunc(closed, in) {
		return true
	}
	return slices.ContainsFunc(p.Allow, func(a string) bool {
		n, err := netip.ParsePrefix(a)
		return err == nil && in(n)
	})
}

// transport returns the transport of one pull. It checks addresses when it connects,
// after the name was resolved, because a name may resolve differently each time and
// a redirect may lead to another registry.
func (p Policy) transport() (http.RoundTripper, func()) {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTime}
		if !p.Trusted && !p.allowsHost(address) {
			d.ControlContext = func(_ context.Context, _, at string, _ syscall.RawConn) error {
				ap, err := netip.ParseAddrPort(at)
				if err != nil || !p.allowsAddr(ap.Addr()) {
					return fmt.Errorf("%w: %s leads to %s, which is no public address; a host's operator may allow it (BERTH_OCI_ALLOW)", ErrForbidden, address, at)
				}
				return nil
			}
		}
		return d.DialContext(ctx, network, address)
	}
	t := &http.Transport{
		DialContext: dial, TLSHandshakeTimeout: dialTime, ResponseHeaderTimeout: headerTime,
		MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
	}
	if p.Trusted {
		t.Proxy = http.ProxyFromEnvironment
	}
	return &guarded{next: t}, t.CloseIdleConnections
}

// guarded refuses unencrypted registries, and limits the duration and size of
// answers.
type guarded struct{ next http.RoundTripper }

func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !isLoopback(r.URL.Hostname()) {
		return nil, fmt.Errorf("%w: %s is spoken to without TLS, which only a registry on localhost is", ErrForbidden, r.URL.Host)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	resp, err := g.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols { // the context no longer ends its body
		resp.Body.Close()
		cancel(nil)
		return nil, fmt.Errorf("%s switches protocols, which no registry does", r.URL.Host)
	}
	stalled := fmt.Errorf("%s has sent nothing for %s", r.URL.Host, stallTime)
	b := &boundedBody{
		body: resp.Body, left: maxManifest, cancel: cancel, ctx: ctx,
		watch: time.AfterFunc(stallTime, func() { cancel(stalled) }),
	}
	if isBlob(r) {
		b.left = -1 // a stream, limited by the size in the manifest
	}
	resp.Body = b
	return resp, nil
}

// isBlob reports whether a request is for a blob, even after a redirect. (A
// repository may be called blobs.)
func isBlob(r *http.Request) bool {
	for r.Response != nil && r.Response.Request != nil {
		r = r.Response.Request
	}
	return path.Base(path.Dir(r.URL.Path)) == "blobs"
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

type boundedBody struct {
	body   io.ReadCloser
	left   int64 // -1: no limit
	watch  *time.Timer
	cancel context.CancelCauseFunc
	ctx    context.Context
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, fmt.Errorf("an answer of the registry is larger than %d bytes", int64(maxManifest))
	}
	if b.left > 0 {
		p = p[:min(int64(len(p)), b.left)]
	}
	n, err := b.body.Read(p)
	if n > 0 {
		b.watch.Reset(stallTime)
		if b.left > 0 {
			b.left -= int64(n)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	return n, err
}

func (b *boundedBody) Close() error {
	b.watch.Stop()
	b.cancel(nil)
	return b.body.Close()
}
