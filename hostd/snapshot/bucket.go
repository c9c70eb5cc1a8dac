package snapshot

import (
	"context"
	"errors"
	"io"
	"time"
)

// bucket is where objects lie: a directory, or a bucket of S3. An object is there
// whole or not at all, and is listed as soon as it is written.
type bucket interface {
	put(ctx context.Context, key string, content []byte) error
	// get returns the content and its size in bytes.
	get(ctx context.Context, key string) (io.ReadCloser, int64, error)
	stat(ctx context.Context, key string) (object, error)
	// copy writes an object again under another key, with the time of now. Where
	// something is there already, it may renew only its time.
	copy(ctx context.Context, from, to string) error
	remove(ctx context.Context, key string) error
	// list visits the objects right below a prefix that ends with a slash, by
	// their keys, from the first that comes after the key after.
	list(ctx context.Context, prefix, after string, visit func(object) error) error
	// passing says whether an error may be gone at the next attempt.
	passing(err error) bool
}

// object is what is there under a key.
type object struct {
	key     string
	size    int64 // bytes
	written time.Time
}

// errNoObject: nothing is there under that key.
var errNoObject = errors.New("no such object")

func isNotFound(err error) bool { return errors.Is(err, errNoObject) }
