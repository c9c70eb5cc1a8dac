package hostd

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/berth-cloud/berth/hostd/blob"
	"github.com/berth-cloud/berth/hostd/bucket"
)

// openBlobs opens the blobs of the bucket that hosts share. A host without one keeps
// its own in its data directory.
func (d *Daemon) openBlobs(ctx context.Context) error {
	b, err := openArchiveBucket(ctx, d.cfg)
	local := err == nil && b == nil
	if local {
		b, err = bucket.Open(ctx, &url.URL{Scheme: "file", Path: d.cfg.DataDir})
	}
	if err != nil {
		return fmt.Errorf("open the bucket of blobs: %w", err)
	}
	d.blobs, err = blob.Open(blob.Config{Bucket: b, Local: local, Spool: filepath.Join(d.cfg.DataDir, "blob-spool"), Room: d.room})
	return err
}
