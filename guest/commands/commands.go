// Package commands runs commands that belong to the guest and not to a request.
package commands

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/guest/files"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/proc"
)

// Dir is where the files of output are, as long as they have a name.
const Dir = "/var/log/berth"

// Config is what a Table works with.
type Config struct {
	Groups  proc.Groups
	Freezer *proc.Freezer
	Dir     string // of the output's files
}

// Table holds the guest's commands: those that run and the last that have ended.
type Table struct {
	cfg Config

	mu   sync.Mutex
	list []*Command // in the order in which they were started
	held int64      // bytes of input that no command has read yet
}

// New returns an empty table.
func New(cfg Config) *Table { return &Table{cfg: cfg} }

// Texts of refusals.
const (
	TextMany   = "too many commands at once in this sandbox"
	TextReused = "idempotency key reused"
	TextEnded  = "command has ended"
	TextClosed = "input is closed"
	TextFull   = "too much input at once"
)

var errNoCommand = &files.Refusal{Status: http.StatusNotFound, Text: "not found", Detail: "no such command"}

// Start starts a command. If a command with the same key was started, it returns what
// its start returned.
func (t *Table) Start(ctx context.Context, req *guestapi.StartCommand, spec proc.Spec) (guestapi.Command, error) {
	if len(req.Text) > guestapi.MaxCommandText {
		return guestapi.Command{}, &files.Refusal{Status: http.StatusBadRequest, Text: "invalid cmd", Detail: "its text is too long"}
	}
	if len(req.Stdin) > guestapi.MaxInput {
		return guestapi.Command{}, errInputTooLarge
	}
	for {
		c, mine, err := t.claim(req)
		if err != nil {
			return guestapi.Command{}, err
		}
		if !mine {
			select {
			case <-c.begun:
			case <-ctx.Done():
				return guestapi.Command{}, context.Cause(ctx)
			}
			if c.first.ID == "" {
				continue // it was not started
			}
			return c.first, nil
		}
		if err := t.begin(ctx, c, req, spec); err != nil {
			t.forget(c)
			close(c.begun)
			return guestapi.Command{}, refusal(err)
		}
		close(c.begun)
		return c.first, nil
	}
}

// claim returns the command of the request's key, or a new one, which is mine.
func (t *Table) claim(req *guestapi.StartCommand) (c *Command, mine bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	running := 0
	for _, c := range t.list {
		if req.Key != "" && c.key == req.Key {
			if c.digest != req.Digest {
				return nil, false, &files.Refusal{Status: http.StatusConflict, Text: TextReused, Detail: "this Idempotency-Key was sent with another body, or by somebody else"}
			}
			return c, false, nil
		}
		if !c.ended() {
			running++
		}
	}
	if running >= guestapi.MaxCommands {
		return nil, false, &files.Refusal{
			Status: http.StatusTooManyRequests, Text: TextMany,
			Detail: fmt.Sprintf("%d detached commands run; delete one, or wait for its end", running),
		}
	}
	c = &Command{table: t, key: req.Key, digest: req.Digest, text: req.Text, begun: make(chan struct{}), over: make(chan struct{})}
	c.output = newOutput(guestapi.KeptOutput, t.file)
	c.wake = make(chan struct{}, 1)
	t.list = append(t.list, c)
	return c, true, nil
}

