package server

import (
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
