package httpapi

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/coder/websocket"
	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// The size of a terminal.
const (
	defaultCols, defaultRows = 80, 24
	maxTerminal              = 1000
)

// openTerminal connects a WebSocket with a terminal. Binary messages are its bytes,
// in both directions; text messages are frames.
func (a *API) openTerminal(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	if err := a.requireUpgrade(c, id); err != nil {
		return err
	}
	q, err := queryOf(c, "cmd", "cols", "rows", "cwd", "user")
	if err != nil {
		return err
	}
	in := sandbox.Terminal{Cmd: q.Get("cmd"), Cwd: q.Get("cwd"), User: q.Get("user"), Cols: defaultCols, Rows: defaultRows}
	for name, to := range map[string]*uint16{"cols": &in.Cols, "rows": &in.Rows} {
		if !q.Has(name) {
			continue
		}
		n, err := strconv.ParseUint(q.Get(name), 10, 16)
		if err != nil || n < 1 || n > maxTerminal {
			return invalid("invalid "+name, name+" must be from 1 to 1000")
		}
		*to = uint16(n)
	}
	p, err := a.cfg.Commands.OpenTerminal(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	s, err := a.accept(c)
	if err != nil {
		_ = p.Close()
		return nil //nolint:nilerr // answered
	}
	s.bridge(p, func(kind websocket.MessageType, data []byte) error {
		if kind == websocket.MessageBinary {
			return p.Stdin(data)
		}
		return control(p, data, "resize", "signal")
	}, func() error {
		for {
			piece, err := p.Next()
			switch {
			case err != nil:
				return err
			case piece.Exit != nil:
				return s.send(exitFrame(piece.Exit))
			}
			if err := s.write(websocket.MessageBinary, piece.Data); err != nil {
				return err
			}
		}
	})
	return nil
}

// execSocket connects a WebSocket with a command, which the first message describes.
func (a *API) execSocket(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	if err := a.requireUpgrade(c, id); err != nil {
		return err
	}
	// Check the sandbox before the upgrade, so that an error is a status.
	if err := a.cfg.Commands.Wake(c.Request.Context(), callerOf(c), id); err != nil {
		return err
	}
	s, err := a.accept(c)
	if err != nil {
		return nil //nolint:nilerr // answered
	}
	in, release, err := s.firstFrame()
	if err != nil {
		s.close(err)
		return nil
	}
	p, err := a.cfg.Commands.Stream(c.Request.Context(), callerOf(c), id, in, true)
	release() // the host has the input
	if err != nil {
		s.close(apierror.As(err))
		return nil
	}
	s.bridge(p, func(kind websocket.MessageType, data []byte) error {
		if kind != websocket.MessageText {
			return refuse(websocket.StatusUnsupportedData, "only text messages are taken here")
		}
		return control(p, data, "stdin", "eof", "signal")
	}, func() error { return s.pump(p) })
	return nil
}

// firstFrame reads the request of exec/ws, which must arrive in time. The caller
// calls release when it no longer needs it.
func (s *socket) firstFrame() (in api.Exec, release func(), err error) {
	s.limit = maxExecBody
	defer func() { s.limit = maxFrame }()
	late := time.AfterFunc(firstFrameIn, func() { s.close(refuse(websocket.StatusPolicyViolation, "no request came")) })
	defer late.Stop()
	kind, data, release, err := s.receive(s.ctx, func() { _ = s.ws.CloseNow() })
	if err != nil {
		return in, nil, err
	}
	if kind != websocket.MessageText {
		err = refuse(websocket.StatusUnsupportedData, "only text messages are taken here")
	} else {
		err = decodeJSON(data, &in)
	}
	if err != nil {
		release()
	}
	return in, release, err
}

// pump sends a command's output and end as frames.
func (s *socket) pump(p sandbox.Process) error {
	return pump(p, func(stream string, o api.Output) error {
		return s.send(api.Frame{Type: stream, Data: o.Data, Encoding: o.Encoding})
	}, func(e *api.Exit) error { return s.send(exitFrame(e)) })
}

// pump calls output with a command's output, as text if it is UTF-8, and exit with
// its end.
func pump(p sandbox.Process, output func(stream string, o api.Output) error, exit func(*api.Exit) error) error {
	texts := map[string]*splitter{sandbox.Stdout: {}, sandbox.Stderr: {}}
	flush := func() error {
		for _, stream := range []string{sandbox.Stdout, sandbox.Stderr} {
			if o, ok := texts[stream].end(); ok {
				if err := output(stream, o); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for {
		piece, err := p.Next()
		switch {
		case err != nil:
			return errors.Join(flush(), err)
		case piece.Exit != nil:
			if err := flush(); err != nil {
				return err
			}
			return exit(piece.Exit)
		}
		if o, ok := texts[piece.Stream].next(piece.Data); ok {
			if err := output(piece.Stream, o); err != nil {
				return err
			}
		}
	}
}

func exitFrame(e *api.Exit) api.Frame {
	return api.Frame{Type: "exit", ExitCode: &e.ExitCode, DurationMS: &e.DurationMS, TimedOut: &e.TimedOut}
}

// control executes a client's text frame, if the route accepts its type.
func control(p sandbox.Process, data []byte, types ...string) error {
	var f api.Frame
	if err := json.Unmarshal(data, &f); err != nil {
		return refuse(websocket.StatusPolicyViolation, "a frame must be a JSON object such as {\"type\":\"…\"}")
	}
	known := false
	for _, t := range types {
		known = known || t == f.Type
	}
	if !known {
		return refuse(websocket.StatusPolicyViolation, "unknown type of frame")
	}
	switch f.Type {
	case "stdin":
		raw := []byte(f.Data)
		switch f.Encoding {
		case "":
		case "base64":
			var err error
			if raw, err = base64.StdEncoding.DecodeString(f.Data); err != nil {
				return refuse(websocket.StatusPolicyViolation, "data is not base64")
			}
		default:
			return refuse(websocket.StatusPolicyViolation, "unknown encoding")
		}
		return p.Stdin(raw)
	case "eof":
		return p.CloseStdin()
	case "signal":
		name, ok := sandbox.SignalName(f.Signal)
		if !ok {
			return refuse(websocket.StatusPolicyViolation, "unknown signal")
		}
		return p.Signal(name)
	case "resize":
		if f.Cols < 1 || f.Cols > maxTerminal || f.Rows < 1 || f.Rows > maxTerminal {
			return refuse(websocket.StatusPolicyViolation, "cols and rows must be from 1 to 1000")
		}
		return p.Resize(f.Cols, f.Rows)
	}
	return nil
}

// openLanguageServer connects a WebSocket with a language server. Each text message
// is one message of its protocol, without the header.
func (a *API) openLanguageServer(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	if err := a.requireUpgrade(c, id); err != nil {
		return err
	}
	lang := c.Param("lang")
	p, err := a.cfg.Commands.LanguageServer(c.Request.Context(), callerOf(c), id, shorten(lang))
	if err != nil {
		return err
	}
	s, err := a.accept(c)
	if err != nil {
		_ = p.Close()
		return nil //nolint:nilerr // answered
	}
	s.limit = maxRPCMessage
	s.bridge(p, func(kind websocket.MessageType, data []byte) error {
		if kind != websocket.MessageText {
			return refuse(websocket.StatusUnsupportedData, "only text messages are taken here")
		}
		if !json.Valid(data) {
			return refuse(websocket.StatusPolicyViolation, "a message must be JSON")
		}
		return p.Stdin(frameRPC(data))
	}, func() error {
		from := &stdoutOf{p: p}
		messages := bufio.NewReader(from)
		for {
			m, release, err := readRPC(messages, func(bytes int64) (func(), error) {
				return s.hold(inputCopies*bytes, func() { _ = p.Close() })
			})
			switch {
			case errors.Is(err, errRPC):
				return refuse(websocket.StatusInternalError, "the language server does not speak its protocol")
			case err != nil && from.exit != nil:
				return refuse(websocket.StatusInternalError, "the language server ended with code "+strconv.Itoa(from.exit.ExitCode))
			case err != nil:
				return err
			}
			err = s.write(websocket.MessageText, m)
			release()
			if err != nil {
				return err
			}
		}
	})
	return nil
}

// stdoutOf reads a process's standard output.
type stdoutOf struct {
	p    sandbox.Process
	left []byte
	exit *api.Exit
}

// Read implements io.Reader.
func (r *stdoutOf) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		piece, err := r.p.Next()
		switch {
		case err != nil:
			return 0, err
		case piece.Exit != nil:
			r.exit = piece.Exit
			return 0, io.EOF
		case piece.Stream == sandbox.Stdout:
			r.left = piece.Data
		}
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}
