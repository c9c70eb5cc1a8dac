package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
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

func (s *storedStub) Delete(context.Context, string) error { return s.err }

func (s *storedStub) List(_ context.Context, owner, after string, limit int) (hostapi.StoredPage, error) {
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

// Ids in paths are names of files on this host.
func TestBadObjectIDs(t *testing.T) {
	type ( // a field may not be named as a method is
		captures = Captures
		volumes  = Volumes
	)
	h := New(Config{
		// What reaches a part ends in a 500: there is nothing in it.
		Boxes: struct{ Boxes }{}, Captures: struct{ captures }{}, Volumes: struct{ volumes }{}, Builds: struct{ Builds }{},
		ObserveTerm: func(string, uint64) error { return nil },
		Metrics:     http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
	}).handler()
	for _, path := range []string{hostapi.PathCaptures, hostapi.PathVolumes, hostapi.PathBuilds, hostapi.PathTemplates} {
		for _, id := range []string{"..%2Fx", "%2E%2E", ".x", "-x", "a%00", "Vol", "%D0%B0", strings.Repeat("x", maxObjectID+1)} {
			for _, method := range []string{http.MethodPut, http.MethodDelete} {
				if path == hostapi.PathTemplates && method == http.MethodPut {
					continue // no such route
				}
				if status, body := serveHTTP(h, method, path+"/"+id, "{}"); status != http.StatusBadRequest {
					t.Errorf("%s %s/%s: %d %s", method, path, id, status, body)
				}
			}
		}
	}
}
