// Package bucket is where a host keeps objects that others read too: a directory, or
// a bucket of S3.
package bucket

import (
	"context"
	"errors"
	"io"
	"net/url"
	"path/filepath"
	"time"
)

// Bucket is where objects lie: a directory, or a bucket of S3. An object is there
// whole or not at all, and is listed as soon as it is written.
type Bucket interface {
	Put(ctx context.Context, key string, content []byte) error
	// PutFrom is Put of what is read, which is size bytes and not held in memory. It
	// may be read more than once.
	PutFrom(ctx context.Context, key string, content io.ReadSeeker, size int64) error
	// Create is Put where nothing is yet, else ErrExists. A store that cannot tell
	// takes it for Put. Whoever tries again after an error may meet what it wrote.
	Create(ctx context.Context, key string, content []byte) error
	// Get returns the content and its size in bytes.
	Get(ctx context.Context, key string) (io.ReadCloser, int64, error)
	Stat(ctx context.Context, key string) (Object, error)
	// Copy writes an object again under another key, with the time of now. Where
	// something is there already, it may renew only its time.
	Copy(ctx context.Context, from, to string) error
	Remove(ctx context.Context, key string) error
	// List visits the objects right below a prefix that ends with a slash, by
	// their keys, from the first that comes after the key after.
	List(ctx context.Context, prefix, after string, visit func(Object) error) error
	// Walk visits all objects whose keys begin with a prefix that ends with a slash, in
	// no order.
	Walk(ctx context.Context, prefix string, visit func(Object) error) error
	// RemoveAll removes what Walk visits, in no order, and what was half-written there.
	// It is no error if nothing is there.
	RemoveAll(ctx context.Context, prefix string) error
	// Sweep removes what writers that died before a moment left half-written below a
	// prefix that ends with a slash.
	Sweep(ctx context.Context, prefix string, before time.Time) error
	// Passing says whether an error may be gone at the next attempt.
	Passing(err error) bool
	// Sync makes the names in the directories of these keys durable, and the
	// directories' own. One that was never made has none: nothing was put there yet.
	// The bucket's own has to be there. Those of S3 are once it has answered.
	Sync(dirs ...string) error
}

// Object is what is there under a key.
type Object struct {
	Key     string
	Size    int64 // bytes
	Written time.Time
}

// Errors of a bucket that a caller tells apart.
var (
	ErrNotFound = errors.New("no such object")
	ErrExists   = errors.New("there is such an object already")
)

// Open opens the bucket of a URL: file:///directory, which is made if it must, or
// s3://bucket with the options region, endpoint, profile and use_path_style.
// Credentials of S3 come from the environment, the profile or the machine's role.
// Nothing is sent yet.
func Open(ctx context.Context, u *url.URL) (Bucket, error) {
	switch u.Scheme {
	case "file":
		if u.Host != "" || !filepath.IsAbs(u.Path) {
			return nil, errors.New("want file:// and an absolute path, with three slashes")
		}
		if u.RawQuery != "" {
			return nil, errors.New("a directory has no options")
		}
		return openDirectory(filepath.Clean(u.Path))
	case "s3":
		return openS3(ctx, u)
	}
	return nil, errors.New("want file:///directory or s3://bucket")
}
