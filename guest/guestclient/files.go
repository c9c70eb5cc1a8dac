package guestclient

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// maxListing bounds the listing of a directory, in bytes. Entries of two bytes
// take fifty times that in memory.
const maxListing = 1 << 20

// inlineBody goes with its request; a larger one is sent once guestd took the
// request, so that a refusal reaches whoever is still sending. In bytes.
const inlineBody = 64 << 10

func at(path string) url.Values { return url.Values{"path": {path}} }

// Stat describes what is at a path; a link itself, not what it points to.
func (c *Client) Stat(ctx context.Context, path string) (guestapi.FileStat, error) {
	var st guestapi.FileStat
	return st, c.get(ctx, target(guestapi.PathFSStat, at(path)), maxAnswer, &st)
}

// ReadDir lists a directory that is not large.
func (c *Client) ReadDir(ctx context.Context, path string) (guestapi.Directory, error) {
	var d guestapi.Directory
	return d, c.get(ctx, target(guestapi.PathFSDir, at(path)), maxListing, &d)
}

// MakeDir makes a directory with its parents.
func (c *Client) MakeDir(ctx context.Context, path string) error {
	return c.call(ctx, http.MethodPost, target(guestapi.PathFSDir, at(path)), empty, nil)
}

// Remove removes what is at a path; with recursive, a directory with all that is
// in it.
func (c *Client) Remove(ctx context.Context, path string, recursive bool) error {
	query := at(path)
	query.Set("recursive", strconv.FormatBool(recursive))
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, "http://guest"+target(guestapi.PathFS, query), nil)
	if err != nil {
		return err
	}
	resp, err := c.stream(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ReadFile opens a file. size is -1 where only the end shows it. The caller
// closes the reader; an end before the file's is io.ErrUnexpectedEOF.
func (c *Client) ReadFile(ctx context.Context, path string) (content io.ReadCloser, size int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest"+target(guestapi.PathFS, at(path)), nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := c.stream(req)
	if err != nil {
		return nil, 0, err
	}
	return resp.Body, resp.ContentLength, nil
}

// WriteFile replaces a file atomically once all of content has arrived. size is that of content, or -1. created says that no file was there.
func (c *Client) WriteFile(ctx context.Context, path string, mode uint32, content io.Reader, size int64) (created bool, err error) {
	query := at(path)
	query.Set("mode", strconv.FormatUint(uint64(mode), 8))
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://guest"+target(guestapi.PathFS, query), content)
	if err != nil {
		return false, err
	}
	req.ContentLength = size
	switch {
	case size == 0:
		req.Body = http.NoBody
	case size < 0 || size > inlineBody:
		req.Header.Set("Expect", "100-continue")
	}
	resp, err := c.stream(req)
	if err != nil {
		return false, err
	}
	return resp.StatusCode == http.StatusCreated, resp.Body.Close()
}

// PutFile writes a file that is in memory.
func (c *Client) PutFile(ctx context.Context, path string, mode uint32, data []byte) error {
	_, err := c.WriteFile(ctx, path, mode, bytes.NewReader(data), int64(len(data)))
	return err
}
