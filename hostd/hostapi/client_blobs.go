package hostapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// MaxBlob is the size of the largest blob, in bytes: the caches of an app's build, and
// room for what is put around them. Sources of apps are smaller.
const MaxBlob = 1088 << 20

// BlobInfo is what a host has of a blob.
type BlobInfo struct {
	SizeBytes int64  `json:"size_bytes"`
	SHA256    string `json:"sha256"`          // hexadecimal
	Local     bool   `json:"local,omitempty"` // it is on this host's disk, and nowhere else
}

// PutBlob keeps what r has under a name, in place of what was there, and holds none of
// it in memory. The blob is there once PutBlob has returned, and as it was before if it
// fails. Where hosts share a bucket, each of them has it.
func (c *Client) PutBlob(ctx context.Context, name string, r io.Reader) (BlobInfo, error) {
	sum := sha256.New()
	resp, err := c.stream(ctx, request{
		method: http.MethodPut, path: blobPath(name), body: io.TeeReader(r, sum), length: -1,
		// A refusal comes before the body is sent, not in the middle of it.
		header: http.Header{"Content-Type": {"application/octet-stream"}, "Expect": {"100-continue"}},
	})
	if err != nil {
		return BlobInfo{}, err
	}
	defer resp.Body.Close()
	raw, err := readAnswer(resp.Body)
	var out BlobInfo
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return BlobInfo{}, c.explain(fmt.Errorf("keep blob %s: %w: %w", name, ErrUnknownOutcome, err))
	}
	if sent := hex.EncodeToString(sum.Sum(nil)); out.SHA256 != sent {
		return BlobInfo{}, c.explain(fmt.Errorf("keep blob %s: the host has other bytes than were sent: %s, not %s", name, out.SHA256, sent))
	}
	return out, nil
}

// GetBlob returns a blob and its size in bytes, or CodeNotFound. A blob that is cut off
// ends with an error and not with io.EOF. The caller closes it.
func (c *Client) GetBlob(ctx context.Context, name string) (io.ReadCloser, int64, error) {
	resp, err := c.stream(ctx, request{method: http.MethodGet, path: blobPath(name)})
	if err != nil {
		return nil, 0, err
	}
	return resp.Body, resp.ContentLength, nil
}

// DeleteBlob removes a blob. One that is gone is no error.
func (c *Client) DeleteBlob(ctx context.Context, name string) error {
	return gone(c.do(ctx, http.MethodDelete, blobPath(name), nil, nil), CodeNotFound)
}

func blobPath(name string) string { return PathBlobs + "/" + url.PathEscape(name) }
