package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Commands is what the routes of commands call that belong to a guest.
type Commands interface {
	StartCommand(ctx context.Context, id string, req hostapi.StartCommand) (hostapi.Command, error)
	Commands(ctx context.Context, id string) ([]hostapi.Command, error)
	Command(ctx context.Context, id, command string) (hostapi.Command, error)
	DeleteCommand(ctx context.Context, id, command string) error
	WriteCommand(ctx context.Context, id, command string, in hostapi.CommandInput) error
	SignalCommand(ctx context.Context, id, command string, in hostapi.CommandSignal) error
	CommandOutput(ctx context.Context, id, command string, since int64, follow bool, out guestio.Output) error
}

const commandPath = boxPath + "/commands/{command}"

func (s *Server) commandRoutes(route func(string, func(*http.Request) (any, error))) {
	guest := func(pattern string, h func(r *http.Request, id string) (any, error)) {
		route(pattern, func(r *http.Request) (any, error) {
			id, err := pathID(r)
			if err != nil {
				return nil, err
			}
			if s.cfg.Guests == nil {
				return nil, errNotHere
			}
			return h(r, id)
		})
	}
	one := func(pattern string, h func(r *http.Request, id, command string) (any, error)) {
		guest(pattern, func(r *http.Request, id string) (any, error) {
			command, err := commandID(r)
			if err != nil {
				return nil, err
			}
			return h(r, id, command)
		})
	}
	guest("POST "+boxPath+"/commands", func(r *http.Request, id string) (any, error) {
		var req hostapi.StartCommand
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		return s.cfg.Guests.StartCommand(r.Context(), id, req)
	})
	guest("GET "+boxPath+"/commands", func(r *http.Request, id string) (any, error) {
		return s.cfg.Guests.Commands(r.Context(), id)
	})
	one("GET "+commandPath, func(r *http.Request, id, command string) (any, error) {
		return s.cfg.Guests.Command(r.Context(), id, command)
	})
	one("DELETE "+commandPath, func(r *http.Request, id, command string) (any, error) {
		return nil, s.cfg.Guests.DeleteCommand(r.Context(), id, command)
	})
	one("POST "+commandPath+"/input", func(r *http.Request, id, command string) (any, error) {
		var in hostapi.CommandInput
		if err := decode(r, &in); err != nil {
			return nil, err
		}
		return nil, s.cfg.Guests.WriteCommand(r.Context(), id, command, in)
	})
	one("POST "+commandPath+"/signal", func(r *http.Request, id, command string) (any, error) {
		var in hostapi.CommandSignal
		if err := decode(r, &in); err != nil {
			return nil, err
		}
		return nil, s.cfg.Guests.SignalCommand(r.Context(), id, command, in)
	})
}

// commandID is the id of a command in a request's path. It becomes part of a path itself.
func commandID(r *http.Request) (string, error) {
	id := r.PathValue("command")
	if !hostapi.ValidCommandID(id) {
		return "", fmt.Errorf("%w: command id", hosterr.ErrInvalid)
	}
	return id, nil
}

// commandOutput answers with what a command has written, and with follow with what it
// writes, as server-sent events.
func (s *Server) commandOutput(w http.ResponseWriter, r *http.Request, id string) error {
	command, err := commandID(r)
	if err != nil {
		return err
	}
	since, err := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
	if err != nil || since < 0 {
		return fmt.Errorf("%w: since %.32q", hosterr.ErrInvalid, r.URL.Query().Get("since"))
	}
	return s.follow(w, r, func(ctx context.Context, out *sse) error {
		return s.cfg.Guests.CommandOutput(ctx, id, command, since, follow(r), guestio.Output{
			Began: out.begin,
			Emit:  func(o hostapi.CommandOutput) error { return out.message("", "output", o) },
		})
	})
}
