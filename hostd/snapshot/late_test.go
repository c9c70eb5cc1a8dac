package snapshot

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/hostd/bucket"
)

// slow is a bucket whose writes of some keys are delayed, before or after they take
// effect.
type slow struct {
	bucket.Bucket
	prefix        string
	before, after time.Duration
}

func (b slow) Put(ctx context.Context, key string, content []byte) error {
	if !strings.HasPrefix(key, b.prefix) {
		return b.Bucket.Put(ctx, key, content)
	}
	<-time.After(b.before)
	err := b.Bucket.Put(context.WithoutCancel(ctx), key, content)
	<-time.After(b.after)
	return err
}

// An object that the upload found in the store may have been removed by then.
func TestALateUploadIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		slow
		manifests int
	}{
		"before its manifest": {slow{prefix: chunksDir, before: 31 * time.Minute}, 0},
		"with its manifest":   {slow{prefix: manifestsDir, after: 31 * time.Minute}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, dir := fileStore(t, Options{Grace: time.Hour})
				src := newCapture(t, 1).Source
				c.slow.Bucket, s.bucket = s.bucket, nil
				s.bucket = c.slow
				if _, _, err := s.Upload(t.Context(), "snap-1", src); !errors.Is(err, errTooLate) {
					t.Errorf("upload = %v", err)
				}
				if m := objects(t, dir, manifestsDir); len(m) != c.manifests {
					t.Errorf("manifests: %v", m)
				}
			})
		})
	}
}
