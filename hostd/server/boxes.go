package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Boxes is what the routes of boxes call.
type Boxes interface {
	Put(ctx context.Context, id string, spec hostapi.BoxSpec) (hostapi.Box, error)
	Get(id string) (hostapi.Box, error)
	List() []hostapi.Box
	Ready() bool
	Delete(ctx context.Context, id string, generation uint64) error
	DeleteKeepingDisk(ctx context.Context, id string, generation uint64) error
	Update(ctx context.Context, id string, u hostapi.BoxUpdate) (hostapi.Box, error)
	Pause(ctx context.Context, id string) (hostapi.Box, error)
	Resume(ctx context.Context, id string) (hostapi.Box, error)
	Hibernate(ctx context.Context, id string) (hostapi.Box, error)
	Wake(ctx context.Context, id string) (hostapi.Box, error)
	Restart(ctx context.Context, id string) (hostapi.Box, error)
}

// Stats measures boxes.
type Stats interface {
	Usage(ctx context.Context, id string, history time.Duration) (hostapi.BoxStats, error)
}

const boxPath = hostapi.PathBoxes + "/{id}"

func (s *Server) boxRoutes(route func(string, func(*http.Request) (any, error))) {
	transition := func(name string, act func(context.Context, string) (hostapi.Box, error)) {
		route("POST "+boxPath+"/"+name, s.withTerm(func(r *http.Request) (any, error) {
			id, err := pathID(r)
			if err != nil {
				return nil, err
			}
			return act(r.Context(), id)
		}))
	}
	boxes := s.cfg.Boxes
	route("GET "+hostapi.PathBoxes, s.list)
	route("GET "+boxPath, s.get)
	route("PUT "+boxPath, s.withTerm(s.put))
	route("PATCH "+boxPath, s.withTerm(s.update))
	route("DELETE "+boxPath, s.withTerm(s.remove))
	transition("pause", boxes.Pause)
	transition("resume", boxes.Resume)
	transition("hibernate", boxes.Hibernate)
	transition("wake", boxes.Wake)
	transition("restart", boxes.Restart)
	route("POST "+boxPath+"/exec", s.exec)
	route("GET "+boxPath+"/ports", s.ports)
	route("POST "+boxPath+"/events", s.withTerm(s.postEvent))
	route("GET "+boxPath+"/stats", s.stats)
}

func (s *Server) list(*http.Request) (any, error) {
	if !s.cfg.Boxes.Ready() {
		return nil, hosterr.ErrDraining
	}
	return s.cfg.Boxes.List(), nil
}

func (s *Server) get(r *http.Request) (any, error) {
	id, err := pathID(r)
	if err != nil {
		return nil, err
	}
	return s.cfg.Boxes.Get(id)
}

func (s *Server) put(r *http.Request) (any, error) {
	id, err := pathID(r)
	if err != nil {
		return nil, err
	}
	var spec hostapi.BoxSpec
	if err := decode(r, &spec); err != nil {
		return nil, err
	}
	return s.cfg.Boxes.Put(r.Context(), id, spec)
}

func (s *Server) remove(r *http.Request) (any, error) {
	id, err := pathID(r)
	if err != nil {
		return nil, err
	}
	var generation uint64
	if q := r.URL.Query().Get(hostapi.QueryGeneration); q != "" {
		if generation, err = strconv.ParseUint(q, 10, 64); err != nil {
			return nil, fmt.Errorf("%w: generation %q", hosterr.ErrInvalid, q)
		}
	}
	if r.URL.Query().Get(hostapi.QueryKeepDisk) == "true" {
		return nil, s.cfg.Boxes.DeleteKeepingDisk(r.Context(), id, generation)
	}
	return nil, s.cfg.Boxes.Delete(r.Context(), id, generation)
}

func (s *Server) update(r *http.Request) (any, error) {
	id, err := pathID(r)
	if err != nil {
		return nil, err
	}
	var u hostapi.BoxUpdate
	if err := decode(r, &u); err != nil {
		return nil, err
	}
	return s.cfg.Boxes.Update(r.Context(), id, u)
}

func (s *Server) exec(r *http.Request) (any, error) {
	id, err := pathID(r)
	if err != nil {
		return nil, err
	}
	var req hostapi.ExecRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if s.cfg.Guests == nil {
		return nil, errNotHere
	}
	return s.cfg.Guests.Exec(r.Context(), id, req)
}

func (s *Server) ports(r *http.Request) (any, error) {
	id, err := pathID(r)
	if err != nil {
		return nil, err
	}
	if s.cfg.Guests == nil {
		return nil, errNotHere
	}
	return s.cfg.Guests.Ports(r.Context(), id)
}

func (s *Server) stats(r *http.Request) (any, error) {
	id, err := pathID(r)
	if err != nil {
		return nil, err
	}
	var seconds int64
	if q := r.URL.Query().Get(hostapi.QueryHistory); q != "" {
		if seconds, err = strconv.ParseInt(q, 10, 32); err != nil {
			return nil, fmt.Errorf("%w: history %q", hosterr.ErrInvalid, q)
		}
	}
	if s.cfg.Stats == nil {
		return nil, errNotHere
	}
	return s.cfg.Stats.Usage(r.Context(), id, time.Duration(seconds)*time.Second)
}
