package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/berth-cloud/berth/guest/commands"
	"github.com/berth-cloud/berth/guest/files"
	"github.com/berth-cloud/berth/guest/guestapi"
)

func (s *Server) commandRoutes(mux *http.ServeMux) {
	const one = guestapi.PathCommands + "/{id}"
	mux.HandleFunc("POST "+guestapi.PathCommands, s.startCommand)
	mux.HandleFunc("GET "+guestapi.PathCommands, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, s.commands.List())
	})
	mux.HandleFunc("GET "+one, s.onCommand(func(w http.ResponseWriter, _ *http.Request, c *commands.Command) error {
		reply(w, http.StatusOK, c.Info())
		return nil
	}))
	mux.HandleFunc("DELETE "+one, s.onCommand(func(w http.ResponseWriter, r *http.Request, _ *commands.Command) error {
		err := s.commands.Remove(r.PathValue("id"))
		if err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
		return err
	}))
	mux.HandleFunc("GET "+one+"/output", s.onCommand(s.commandOutput))
	mux.HandleFunc("POST "+one+"/input", s.onCommand(func(w http.ResponseWriter, r *http.Request, c *commands.Command) error {
		var in guestapi.CommandInput
		return done(w, r, &in, func() error { return c.Input(in.Data, in.EOF) })
	}))
	mux.HandleFunc("POST "+one+"/signal", s.onCommand(func(w http.ResponseWriter, r *http.Request, c *commands.Command) error {
		var in guestapi.CommandSignal
		return done(w, r, &in, func() error { return c.Signal(in.Signal) })
	}))
}

// startCommand starts a command that belongs to the guest.
func (s *Server) startCommand(w http.ResponseWriter, r *http.Request) {
	var req guestapi.StartCommand
	if err := decode(w, r, &req); err != nil {
		badRequest(w, err)
		return
	}
	ctx, leave, ok := s.transfer(w, r)
	if !ok {
		return
	}
	defer leave()
	spec := s.spec(&req.ExecRequest)
	spec.TTY, spec.OutputLimit = nil, 0
	c, err := s.commands.Start(ctx, &req, spec)
	if err != nil {
		refuse(w, err)
		return
	}
	reply(w, http.StatusCreated, c)
}

// onCommand finds the command that a request names. An error that the handler returns
// has not been answered yet.
func (s *Server) onCommand(handle func(http.ResponseWriter, *http.Request, *commands.Command) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := s.commands.Get(r.PathValue("id"))
		if err == nil {
			err = handle(w, r, c)
		}
		if err != nil {
			refuse(w, err)
		}
	}
}

// done reads a body, and answers once do has succeeded.
func done(w http.ResponseWriter, r *http.Request, body any, do func() error) error {
	if err := decode(w, r, body); err != nil {
		badRequest(w, err)
		return nil
	}
	if err := do(); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// commandOutput sends what a command has written and, if asked, what it writes.
func (s *Server) commandOutput(w http.ResponseWriter, r *http.Request, c *commands.Command) error {
	since := int64(0)
	if text := r.URL.Query().Get("since"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return &files.Refusal{Status: http.StatusBadRequest, Text: "invalid since", Detail: fmt.Sprintf("%.20q is not a number from 0", text)}
		}
		since = n
	}
	follow, err := flag(r, "follow")
	if err != nil {
		return err
	}
	release, err := c.Hold(since)
	if err != nil {
		return err
	}
	defer release()
	ctx, leave, ok := s.outputs(w, r, follow)
	if !ok {
		return nil
	}
	defer leave()
	w.Header().Set("Content-Type", "application/x-ndjson")
	answer := http.NewResponseController(w)
	out := bufio.NewWriterSize(w, 16<<10)
	lines := json.NewEncoder(out)
	err = c.Output(ctx, since, follow, func(o guestapi.CommandOutput) error { return lines.Encode(o) }, func() error {
		if err := out.Flush(); err != nil {
			return err
		}
		return answer.Flush()
	})
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Error("output not read", "error", err)
	}
	abortOn(err)
	return nil
}