// file makes a file without a name.
func (t *Table) file() (*os.File, error) {
	if err := os.MkdirAll(t.cfg.Dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(t.cfg.Dir, ".output-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(filepath.Clean(f.Name())); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// begin starts the process. A program that cannot be run ends as in a shell.
func (t *Table) begin(ctx context.Context, c *Command, req *guestapi.StartCommand, spec proc.Spec) error {
	// Before it is started: what is refused must have had no effect.
	if !t.take(int64(len(req.Stdin))) {
		return &files.Refusal{Status: http.StatusTooManyRequests, Text: TextFull, Detail: "other commands have not read theirs yet"}
	}
	c.queue, c.queued, c.open = req.Stdin, int64(len(req.Stdin)), req.OpenStdin
	running := false
	defer func() {
		if !running {
			c.drop()
		}
	}()
	leave, ok := t.cfg.Freezer.Enter(ctx.Done())
	if !ok {
		return context.Cause(ctx)
	}
	process, err := proc.Start(t.cfg.Groups, spec)
	leave()
	var command *proc.CommandError
	if err != nil && !errors.As(err, &command) {
		return err
	}
	c.id, c.started = "cmd-"+strings.ToLower(rand.Text()), time.Now()
	if command != nil {
		c.output.append(guestapi.StreamStderr, []byte(command.Error()+"\n"))
		c.finish(guestapi.ExecExit{ExitCode: command.Code})
		c.first = c.Info()
		t.trim()
		return nil
	}
	c.process = process
	c.first = c.Info()
	running = true
	c.output.hold()
	go c.run()
	return nil
}

// refusal is why a command was not started, as its caller sees it.
func refusal(err error) error {
	var known *files.Refusal
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, proc.ErrCwd):
		return &files.Refusal{Status: http.StatusBadRequest, Text: "invalid cwd", Detail: err.Error()}
	case errors.Is(err, proc.ErrNoUser):
		return &files.Refusal{Status: http.StatusBadRequest, Text: "invalid user", Detail: err.Error()}
	case errors.Is(err, proc.ErrInvalid):
		return &files.Refusal{Status: http.StatusBadRequest, Text: "invalid cmd", Detail: err.Error()}
	case errors.Is(err, proc.ErrLimit):
		return &files.Refusal{Status: http.StatusTooManyRequests, Text: TextMany, Detail: err.Error()}
	}
	return fmt.Errorf("command not started: %w", err)
}

// List returns the commands, newest first.
func (t *Table) List() []guestapi.Command {
	t.mu.Lock()
	list := slices.Clone(t.list)
	t.mu.Unlock()
	out := make([]guestapi.Command, 0, len(list))
	for _, c := range slices.Backward(list) {
		if c.hasBegun() {
			out = append(out, c.Info())
		}
	}
	return out
}

// Get returns one command.
func (t *Table) Get(id string) (*Command, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.list {
		if c.hasBegun() && c.id == id {
			return c, nil
		}
	}
	return nil, errNoCommand
}

// killWait is how long a killed command may take to end. One in a system call that
// cannot be interrupted ends when that returns.
const killWait = 5 * time.Second

// Remove kills a command with everything it started, and forgets it.
func (t *Table) Remove(id string) error {
	c, err := t.Get(id)
	if err != nil {
		return err
	}
	if c.process != nil {
		c.process.Kill()
		timer := time.NewTimer(killWait)
		defer timer.Stop()
		select {
		case <-c.over:
		case <-timer.C:
		}
	}
	t.forget(c)
	return nil
}

// forget takes a command from the table.
func (t *Table) forget(c *Command) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.list, c); i >= 0 {
		t.list = slices.Delete(t.list, i, i+1)
		c.output.release()
	}
}

// trim forgets those that ended first, if there are too many.
func (t *Table) trim() {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ended []*Command
	for _, c := range t.list {
		if c.ended() {
			ended = append(ended, c)
		}
	}
	slices.SortStableFunc(ended, func(a, b *Command) int { return a.endedAt.Compare(b.endedAt) })
	for len(ended) > guestapi.KeptCommands {
		t.list = slices.Delete(t.list, slices.Index(t.list, ended[0]), slices.Index(t.list, ended[0])+1)
		ended[0].output.release()
		ended = ended[1:]
	}
}

// Command is one command.
type Command struct {
	table       *Table
	key, digest string
	text        []byte
	output      *output

	begun   chan struct{}    // closed once it was started, or was not
	first   guestapi.Command // what its start returned; the zero value if it was not started. Set before begun is closed
	id      string
	started time.Time
	process *proc.Process // nil: its program could not be run

	over    chan struct{} // closed once it has ended
	endedAt time.Time     // set before the output has its end, and over is closed

	mu     sync.Mutex
	queue  []byte // input
	queued int64  // bytes of it, with what is being written
	open   bool   // more input may come
	wake   chan struct{}
}

