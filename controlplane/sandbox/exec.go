package sandbox

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// execGrace is the time that a host has beyond the command's own timeout, because a
// busy guest may be slow to start the command, to kill it and to answer.
var execGrace = timescale.Limit(time.Minute)

// Commands contains the use cases of commands in sandboxes.
type Commands struct {
	*reach
	files *Files
}

// Wake ensures that a sandbox of the caller's workspace runs. It wakes a hibernated
// one.
func (c *Commands) Wake(ctx context.Context, caller core.Caller, id string) error {
	row, err := c.own(ctx, caller, id)
	if err != nil {
		return err
	}
	_, err = c.wake(hosts.WithRequestID(ctx, caller.RequestID), row)
	return err
}

// outputCopies is the number of copies of an output in memory: as received, and as
// the bytes and the text made from it.
const outputCopies = 2

// Exec runs a command in a sandbox and waits until it ends. It wakes a hibernated
// sandbox. The memory of large output is limited until ctx ends. Stdout and Stderr
// are the exact bytes, whether or not they are UTF-8; httpapi converts them piece by
// piece.
func (c *Commands) Exec(ctx context.Context, caller core.Caller, id string, in api.Exec) (api.ExecResult, error) {
	req, err := requestOf(in)
	if err != nil {
		return api.ExecResult{}, err
	}
	var res hostapi.ExecResult
	err = c.onRunning(ctx, caller, id, func(ctx context.Context, t target) error {
		hctx, cancel := context.WithTimeout(ctx, req.Timeout+execGrace)
		defer cancel()
		hctx, release := c.core.Hosts.WhileHeard(hctx, t.row.HostID)
		defer release()
		client := t.client.Admitting(func(wait context.Context, bytes int64) error {
			return c.core.Outputs.Admit(wait, ctx, t.row.WorkspaceID, outputCopies*bytes)
		})
		var err error
		res, err = client.Exec(hctx, id, req)
		return err
	})
	if err != nil {
		return api.ExecResult{}, err
	}
	return api.ExecResult{
		ExitCode: res.ExitCode, Stdout: string(res.Stdout), Stderr: string(res.Stderr),
		DurationMS: res.DurationMS, TimedOut: res.TimedOut, Truncated: res.Truncated,
	}, nil
}

// Limits of an exec.
const (
	DefaultExecSeconds = 60
	MaxExecSeconds     = 3600
	ExecOutputBytes    = 8 << 20 // kept of each stream
)

// Limits of a command. Linux allows 128 KiB for an argument (MAX_ARG_STRLEN).
const (
	maxArg  = 128<<10 - 1
	maxArgs = 1 << 20 // all arguments together, with the NUL that ends each
	maxUser = 64
	maxCwd  = 4096
)

// commandOf checks a command and returns its argv. A string always runs in a shell,
// an array never does.
func commandOf(cmd api.Command) (argv []string, err error) {
	switch {
	case cmd.IsZero(), cmd.Argv == nil && strings.TrimSpace(cmd.Shell) == "":
		return nil, &apierror.Error{Code: apierror.EInvalid, Message: "cmd required"}
	case cmd.Argv != nil && cmd.Argv[0] == "":
		return nil, apierror.Invalid("cmd required", "the first element of cmd, the program, is empty")
	case cmd.Argv != nil && cmd.Shell != "":
		return nil, apierror.Invalid("invalid cmd", "either a string or an array")
	case cmd.Argv != nil:
		return cmd.Argv, nil
	}
	return []string{"sh", "-c", cmd.Shell}, nil
}

// requestOf checks an exec and converts it to the host's type.
func requestOf(in api.Exec) (hostapi.ExecRequest, error) {
	argv, err := commandOf(in.Cmd)
	if err != nil {
		return hostapi.ExecRequest{}, err
	}
	stdin := []byte(in.StdinBase64)
	if in.Stdin != "" {
		if len(stdin) > 0 {
			return hostapi.ExecRequest{}, apierror.Invalid("invalid json", "give stdin or stdin_base64, not both")
		}
		stdin = []byte(in.Stdin)
	}
	timeout := int64(DefaultExecSeconds)
	if in.TimeoutSeconds != nil {
		timeout = *in.TimeoutSeconds
	}
	total := 0
	for _, a := range argv {
		total += len(a) + 1
		if strings.ContainsRune(a, 0) {
			return hostapi.ExecRequest{}, apierror.Invalid("invalid cmd", "a command cannot contain a NUL character")
		}
		if len(a) > maxArg || total > maxArgs {
			return hostapi.ExecRequest{}, apierror.Invalid("invalid cmd", "an argument is at most %d bytes, all together, with one more for each, at most %d; use stdin or a file for more", maxArg, maxArgs)
		}
	}
	switch {
	case timeout < 1 || timeout > MaxExecSeconds:
		return hostapi.ExecRequest{}, apierror.Invalid("invalid timeout_seconds", "timeout_seconds must be from 1 to %d", MaxExecSeconds)
	case in.Cwd != "" && (!path.IsAbs(in.Cwd) || strings.ContainsRune(in.Cwd, 0) || len(in.Cwd) > maxCwd):
		return hostapi.ExecRequest{}, apierror.Invalid("invalid cwd", "cwd must be an absolute path")
	case len(in.User) > maxUser || strings.ContainsAny(in.User, "\x00\n\r/ "):
		return hostapi.ExecRequest{}, apierror.Invalid("invalid user", "user is a name or uid[:gid]")
	}
	if err := core.ValidEnv(in.Env, hostapi.MaxExecEnv); err != nil {
		return hostapi.ExecRequest{}, err
	}
	return hostapi.ExecRequest{
		Argv: argv, Cwd: in.Cwd, Env: in.Env, User: in.User, Stdin: stdin,
		Timeout: time.Duration(timeout) * time.Second, OutputLimitBytes: ExecOutputBytes,
	}, nil
}
