package edge

import (
	"io"
	"net/http"

	"golang.org/x/net/http/httpguts"
)

// cleanTrailers has a response's trailers pass only as far as its head would: a program
// may send any name after its body, also one that it did not announce, and proxies and
// clients may merge what comes there into the head.
func cleanTrailers(resp *http.Response) {
	c := &trailed{ReadCloser: resp.Body, resp: resp}
	_ = c.clean() // those that are announced have no values yet
	if resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil && resp.Body != http.NoBody {
		resp.Body = c
	}
}

// trailed is the body of a response whose trailers are there when it ends.
type trailed struct {
	io.ReadCloser
	resp *http.Response
}

// Read implements io.Reader.
func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF { // a transport returns it as it is
		if cause := t.clean(); cause != nil {
			return n, cause
		}
	}
	return n, err
}

// Close implements io.Closer. A transport may read the trailers as it closes.
func (t *trailed) Close() error {
	err := t.ReadCloser.Close()
	if t.clean() != nil {
		clear(t.resp.Trailer)
	}
	return err
}

func (t *trailed) clean() error {
	h := t.resp.Trailer
	for k := range h {
		if !httpguts.ValidHeaderFieldName(k) || !httpguts.ValidTrailerHeader(k) {
			delete(h, k)
		}
	}
	removeOwnHeaders(h)
	// A cookie does not belong there (RFC 9110, 6.5.1), nor does what rules a host name.
	removeForHost(h)
	return fewFields(h)
}
