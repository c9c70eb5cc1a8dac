package bucket

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
)

// Check writes, reads, lists, copies and removes an object below a prefix that ends
// with a slash: an operator hears what is wrong with a bucket before it is needed.
func Check(ctx context.Context, b Bucket, prefix string) error {
	key := prefix + randomName()
	content := []byte("berth\n")
	if err := Retry(ctx, b, func() error { return b.Put(ctx, key, content) }); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	got, err := Read(ctx, b, key, int64(len(content)))
	if err == nil && !bytes.Equal(got, content) {
		err = errors.New("it is not what was written")
	}
	if err != nil {
		return fmt.Errorf("read what was written: %w", err)
	}
	seen := false
	if err := b.List(ctx, prefix, "", func(o Object) error {
		seen = seen || o.Key == key
		return nil
	}); err != nil {
		return fmt.Errorf("list: list %s: %w", prefix, err)
	}
	if !seen {
		return errors.New("an object is not listed right after it was written: a store with strong consistency is needed")
	}
	if err := Retry(ctx, b, func() error { return b.Copy(ctx, key, key+"-copy") }); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if err := RemoveEach(ctx, b, []string{key, key + "-copy"}); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

func randomName() string {
	raw := make([]byte, 8)
	rand.Read(raw) // never fails: crypto/rand ends the process first
	return hex.EncodeToString(raw)
}
