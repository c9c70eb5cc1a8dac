package server

import (
	"context"
	"errors"
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// A host without a snapshot store has nothing of a capture there.
func TestCaptureIsDeletedWithoutAStore(t *testing.T) {
	l := goLive(t)
	const capture = "snap-aaaaaaaaaaaaaaaaaaaa"
	_, err := l.PutCapture(t.Context(), call, capture, hostapi.CaptureSpec{BoxID: id, Generation: 1, Memory: true})
	must(t, err)
	if _, err := l.StoreCapture(t.Context(), call, capture); !hostapi.HasCode(err, hostapi.CodeNoStore) {
		t.Errorf("store: %v", err)
	}
	for range 2 { // one that is gone is no error
		must(t, l.DeleteCapture(t.Context(), call, capture, true))
	}
	if _, err := l.Capture(t.Context(), call, capture); !hostapi.HasCode(err, hostapi.CodeNoSnapshot) {
		t.Errorf("after the delete: %v", err)
	}
}

// storedStub is a snapshot store that does not answer until it is told to.
type storedStub struct {
	Stored
	err error
}

func (s *storedStub) DeleteStored(context.Context, string) error { return s.err }

// A capture whose stored copy is still there is not forgotten.
func TestCaptureStaysUntilItsStoredCopyIsGone(t *testing.T) {
	stub := &storedStub{err: errors.New("bucket is gone")}
	l := goLive(t, func(c *Config) { c.Stored = stub })
	const capture = "snap-aaaaaaaaaaaaaaaaaaaa"
	_, err := l.PutCapture(t.Context(), call, capture, hostapi.CaptureSpec{BoxID: id, Generation: 1, Memory: true})
	must(t, err)
	if err := l.DeleteCapture(t.Context(), call, capture, true); err == nil {
		t.Error("it is said to be gone")
	}
	if _, err := l.Capture(t.Context(), call, capture); err != nil {
		t.Errorf("after a delete that failed: %v", err)
	}
	stub.err = nil
	must(t, l.DeleteCapture(t.Context(), call, capture, true))
	if _, err := l.Capture(t.Context(), call, capture); !hostapi.HasCode(err, hostapi.CodeNoSnapshot) {
		t.Errorf("after the delete: %v", err)
	}
}