func (c *Command) hasBegun() bool {
	select {
	case <-c.begun:
		return c.first.ID != ""
	default:
		return false
	}
}

func (c *Command) ended() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// Info describes the command as it is now. It has ended once its output has: who has read
// the end of that finds no command that runs.
func (c *Command) Info() guestapi.Command {
	written, exit := c.output.state()
	out := guestapi.Command{
		ID: c.id, Text: c.text, Status: guestapi.CommandRunning, StartedAt: c.started, OutputBytes: written,
	}
	if exit != nil {
		code, at := exit.ExitCode, c.endedAt
		out.Status, out.ExitCode, out.TimedOut, out.EndedAt = guestapi.CommandExited, &code, exit.TimedOut, &at
	}
	return out
}

// run keeps the output until the command's end.
func (c *Command) run() {
	defer c.output.release()
	var input sync.WaitGroup
	input.Go(c.feed)
	exit := c.process.Run(func(stream guestapi.FrameType, frame []byte) error {
		name := guestapi.StreamStdout
		if stream == guestapi.FrameStderr {
			name = guestapi.StreamStderr
		}
		c.output.append(name, frame[guestapi.FrameHeader:])
		return nil
	})
	c.finish(exit)
	input.Wait()
	c.table.trim()
}

func (c *Command) finish(exit guestapi.ExecExit) {
	c.endedAt = time.Now()
	c.output.end(exit)
	close(c.over)
}

// Signal signals the command's process group.
func (c *Command) Signal(name string) error {
	sig := proc.ParseSignal(name)
	if sig == 0 {
		return &files.Refusal{Status: http.StatusBadRequest, Text: "invalid signal", Detail: fmt.Sprintf("%.20q is the name of no signal", name)}
	}
	if c.process == nil {
		return &files.Refusal{Status: http.StatusConflict, Text: TextEnded}
	}
	switch err := c.process.Signal(sig); {
	case errors.Is(err, proc.ErrEnded), errors.Is(err, syscall.ESRCH):
		return &files.Refusal{Status: http.StatusConflict, Text: TextEnded}
	case err != nil:
		return fmt.Errorf("signal the command: %w", err)
	}
	return nil
}

// Output passes on what the command has written from an offset on, and with follow
// what it writes, until its end or ctx's. flush is called before it waits. A reader
// that is slow does not slow the command: it misses what is not kept any more. Without
// follow it ends with what was there when it began, whatever the command writes meanwhile.
func (c *Command) Output(ctx context.Context, since int64, follow bool, emit func(guestapi.CommandOutput) error, flush func() error) error {
	until := c.output.written()
	for {
		pieces, next, exit, changed, err := c.output.read(since)
		if err != nil {
			return fmt.Errorf("read the output: %w", err)
		}
		for _, p := range pieces {
			if err := emit(p); err != nil {
				return err
			}
		}
		if next > since {
			if since = next; !follow && since > until {
				return flush()
			}
			continue
		}
		if exit != nil {
			if err := emit(guestapi.CommandOutput{Stream: guestapi.StreamExit, Offset: since, Exit: exit}); err != nil {
				return err
			}
		}
		if err := flush(); err != nil || exit != nil || !follow {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Hold keeps the output until release is called, also if the command is forgotten. It
// refuses an offset that the output has not reached.
func (c *Command) Hold(since int64) (release func(), err error) {
	if written := c.output.written(); since > written {
		return nil, &files.Refusal{
			Status: http.StatusBadRequest, Text: "invalid since", Detail: fmt.Sprintf("the command has written %d bytes", written),
		}
	}
	c.output.hold()
	return sync.OnceFunc(c.output.release), nil
}
