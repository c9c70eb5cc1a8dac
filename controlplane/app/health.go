package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// answerTime is how long an app may take to answer one request of a health check.
var answerTime = timescale.Limit(5 * time.Second)

// healthEvery is the interval between the probes of an app that does not answer yet.
// wokenEvery is the interval of an app that requests wait for.
const (
	healthEvery = 250 * time.Millisecond
	wokenEvery  = 50 * time.Millisecond
)

// manyStarts is the number of starts after which an app that exits is given up early.
const manyStarts = 3

// cannotLoad is the exit code of the runner of functions if a handler will never be loaded:
// its syntax is wrong, or a module is missing. templates/app has it too.
const cannotLoad = 78

// answer is how an app reacts to a request.
type answer int

const (
	closed   answer = iota // nothing accepts connections on its port
	silent                 // it accepts a connection and sends nothing
	answered               // it sends anything, or hangs up
)

// probe sends a request to a port of a sandbox. Anything that comes back is an answer: an
// app need not speak HTTP. Only the first byte is read.
func (f *Flows) probe(ctx context.Context, requestID string, box *record.Sandbox, appID string, port int) (out answer, err error) {
	err = f.onHost(ctx, requestID, box, func(ctx context.Context, c *hosts.Client) error {
		ctx, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		conn, err := c.Dial(ctx, box.ID, port)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nUser-Agent: berth-health/1\r\nAccept: */*\r\nConnection: close\r\n\r\n", appID); err != nil {
			out = silent
			return nil
		}
		var first [1]byte
		if _, err := io.ReadFull(conn, first[:]); err == nil || errors.Is(err, io.EOF) {
			out = answered
		} else {
			out = silent
		}
		return nil
	})
	if hostapi.HasCode(err, hostapi.CodePortClosed) {
		return closed, nil
	}
	return out, err
}

// awaitHealth waits until the app of a deployment answers, twice, and then lets it serve.
func (f *Flows) awaitHealth(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	d, a, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	box, lost, err := boxError(run.View, data.SandboxID, data.ChildID)
	if err != nil {
		return f.boxless(run, data, lost, err), nil
	}
	late := time.NewTimer(f.patience(run))
	defer late.Stop()
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	var firstAnswer time.Time
	for {
		over := !f.Clock().Before(data.HealthBy) // before the probe: this replica may be stopped during it
		got, err := f.probe(ctx, data.RequestID, box, a.ID, d.Port)
		now := f.Clock()
		switch {
		case err != nil:
			return f.unanswered(ctx, run, data, err)
		case got == answered && firstAnswer.IsZero():
			firstAnswer = now
		case got == answered && now.Sub(firstAnswer) >= f.cfg.HealthPause:
			return f.goLive(run, data, f.onLoopback(ctx, data.RequestID, box, d.Port)), nil
		case got != answered:
			firstAnswer = time.Time{}
			if why := f.hopeless(ctx, data.RequestID, box, a.Kind, got, d.Port, over); why != nil {
				return f.fail(data, why), nil // also a rollback: the same build would start no better
			}
		}
		select {
		case <-tick.C:
		case <-late.C:
			return going(flow.Goto(stepHealth, data)), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// hopeless returns why an app that does not answer is given up: its time is over, or it has
// ended again and again, or for good. nil: it may still answer.
func (f *Flows) hopeless(ctx context.Context, requestID string, box *record.Sandbox, kind record.AppKind, got answer, port int, over bool) error {
	st, err := f.status(ctx, requestID, box)
	noun := nounsOf[kind].one
	if over || err == nil && st.Run.State == appapi.StateExited && (st.Run.Starts >= manyStarts || unloadable(noun, st.Run)) {
		return unwell(noun, st.Run, err, got, port, f.cfg.Health)
	}
	return nil
}

// unloadable reports whether the handler of a function, if noun says that it is one, will
// never be loaded.
func unloadable(noun string, r appapi.RunStatus) bool {
	return noun == nounsOf[record.KindFunction].one && r.ExitCode != nil && *r.ExitCode == cannotLoad
}

// onLoopback reports whether an app that answers listens on loopback alone. It is a remark
// in the log: a guest that does not say is not asked again.
func (f *Flows) onLoopback(ctx context.Context, requestID string, box *record.Sandbox, port int) bool {
	st, err := f.status(ctx, requestID, box)
	return err == nil && slices.Contains(st.Run.Listening, appapi.Listen{Port: port, Loopback: true})
}

// unwell explains to the author of an app or a function, which noun says, why it is not
// healthy.
func unwell(noun string, r appapi.RunStatus, unknown error, got answer, port int, limit time.Duration) error {
	why := &apierror.Error{Code: apierror.EUnprocessable, Message: fmt.Sprintf("the %s does not answer on port %d within %s", noun, port, limit)}
	if unknown != nil {
		return why.With(reasonOf(unknown), unknown)
	}
	switch {
	case got == silent:
		why.Message = fmt.Sprintf("the %s takes connections on port %d, and answers nothing within %s", noun, port, limit)
	case unloadable(noun, r):
		why.Message = "the handler of the function cannot be loaded"
	case r.State == appapi.StateExited || r.State == appapi.StateStopped:
		why.Message = "the " + noun + " " + exited(r)
	default:
		why.Message = misplaced(noun, r.Listening, port, why.Message)
	}
	if lines := lastLines(r.LastLines); lines != "" {
		why.Message += "; it wrote last:\n" + lines
	}
	return why
}

// exited says how an app has ended.
func exited(r appapi.RunStatus) string {
	switch {
	case r.Signal == "OOM":
		return "ran out of memory"
	case r.Signal != "":
		return "was ended by " + cleanLine(r.Signal, 20)
	case r.ExitCode != nil:
		return fmt.Sprintf("exited with code %d", *r.ExitCode)
	}
	return "exited"
}

// misplaced returns a message if an app listens on the wrong port or address, and otherwise
// the given text.
func misplaced(noun string, listening []appapi.Listen, port int, otherwise string) string {
	for _, l := range listening {
		if l.Port == port && l.Loopback {
			return fmt.Sprintf("the %s listens on 127.0.0.1:%d only: bind 0.0.0.0", noun, port)
		}
	}
	for _, l := range listening {
		if l.Port != port && l.Port > 0 && l.Port <= maxPort {
			return fmt.Sprintf("the %s listens on port %d, not on $PORT (%d)", noun, l.Port, port)
		}
	}
	return otherwise
}

// Limits on the last lines of an app in an error; maxLine is in bytes.
const (
	manyLines = 20
	maxLine   = 300
)

func lastLines(lines []string) string {
	lines = lines[max(0, len(lines)-manyLines):]
	out := make([]string, 0, len(lines))
	for _, l := range lines {
		out = append(out, strings.TrimRightFunc(printable(l, maxLine), unicode.IsSpace)) // with its indentation
	}
	return strings.Trim(strings.Join(out, "\n"), "\n")
}
