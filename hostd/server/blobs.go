package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Blobs is what the routes of blobs call.
type Blobs interface {
	// Put keeps what is read under a name, whole or not at all. The length is -1
	// where the caller did not announce one.
	Put(ctx context.Context, name string, length int64, r io.Reader) (hostapi.BlobInfo, error)
	Get(ctx context.Context, name string) (body io.ReadCloser, size int64, err error)
	// Delete of one that is gone is no error.
	Delete(ctx context.Context, name string) error
}

func (s *Server) blobRoutes(route func(string, func(http.ResponseWriter, *http.Request) error)) {
	blob := func(method string, h func(http.ResponseWriter, *http.Request, string) error) {
		route(method+" "+hostapi.PathBlobs+"/{id}", func(w http.ResponseWriter, r *http.Request) error {
			name, err := objectID(r)
			if err != nil {
				return err
			}
			if name == "" {
				return fmt.Errorf("%w: a blob has a name", hosterr.ErrInvalid)
			}
			if s.cfg.Blobs == nil {
				return errNotHere
			}
			if method != http.MethodGet {
				if err := s.observeTerm(r); err != nil {
					return err
				}
			}
			return h(w, r, name)
		})
	}
	blob(http.MethodPut, s.putBlob)
	blob(http.MethodGet, s.getBlob)
	blob(http.MethodDelete, func(w http.ResponseWriter, r *http.Request, name string) error {
		if err := s.cfg.Blobs.Delete(r.Context(), name); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

func (s *Server) putBlob(w http.ResponseWriter, r *http.Request, name string) error {
	info, err := s.cfg.Blobs.Put(r.Context(), name, r.ContentLength, r.Body)
	if err != nil {
		return err
	}
	reply(w, http.StatusOK, info)
	return nil
}

func (s *Server) getBlob(w http.ResponseWriter, r *http.Request, name string) error {
	body, size, err := s.cfg.Blobs.Get(r.Context(), name)
	if err != nil {
		return err
	}
	defer body.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if _, err := io.CopyBuffer(plainWriter{w}, body, make([]byte, relayBuffer)); err != nil {
		s.cfg.Log.DebugContext(r.Context(), "transfer broke off", "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}
