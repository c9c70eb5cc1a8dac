package service

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// execGrace is how much longer than the command's own time-out the host is
// given to kill it and to answer.
const execGrace = 30 * time.Second

// Exec runs a command in a running sandbox and waits for its end.
func (s *Sandboxes) Exec(ctx context.Context, c Caller, id string, in Exec) (ExecResult, error) {
	if err := c.RequireWorkspace(); err != nil {
		return ExecResult{}, err
	}
	req, err := in.request()
	if err != nil {
		return ExecResult{}, err
	}
	view, err := s.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return ExecResult{}, storeError(err)
	}
	row, err := owned(view, c, id)
	if err != nil {
		return ExecResult{}, err
	}
	if err := canExec(row); err != nil {
		return ExecResult{}, err
	}
	client, err := s.cfg.Hosts.Client(row.AgentID)
	if err != nil {
		return ExecResult{}, execError(err)
	}
	hctx, cancel := context.WithTimeout(hosts.WithRequestID(ctx, c.RequestID), req.Timeout+execGrace)
	defer cancel()
	hctx, release := s.cfg.Hosts.WhileHeard(hctx, row.AgentID)
	defer release()
	res, err := client.Exec(hctx, id, req)
	if err != nil {
		if ctx.Err() != nil {
			return ExecResult{}, storeError(ctx.Err())
		}
		return ExecResult{}, execError(err)
	}
	return ExecResult{
		ExitCode: res.ExitCode, Stdout: string(res.Stdout), Stderr: string(res.Stderr),
		DurationMS: res.DurationMS, TimedOut: res.TimedOut, Truncated: res.Truncated,
	}, nil
}

func canExec(row *record.Sandbox) error {
	switch row.Status {
	case record.SandboxRunning:
		return nil
	case record.SandboxPaused, record.SandboxHibernated:
		return &Error{Code: EConflict, Message: "sandbox not running (paused or hibernated) — resume/wake it first"}
	}
	return notRunning("its status is " + string(row.Status))
}

func notRunning(detail string) *Error {
	return &Error{Code: ENotFound, Message: "sandbox not found or not running", Detail: detail}
}

func execError(err error) error {
	var refusal *hostapi.Error
	switch {
	case errors.Is(err, hosts.ErrNotLeading):
		return storeError(err)
	case errors.Is(err, hostapi.ErrUnknownOutcome):
		return unreachable("the command may have run", err)
	case errors.Is(err, hostapi.ErrUnreachable):
		return unreachable("", err)
	case !errors.As(err, &refusal):
		return AsError(err)
	}
	switch refusal.Code {
	case hostapi.CodeNotFound, hostapi.CodeNotRunning:
		e := notRunning("its host does not run it")
		e.Err = err
		return e
	case hostapi.CodeInvalid:
		return &Error{Code: EInvalid, Message: refusal.Message, Detail: refusal.Detail, Err: err}
	case hostapi.CodeTooLarge:
		return &Error{Code: ETooLarge, Message: refusal.Message, Detail: refusal.Detail, Err: err}
	case hostapi.CodeBusy:
		return &Error{Code: ERateLimited, Message: "too many commands at once in this sandbox", RetryAfter: time.Second, Err: err}
	case hostapi.CodeGuest:
		return unreachable("the sandbox does not answer", err)
	case hostapi.CodeDraining:
		return unreachable("its host is restarting", err)
	case hostapi.CodeStaleTerm:
		return Unavailable("leadership has changed", err)
	}
	return AsError(err)
}

// Bounds of a command. One argument of Linux holds 128 KiB (MAX_ARG_STRLEN).
const (
	maxArg     = 128<<10 - 1
	maxArgs    = 1 << 20 // all arguments together
	maxUser    = 64
	maxCwd     = 4096
	maxEnvSize = 64 << 10
)

// request checks an exec and turns it into the host's terms.
func (in Exec) request() (hostapi.ExecRequest, error) {
	argv := in.Argv
	if in.Shell != "" {
		argv = []string{"sh", "-c", in.Shell}
	}
	timeout := int64(DefaultExecSeconds)
	if in.TimeoutSeconds != nil {
		timeout = *in.TimeoutSeconds
	}
	total := 0
	for _, a := range argv {
		total += len(a)
		if strings.ContainsRune(a, 0) {
			return hostapi.ExecRequest{}, invalid("invalid cmd", "a command cannot contain a NUL character")
		}
		if len(a) > maxArg || total > maxArgs {
			return hostapi.ExecRequest{}, invalid("invalid cmd", "an argument is at most %d bytes, all together at most %d; use stdin or a file for more", maxArg, maxArgs)
		}
	}
	switch {
	case len(argv) == 0, argv[0] == "", in.Shell != "" && strings.TrimSpace(in.Shell) == "":
		return hostapi.ExecRequest{}, &Error{Code: EInvalid, Message: "cmd required"}
	case in.Shell != "" && len(in.Argv) > 0:
		return hostapi.ExecRequest{}, invalid("invalid cmd", "either a string or an array")
	case timeout < 1 || timeout > MaxExecSeconds:
		return hostapi.ExecRequest{}, invalid("invalid timeout_seconds", "timeout_seconds must be from 1 to %d", MaxExecSeconds)
	case in.Cwd != "" && (!path.IsAbs(in.Cwd) || strings.ContainsRune(in.Cwd, 0) || len(in.Cwd) > maxCwd):
		return hostapi.ExecRequest{}, invalid("invalid cwd", "cwd must be an absolute path")
	case len(in.User) > maxUser || strings.ContainsAny(in.User, "\x00\n\r/ "):
		return hostapi.ExecRequest{}, invalid("invalid user", "user is a name or uid[:gid]")
	}
	if err := validEnv(in.Env); err != nil {
		return hostapi.ExecRequest{}, err
	}
	return hostapi.ExecRequest{
		Argv: argv, Cwd: in.Cwd, Env: in.Env, User: in.User, Stdin: in.Stdin,
		Timeout: time.Duration(timeout) * time.Second, OutputLimitBytes: ExecOutputBytes,
	}, nil
}
