package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Streams of a process.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Process is a running command. Its user reads from it and closes it, which ends the
// command. A slow reader slows down the command. The writing methods may be called
// while Next waits.
type Process interface {
	// Next waits for the next output or the end, which is the last piece. It fails
	// if the command can no longer be followed.
	Next() (Piece, error)
	Stdin(p []byte) error
	CloseStdin() error
	Signal(name string) error // without SIG: "INT"
	Resize(cols, rows uint16) error
	io.Closer
}

// Piece is output of a process, or its end.
type Piece struct {
	Stream string    // of output
	Data   []byte    // valid until the next piece
	Exit   *api.Exit // not nil: the process has ended
}

// Terminal describes a program on a pseudo-terminal.
type Terminal struct {
	Cmd        string // run by sh -c; "": the user's login shell
	Cwd        string
	User       string
	Cols, Rows uint16
}

// Stream starts a command. With openStdin, its input stays open after in.Stdin.
func (c *Commands) Stream(ctx context.Context, caller core.Caller, id string, in api.Exec, openStdin bool) (Process, error) {
	req, err := requestOf(in)
	if err != nil {
		return nil, err
	}
	return c.process(ctx, caller, id, hostapi.ExecStream{
		Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Stdin: req.Stdin, OpenStdin: openStdin, Timeout: req.Timeout,
	})
}

// OpenTerminal starts a program on a pseudo-terminal, without a timeout.
func (c *Commands) OpenTerminal(ctx context.Context, caller core.Caller, id string, in Terminal) (Process, error) {
	req := hostapi.ExecStream{OpenStdin: true, TTY: &hostapi.TTY{Cols: in.Cols, Rows: in.Rows, Term: "xterm-256color"}}
	checked := api.Exec{Cmd: api.Shell(cmp.Or(in.Cmd, ":")), Cwd: in.Cwd, User: in.User}
	exec, err := requestOf(checked)
	if err != nil {
		return nil, err
	}
	req.Cwd, req.User = exec.Cwd, exec.User
	if in.Cmd != "" {
		req.Argv = exec.Argv
	}
	return c.process(ctx, caller, id, req)
}

// languageServers is the directory of a template's language servers: programs that
// are named after the language and speak the protocol on their standard streams.
const languageServers = "/etc/berth/lsp"

var languageName = regexp.MustCompile(`^[a-z][a-z0-9+-]{0,31}$`)

// LanguageServer starts a sandbox's language server for lang.
func (c *Commands) LanguageServer(ctx context.Context, caller core.Caller, id, lang string) (Process, error) {
	program := path.Join(languageServers, lang)
	none := &apierror.Error{Code: apierror.ENotFound, Message: "no language server for " + lang}
	if !languageName.MatchString(lang) {
		if _, err := c.own(ctx, caller, id); err != nil {
			return nil, err
		}
		return nil, none
	}
	// Check first whether the program exists, so that the answer is a status.
	_, err := c.files.Stat(ctx, caller, id, program)
	var says *hostapi.Error // the guest's answer; the host's own 404 would mean that there is no guest
	if errors.As(err, &says) && says.Code == hostapi.CodeGuestSays && says.HTTPStatus == http.StatusNotFound {
		return nil, none
	}
	if err != nil {
		return nil, err
	}
	return c.process(ctx, caller, id, hostapi.ExecStream{Argv: []string{program}, OpenStdin: true})
}

func (c *Commands) process(ctx context.Context, caller core.Caller, id string, req hostapi.ExecStream) (Process, error) {
	var out opened[*hostapi.Stream]
	err := c.onRunning(ctx, caller, id, open(c.reach, &out, func(ctx context.Context, t target) (*hostapi.Stream, error) {
		return t.client.ExecStream(ctx, id, req)
	}))
	if err != nil {
		return nil, err
	}
	return &process{conn: out.it, release: out.release}, nil
}

// process is a Process that runs through a host's connection.
type process struct {
	conn    *hostapi.Stream
	release context.CancelFunc
	buf     []byte
	write   sync.Mutex
}

