package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Captures is what the routes of captures call. Deleting one that is gone is no
// error.
type Captures interface {
	Make(ctx context.Context, id string, spec hostapi.CaptureSpec) (hostapi.Capture, error)
	List() []hostapi.Capture
	Get(id string) (hostapi.Capture, error)
	Delete(ctx context.Context, id string) error
}

// Stored is the snapshot store's side of captures.
type Stored interface {
	// Upload uploads a capture and waits until it is complete there.
	Upload(ctx context.Context, id string) (hostapi.Capture, error)
	// Delete removes a stored capture, wherever it was made.
	Delete(ctx context.Context, id string) error
	// List returns at most limit ids of what is in the owner's store, after one.
	List(ctx context.Context, owner, after string, limit int) (hostapi.StoredPage, error)
}

// Volumes is what the routes of volumes call.
type Volumes interface {
	PutVolume(ctx context.Context, id string, spec hostapi.VolumeSpec) (hostapi.Volume, error)
	Volumes() []hostapi.Volume
	Volume(id string) (hostapi.Volume, error)
	DeleteVolume(ctx context.Context, id string) error
}

// Builds is what the routes of builds and templates call.
type Builds interface {
	PutBuild(ctx context.Context, id string, spec hostapi.BuildSpec) (hostapi.Build, error)
	Build(id string) (hostapi.Build, error)
	DeleteBuild(ctx context.Context, id string) error
	// BuildLogs hands on what a build has said, and with follow what it will
	// say, until it ends.
	BuildLogs(ctx context.Context, id string, follow bool, emit func(hostapi.LogLine) error) error
	DeleteTemplate(ctx context.Context, name string) error
}

// objectRoutes are the routes of what outlives boxes. The routes of a part that
// this host does not have say so.
func (s *Server) objectRoutes(route func(string, func(*http.Request) (any, error))) {
	part := func(there bool) func(string, func(*http.Request, string) (any, error)) {
		return func(pattern string, h func(*http.Request, string) (any, error)) {
			route(pattern, func(r *http.Request) (any, error) {
				if !there {
					return nil, errNotHere
				}
				key, err := objectID(r)
				if err != nil {
					return nil, err
				}
				return h(r, key)
			})
		}
	}
	s.captureRoutes(part(s.cfg.Captures != nil))
	s.volumeRoutes(part(s.cfg.Volumes != nil))
	s.buildRoutes(part(s.cfg.Builds != nil))
}

type objectRoute = func(string, func(r *http.Request, id string) (any, error))

func (s *Server) captureRoutes(route objectRoute) {
	const one = hostapi.PathCaptures + "/{id}"
	route("GET "+hostapi.PathCaptures, func(*http.Request, string) (any, error) { return s.cfg.Captures.List(), nil })
	route("GET "+one, func(_ *http.Request, id string) (any, error) { return s.cfg.Captures.Get(id) })
	route("PUT "+one, s.changing(func(r *http.Request, id string) (any, error) {
		var spec hostapi.CaptureSpec
		if err := decode(r, &spec); err != nil {
			return nil, err
		}
		return s.cfg.Captures.Make(r.Context(), id, spec)
	}))
	route("DELETE "+one, s.changing(func(r *http.Request, id string) (any, error) {
		// The stored copy first: while this host has the capture, its heartbeats
		// report it, and the leader repeats the delete. A host without a store has
		// no stored copy to delete; if there is one, the leader asks another host.
		if r.URL.Query().Get(hostapi.QueryStored) == "true" && s.cfg.Stored != nil {
			if err := s.cfg.Stored.Delete(r.Context(), id); err != nil {
				return nil, err
			}
		}
		return nil, s.cfg.Captures.Delete(r.Context(), id)
	}))
	route("POST "+one+"/store", s.changing(func(r *http.Request, id string) (any, error) {
		if s.cfg.Stored == nil {
			return nil, errNoStore
		}
		return s.cfg.Stored.Upload(r.Context(), id)
	}))
	route("GET "+hostapi.PathStored, func(r *http.Request, _ string) (any, error) {
		if s.cfg.Stored == nil {
			return nil, errNoStore
		}
		query, limit := r.URL.Query(), hostapi.MaxStoredPage
		if text := query.Get(hostapi.QueryLimit); text != "" {
			var err error
			if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > hostapi.MaxStoredPage {
				return nil, fmt.Errorf("%w: %s is no number from 1 to %d", hosterr.ErrInvalid, hostapi.QueryLimit, hostapi.MaxStoredPage)
			}
		}
		return s.cfg.Stored.List(r.Context(), query.Get(hostapi.QueryOwner), query.Get(hostapi.QueryAfter), limit)
	})
}

func (s *Server) volumeRoutes(route objectRoute) {
	const one = hostapi.PathVolumes + "/{id}"
	route("GET "+hostapi.PathVolumes, func(*http.Request, string) (any, error) { return s.cfg.Volumes.Volumes(), nil })
	route("GET "+one, func(_ *http.Request, id string) (any, error) { return s.cfg.Volumes.Volume(id) })
	route("PUT "+one, s.changing(func(r *http.Request, id string) (any, error) {
		var spec hostapi.VolumeSpec
		if err := decode(r, &spec); err != nil {
			return nil, err
		}
		return s.cfg.Volumes.PutVolume(r.Context(), id, spec)
	}))
	route("DELETE "+one, s.changing(func(r *http.Request, id string) (any, error) {
		return nil, s.cfg.Volumes.DeleteVolume(r.Context(), id)
	}))
}

func (s *Server) buildRoutes(route objectRoute) {
	const one = hostapi.PathBuilds + "/{id}"
	route("GET "+one, func(_ *http.Request, id string) (any, error) { return s.cfg.Builds.Build(id) })
	route("PUT "+one, s.changing(func(r *http.Request, id string) (any, error) {
		var spec hostapi.BuildSpec
		if err := decode(r, &spec); err != nil {
			return nil, err
		}
		return s.cfg.Builds.PutBuild(r.Context(), id, spec)
	}))
	route("DELETE "+one, s.changing(func(r *http.Request, id string) (any, error) {
		return nil, s.cfg.Builds.DeleteBuild(r.Context(), id)
	}))
	route("DELETE "+hostapi.PathTemplates+"/{id}", s.changing(func(r *http.Request, name string) (any, error) {
		return nil, s.cfg.Builds.DeleteTemplate(r.Context(), name)
	}))
}

// changing is withTerm for routes of objects.
func (s *Server) changing(h func(*http.Request, string) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, id string) (any, error) {
		return s.withTerm(func(r *http.Request) (any, error) { return h(r, id) })(r)
	}
}

// maxObjectID bounds an id that is no sandbox's.
const maxObjectID = 128

// objectID is the id of a capture, volume or build, or a template's name; empty
// on routes that have none. Each is a file's name on this host.
func objectID(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if len(id) > maxObjectID {
		return "", fmt.Errorf("%w: id is longer than %d characters", hosterr.ErrInvalid, maxObjectID)
	}
	for i := range len(id) {
		c := id[i]
		letter := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '-' && c != '_' && c != '.') {
			return "", fmt.Errorf("%w: id has other characters than a-z, 0-9, '-', '_' and '.'", hosterr.ErrInvalid)
		}
	}
	return id, nil
}
