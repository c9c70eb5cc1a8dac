package service

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// execGrace is how much longer than the command's own time-out the host is given
// to have a busy guest take the command on, to end it and to answer.
var execGrace = timescale.Limit(time.Minute)

// Exec runs a command in a sandbox and waits for its end. A hibernated one is
// woken for it. Large output is held within bounds until ctx ends.
func (s *Sandboxes) Exec(ctx context.Context, c Caller, id string, in Exec) (ExecResult, error) {
	req, err := in.request()
	if err != nil {
		return ExecResult{}, err
	}
	var res hostapi.ExecResult
	err = s.onRunning(ctx, c, id, func(ctx context.Context, t target) error {
		hctx, cancel := context.WithTimeout(ctx, req.Timeout+execGrace)
		defer cancel()
		hctx, release := s.cfg.Hosts.WhileHeard(hctx, t.row.AgentID)
		defer release()
		client := t.client.Admitting(func(wait context.Context, bytes int64) error {
			return s.outputs.admit(wait, ctx, t.row.WorkspaceID, outputCopies*bytes)
		})
		var err error
		res, err = client.Exec(hctx, id, req)
		return err
	})
	if err != nil {
		return ExecResult{}, err
	}
	return ExecResult{
		ExitCode: res.ExitCode, Stdout: string(res.Stdout), Stderr: string(res.Stderr),
		DurationMS: res.DurationMS, TimedOut: res.TimedOut, Truncated: res.Truncated,
	}, nil
}

// execError says why a host did not do what was asked of a sandbox that should
// have run.
func execError(err error) error {
	var refusal *hostapi.Error
	var own *apierror.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.Is(err, hosts.ErrNotLeading):
		return storeError(err)
	case errors.Is(err, hostapi.ErrUnknownOutcome):
		return apierror.Unreachable("the command may have run", err)
	case errors.Is(err, hostapi.ErrUnreachable):
		return apierror.Unreachable("", err)
	case !errors.As(err, &refusal):
		return apierror.As(err)
	}
	switch refusal.Code {
	case hostapi.CodeNotFound, hostapi.CodeNotRunning:
		e := apierror.NotRunning("its host does not run it")
		e.Err = err
		return e
	case hostapi.CodeCutOff:
		return cutOff(refusal, err)
	case hostapi.CodeInvalid:
		return invalidThere(refusal, err)
	case hostapi.CodeTooLarge:
		return &apierror.Error{Code: apierror.ETooLarge, Message: refusal.Message, Detail: refusal.Detail, Err: err}
	case hostapi.CodeBusy:
		return &apierror.Error{Code: apierror.ERateLimited, Message: "too many commands at once in this sandbox", RetryAfter: time.Second, Err: err}
	case hostapi.CodeGuest:
		return apierror.Unreachable("the sandbox does not answer", err)
	case hostapi.CodeGuestSays:
		return guestSays(refusal, err)
	case hostapi.CodeDraining:
		return apierror.Unreachable("its host is restarting", err)
	case hostapi.CodeStaleTerm:
		return apierror.Unavailable("leadership has changed", err)
	}
	return apierror.As(err)
}

// cutOff answers for what had begun when its sandbox stopped. It is not done
// again, whatever it was: nobody knows how far it had come.
func cutOff(refusal *hostapi.Error, err error) error {
	detail := strings.TrimPrefix(refusal.Detail, refusal.Message+": ")
	return &apierror.Error{
		Code: apierror.EConflict, Message: "sandbox stopped while this was under way",
		Detail: strings.TrimPrefix(detail+"; what had begun is not done again", "; "), Err: err,
	}
}

// invalidThere is for what only the sandbox can tell to be wrong: a directory
// or a user that it does not have.
func invalidThere(refusal *hostapi.Error, err error) error {
	e := &apierror.Error{Code: apierror.EInvalid, Message: refusal.Message, Detail: refusal.Detail, Err: err}
	// Host and guest each say that it is invalid, before they say what.
	for again := true; again; {
		e.Detail, again = strings.CutPrefix(e.Detail, refusal.Message+": ")
		if !again {
			e.Detail, again = strings.CutPrefix(e.Detail, "invalid command: ")
		}
	}
	// Which part of the command is wrong guests say in words alone, also those that
	// were stored by an earlier version. Nothing but the message depends on it.
	for _, what := range []string{"cwd", "user"} {
		if strings.HasPrefix(e.Detail, what+" ") {
			e.Message = "invalid " + what
		}
	}
	return e
}

// guestSays passes on the guest's own refusal with its status.
func guestSays(refusal *hostapi.Error, err error) error {
	code, ok := map[int]apierror.Code{
		http.StatusBadRequest: apierror.EInvalid, http.StatusForbidden: apierror.EForbidden, http.StatusNotFound: apierror.ENotFound,
		http.StatusConflict: apierror.EConflict, http.StatusRequestEntityTooLarge: apierror.ETooLarge,
		http.StatusRequestedRangeNotSatisfiable: apierror.ERange, http.StatusUnprocessableEntity: apierror.EUnprocessable,
		http.StatusTooManyRequests: apierror.ERateLimited, http.StatusInsufficientStorage: apierror.EInsufficient,
	}[refusal.HTTPStatus]
	if !ok {
		return apierror.Unreachable("the sandbox answered: "+refusal.Message, err)
	}
	return &apierror.Error{Code: code, Message: refusal.Message, Detail: refusal.Detail, ContentRange: refusal.ContentRange, Err: err}
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
			return hostapi.ExecRequest{}, apierror.Invalid("invalid cmd", "a command cannot contain a NUL character")
		}
		if len(a) > maxArg || total > maxArgs {
			return hostapi.ExecRequest{}, apierror.Invalid("invalid cmd", "an argument is at most %d bytes, all together at most %d; use stdin or a file for more", maxArg, maxArgs)
		}
	}
	switch {
	case len(argv) == 0, argv[0] == "", in.Shell != "" && strings.TrimSpace(in.Shell) == "":
		return hostapi.ExecRequest{}, &apierror.Error{Code: apierror.EInvalid, Message: "cmd required"}
	case in.Shell != "" && len(in.Argv) > 0:
		return hostapi.ExecRequest{}, apierror.Invalid("invalid cmd", "either a string or an array")
	case timeout < 1 || timeout > MaxExecSeconds:
		return hostapi.ExecRequest{}, apierror.Invalid("invalid timeout_seconds", "timeout_seconds must be from 1 to %d", MaxExecSeconds)
	case in.Cwd != "" && (!path.IsAbs(in.Cwd) || strings.ContainsRune(in.Cwd, 0) || len(in.Cwd) > maxCwd):
		return hostapi.ExecRequest{}, apierror.Invalid("invalid cwd", "cwd must be an absolute path")
	case len(in.User) > maxUser || strings.ContainsAny(in.User, "\x00\n\r/ "):
		return hostapi.ExecRequest{}, apierror.Invalid("invalid user", "user is a name or uid[:gid]")
	}
	if err := validEnv(in.Env); err != nil {
		return hostapi.ExecRequest{}, err
	}
	return hostapi.ExecRequest{
		Argv: argv, Cwd: in.Cwd, Env: in.Env, User: in.User, Stdin: in.Stdin,
		Timeout: time.Duration(timeout) * time.Second, OutputLimitBytes: ExecOutputBytes,
	}, nil
}
