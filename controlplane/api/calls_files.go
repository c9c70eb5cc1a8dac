package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
)

// FileBody is an open file. The caller closes it.
type FileBody struct {
	io.ReadCloser
	Size       int64 // -1 if unknown
	ModifiedAt time.Time
}

// ReadFile opens a file of a sandbox. If the transfer breaks, reading fails with
// io.ErrUnexpectedEOF.
func (c *Client) ReadFile(ctx context.Context, id, path string) (*FileBody, error) {
	resp, err := c.do(ctx, file(http.MethodGet, id, path, ""))
	if err != nil {
		return nil, err
	}
	f := &FileBody{ReadCloser: resp.Body, Size: resp.ContentLength}
	if at, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		f.ModifiedAt = at
	}
	return f, nil
}

// WriteFile replaces the file at path, in one step, with size bytes of body (-1:
// until its end), and reports whether the file is new. mode is octal; "" means 0644.
// A failure leaves the former file in place.
func (c *Client) WriteFile(ctx context.Context, id, path, mode string, body io.Reader, size int64) (isNew bool, err error) {
	cl := file(http.MethodPut, id, path, "")
	if mode != "" {
		cl.query.Set("mode", mode)
	}
	cl.header = http.Header{"Content-Type": {"application/octet-stream"}}
	cl.reader, cl.size = body, size
	resp, err := c.do(ctx, cl)
	if err != nil {
		return false, err
	}
	return resp.StatusCode == http.StatusCreated, resp.Body.Close()
}

// RemoveFile removes a file or a directory. A directory must be empty unless
// recursive is set.
func (c *Client) RemoveFile(ctx context.Context, id, path string, recursive bool) error {
	cl := file(http.MethodDelete, id, path, "")
	if recursive {
		cl.query.Set("recursive", "true")
	}
	return c.done(ctx, cl)
}

// StatFile describes an entry. It describes a symbolic link itself, not its target.
func (c *Client) StatFile(ctx context.Context, id, path string) (*FileStat, error) {
	return into[FileStat](ctx, c, file(http.MethodGet, id, path, "stat"))
}

// ListDir returns the content of a directory, sorted by name.
func (c *Client) ListDir(ctx context.Context, id, path string) (*Directory, error) {
	return into[Directory](ctx, c, file(http.MethodGet, id, path, "dir"))
}

// MakeDir creates a directory and its parents.
func (c *Client) MakeDir(ctx context.Context, id, path string) error {
	cl := file(http.MethodPost, id, path, "dir")
	cl.header, cl.body, cl.safe = http.Header{"Content-Type": {"application/json"}}, []byte("{}"), true
	return c.done(ctx, cl)
}

func file(method, id, path, sub string) call {
	segments := []string{Version, "sandboxes", id, "fs"}
	if sub != "" {
		segments = append(segments, sub)
	}
	return call{
		method: method, path: join(segments), query: url.Values{"path": {path}},
		safe: method == http.MethodGet || method == http.MethodDelete,
	}
}