// Next implements Process.
func (p *process) Next() (Piece, error) {
	for {
		kind, data, err := guestapi.ReadFrame(p.conn, p.buf)
		if err != nil {
			return Piece{}, apierror.Unreachable("the sandbox's connection broke off; the command may go on without a caller", err)
		}
		p.buf = data[:0]
		switch kind {
		case guestapi.FrameStdout:
			return Piece{Stream: Stdout, Data: data}, nil
		case guestapi.FrameStderr:
			return Piece{Stream: Stderr, Data: data}, nil
		case guestapi.FrameExit:
			var e guestapi.ExecExit
			if err := json.Unmarshal(data, &e); err != nil {
				return Piece{}, apierror.Unreachable("the sandbox's answer makes no sense", err)
			}
			return Piece{Exit: &api.Exit{ExitCode: e.ExitCode, DurationMS: e.DurationMS, TimedOut: e.TimedOut}}, nil
		case guestapi.FrameError:
			var e guestapi.Error
			if err := json.Unmarshal(data, &e); err != nil {
				return Piece{}, apierror.Unreachable("the sandbox's answer makes no sense", err)
			}
			return Piece{}, notStarted(e)
		}
		// Ignore kinds that a newer guest has added.
	}
}

// notStarted converts a guest's refusal of a command as the host does for exec.
func notStarted(e guestapi.Error) *apierror.Error {
	detail := strings.TrimSuffix(e.Error+": "+e.Detail, ": ")
	switch e.Code {
	case guestapi.CodeInvalidCwd:
		return &apierror.Error{Code: apierror.EInvalid, Message: "invalid cwd", Detail: detail}
	case guestapi.CodeNoUser:
		return &apierror.Error{Code: apierror.EInvalid, Message: "invalid user", Detail: detail}
	case guestapi.CodeLimit:
		return core.TooBusy(detail, nil)
	case guestapi.CodeFault:
		return apierror.Unreachable("the sandbox could not start the command", errors.New(detail))
	}
	return &apierror.Error{Code: apierror.EInvalid, Message: e.Error, Detail: e.Detail}
}

// Stdin implements Process.
func (p *process) Stdin(data []byte) error {
	for len(data) > 0 {
		n := min(len(data), stdinFrame)
		if err := p.send(guestapi.FrameStdin, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// stdinFrame is the size of an input frame. It is well below the guest's limit, so
// that a signal sent after it need not wait long.
const stdinFrame = 64 << 10

// CloseStdin implements Process.
func (p *process) CloseStdin() error { return p.send(guestapi.FrameEOF, nil) }

// Signal implements Process.
func (p *process) Signal(name string) error { return p.send(guestapi.FrameSignal, []byte(name)) }

// Resize implements Process.
func (p *process) Resize(cols, rows uint16) error {
	raw, err := json.Marshal(guestapi.TTY{Cols: cols, Rows: rows})
	if err != nil {
		return fmt.Errorf("encode size: %w", err)
	}
	return p.send(guestapi.FrameResize, raw)
}

func (p *process) send(kind guestapi.FrameType, data []byte) error {
	p.write.Lock()
	defer p.write.Unlock()
	if err := guestapi.WriteFrame(p.conn, kind, data); err != nil {
		return apierror.Unreachable("the sandbox's connection broke off", err)
	}
	return nil
}

// Close implements Process.
func (p *process) Close() error {
	defer p.release()
	return p.conn.Close()
}

// signals may be sent to a command.
var signals = map[string]bool{
	"HUP": true, "INT": true, "QUIT": true, "KILL": true, "USR1": true, "USR2": true, "TERM": true,
	"CONT": true, "STOP": true, "TSTP": true, "WINCH": true, "ALRM": true, "PIPE": true,
}

// SignalName returns a signal's name as hosts expect it, and whether it may be sent.
func SignalName(name string) (string, bool) {
	name = strings.TrimPrefix(strings.ToUpper(name), "SIG")
	return name, signals[name]
}
