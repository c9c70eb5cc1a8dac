package server

import (
	"context"
	"net/http"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Databases is what the routes of databases call.
type Databases interface {
	Put(id string, spec hostapi.DatabaseSpec) (hostapi.DatabaseState, error)
	Get(ctx context.Context, id string) (hostapi.DatabaseState, error)
	SetCredentials(ctx context.Context, id string, c pgapi.Credentials) (pgapi.CredentialsApplied, error)
	Backup(id string) error
	Switch(ctx context.Context, id string) (hostapi.DatabaseState, error)
	Sleep(ctx context.Context, id string, s hostapi.DatabaseSleep) (hostapi.Box, error)
}

// Archives is what the routes of archives call.
type Archives interface {
	Info(ctx context.Context, a hostapi.Archive) (hostapi.ArchiveInfo, error)
	Prune(ctx context.Context, p hostapi.ArchivePrune) (hostapi.ArchiveInfo, error)
	Fence(ctx context.Context, a hostapi.Archive) error
	Delete(ctx context.Context, a hostapi.Archive) error
}

const databasePath = boxPath + "/database"

// accepted is the answer of a route that has begun something.
type accepted struct{}

func (s *Server) databaseRoutes(route func(string, func(*http.Request) (any, error))) {
	database := func(h func(*http.Request, string) (any, error)) func(*http.Request) (any, error) {
		return func(r *http.Request) (any, error) {
			id, err := pathID(r)
			if err != nil {
				return nil, err
			}
			if s.cfg.Databases == nil {
				return nil, errNoStore
			}
			return h(r, id)
		}
	}
	route("PUT "+databasePath, s.withTerm(database(s.putDatabase)))
	route("GET "+databasePath, database(func(r *http.Request, id string) (any, error) { return s.cfg.Databases.Get(r.Context(), id) }))
	route("PUT "+databasePath+"/credentials", s.withTerm(database(s.setCredentials)))
	route("POST "+databasePath+"/backup", s.withTerm(database(func(_ *http.Request, id string) (any, error) {
		return accepted{}, s.cfg.Databases.Backup(id)
	})))
	route("POST "+databasePath+"/switch", s.withTerm(database(func(r *http.Request, id string) (any, error) { return s.cfg.Databases.Switch(r.Context(), id) })))
	route("POST "+databasePath+"/sleep", s.withTerm(database(s.sleepDatabase)))

	route("POST "+hostapi.PathArchives+"/info", archive(s, func(ctx context.Context, a hostapi.Archive) (any, error) { return s.cfg.Archives.Info(ctx, a) }))
	route("POST "+hostapi.PathArchives+"/prune", s.withTerm(archive(s, func(ctx context.Context, p hostapi.ArchivePrune) (any, error) {
		return s.cfg.Archives.Prune(ctx, p)
	})))
	route("POST "+hostapi.PathArchives+"/fence", s.withTerm(archive(s, func(ctx context.Context, a hostapi.Archive) (any, error) {
		return nil, s.cfg.Archives.Fence(ctx, a)
	})))
	route("POST "+hostapi.PathArchives+"/delete", s.withTerm(archive(s, func(ctx context.Context, a hostapi.Archive) (any, error) {
		return nil, s.cfg.Archives.Delete(ctx, a)
	})))
}

// archive is a route of archives. The request names one, with its key.
func archive[T any](s *Server, act func(context.Context, T) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		if s.cfg.Archives == nil {
			return nil, errNoStore
		}
		var in T
		if err := decode(r, &in); err != nil {
			return nil, err
		}
		return act(r.Context(), in)
	}
}

func (s *Server) putDatabase(r *http.Request, id string) (any, error) {
	var spec hostapi.DatabaseSpec
	if err := decode(r, &spec); err != nil {
		return nil, err
	}
	return s.cfg.Databases.Put(id, spec)
}

func (s *Server) setCredentials(r *http.Request, id string) (any, error) {
	var c pgapi.Credentials
	if err := decode(r, &c); err != nil {
		return nil, err
	}
	return s.cfg.Databases.SetCredentials(r.Context(), id, c)
}

func (s *Server) sleepDatabase(r *http.Request, id string) (any, error) {
	var in hostapi.DatabaseSleep
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	return s.cfg.Databases.Sleep(r.Context(), id, in)
}
