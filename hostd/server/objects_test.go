package server

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// A host without a snapshot store has nothing of a capture there.
func TestCaptureIsDeletedWithoutAStore(t *testing.T) {
	l := goLive(t)
	const capture = "snap-aaaaaaaaaaaaaaaaaaaa"
	_, err := l.PutCapture(t.Context(), capture, hostapi.CaptureSpec{BoxID: id, Generation: 1, Memory: true})
	must(t, err)
	if _, err := l.StoreCapture(t.Context(), capture); !hostapi.HasCode(err, hostapi.CodeNoStore) {
		t.Errorf("store: %v", err)
	}
	for range 2 { // one that is gone is no error
		must(t, l.DeleteCapture(t.Context(), capture, true))
	}
	if _, err := l.Capture(t.Context(), capture); !hostapi.HasCode(err, hostapi.CodeNoSnapshot) {
		t.Errorf("after the delete: %v", err)
	}
}

// storedStub is a snapshot store that does not answer until it is told to.
type storedStub struct {
	Stored
	err error
}

func (s *storedStub) DeleteStored(context.Context, string) error { return s.err }

func (s *storedStub) ListStored(_ context.Context, owner, after string, limit int) (hostapi.StoredPage, error) {
	return hostapi.StoredPage{IDs: []string{owner, after, strconv.Itoa(limit)}, More: true}, s.err
}

func TestTheStoreIsListed(t *testing.T) {
	l := goLive(t)
	if _, err := l.Stored(t.Context(), "cl", "", 10); !hostapi.HasCode(err, hostapi.CodeNoStore) {
		t.Errorf("without a store: %v", err)
	}
	l = goLive(t, func(c *Config) { c.Stored = &storedStub{} })
	if page, err := l.Stored(t.Context(), "cl", "snap-1", 10); err != nil || !page.More || strings.Join(page.IDs, " ") != "cl snap-1 10" {
		t.Errorf("%+v, %v", page, err)
	}
	for _, limit := range []int{-1, 0, hostapi.MaxStoredPage + 1} {
		if _, err := l.Stored(t.Context(), "cl", "", limit); !hostapi.HasCode(err, hostapi.CodeInvalid) {
			t.Errorf("a limit of %d: %v", limit, err)
		}
	}
}

// A capture whose stored copy is still there is not forgotten.
func TestCaptureStaysUntilItsStoredCopyIsGone(t *testing.T) {
	stub := &storedStub{err: errors.New("bucket is gone")}
	l := goLive(t, func(c *Config) { c.Stored = stub })
	const capture = "snap-aaaaaaaaaaaaaaaaaaaa"
	_, err := l.PutCapture(t.Context(), capture, hostapi.CaptureSpec{BoxID: id, Generation: 1, Memory: true})
	must(t, err)
	if err := l.DeleteCapture(t.Context(), capture, true); err == nil {
		t.Error("it is said to be gone")
	}
	if _, err := l.Capture(t.Context(), capture); err != nil {
		t.Errorf("after a delete that failed: %v", err)
	}
	stub.err = nil
	must(t, l.DeleteCapture(t.Context(), capture, true))
	if _, err := l.Capture(t.Context(), capture); !hostapi.HasCode(err, hostapi.CodeNoSnapshot) {
		t.Errorf("after the delete: %v", err)
	}
}
