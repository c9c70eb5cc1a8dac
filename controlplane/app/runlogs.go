package app

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

var errAsleep = &apierror.Error{Code: apierror.EConflict, Message: "app is not running", Detail: "its log is in its sandbox, and it has none now"}

// Logs returns the latest output of an app: the last tail lines of each instance, or all
// that is kept if tail is 0, one instance after the other. If there are several instances,
// each line begins with the name of its instance.
func (s *Apps) Logs(ctx context.Context, c core.Caller, id string, tail int) (io.ReadCloser, error) {
	view, a, err := s.find(ctx, c, id)
	if err != nil {
		return nil, err
	}
	boxes := serving(view, a)
	if len(boxes) == 0 {
		return nil, notRunning(view, a)
	}
	leave, err := s.logs.Enter(c.WorkspaceID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	out := &texts{end: func() { cancel(); leave() }}
	for _, box := range boxes {
		body, oerr := s.openRunLog(ctx, c.RequestID, box, appapi.LogQuery{Tail: tail})
		if oerr != nil {
			err = oerr
			continue
		}
		out.of = append(out.of, instanceLog{instanceOf(box), bufio.NewReaderSize(body, maxLogLine), body})
	}
	switch {
	case len(out.of) == 0:
		out.end()
		return nil, err
	case len(boxes) == 1:
		out.plain = true
	}
	return out, nil
}

// notRunning says why an app has no output. What one wrote that did not come up is in the
// log of its deployment.
func notRunning(r raftstore.Reader, a *record.App) error {
	all := deploymentsOf(r, a.ID)
	asleep := a.Status == record.AppHibernated || a.Status == record.AppWaking
	if asleep || len(all) == 0 || all[len(all)-1].Status != record.DeploymentFailed {
		return errAsleep
	}
	return errAsleep.With("its latest deployment failed: berth app build-logs "+a.ID+" shows why", nil)
}

// serving returns the running sandboxes of an app's instances.
func serving(r raftstore.Reader, a *record.App) (boxes []*record.Sandbox) {
	for _, in := range a.Instances {
		if box, ok := raftstore.Get(r, record.Sandboxes, in.SandboxID); ok && box.Status == record.SandboxRunning {
			boxes = append(boxes, box)
		}
	}
	return boxes
}

// instanceOf returns the name of an instance in a log: the beginning of its sandbox's id,
// because the whole id is a credential.
func instanceOf(box *record.Sandbox) string { return hostapi.ShortID(box.ID) }

func (s *Apps) openRunLog(ctx context.Context, requestID string, box *record.Sandbox, q appapi.LogQuery) (io.ReadCloser, error) {
	return s.openLog(ctx, requestID, box, func(ctx context.Context, g *appapi.Client) (io.ReadCloser, error) {
		body, _, err := g.RunLog(ctx, q)
		return body, err
	})
}

// texts joins the logs of instances to one text.
type texts struct {
	of    []instanceLog
	plain bool   // there is one instance, so lines have no prefix
	rest  []byte // the unread part of the present line
	mid   bool   // the last read ended in the middle of a line
	end   func()
}

type instanceLog struct {
	instance string
	r        *bufio.Reader
	body     io.Closer
}

// Read implements io.Reader.
func (t *texts) Read(p []byte) (int, error) {
	for len(t.rest) == 0 {
		if len(t.of) == 0 {
			return 0, io.EOF
		}
		now := t.of[0]
		raw, err := now.r.ReadSlice('\n')
		if len(raw) > 0 {
			if !t.plain && !t.mid {
				t.rest = append(t.rest, "["+now.instance+"] "...)
			}
			t.rest = append(t.rest, raw...)
			t.mid = raw[len(raw)-1] != '\n'
		}
		if err == nil || errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		_ = now.body.Close() // it was read to its end
		if t.of = t.of[1:]; t.mid && len(t.of) > 0 {
			t.rest, t.mid = append(t.rest, '\n'), false
		}
	}
	n := copy(p, t.rest)
	t.rest = t.rest[:copy(t.rest, t.rest[n:])]
	return n, nil
}

// Close implements io.Closer.
func (t *texts) Close() error {
	defer t.end()
	var all error
	for _, one := range t.of {
		all = errors.Join(all, one.body.Close())
	}
	return all
}

// FollowLogs returns the latest output of an app, as Logs does, and then what it writes. It
// follows all instances, including those that begin to serve meanwhile, until none is left.
func (s *Apps) FollowLogs(ctx context.Context, c core.Caller, id string, tail int) (core.Follower[sandbox.LogLine], error) {
	view, a, err := s.find(ctx, c, id)
	if err != nil {
		return nil, err
	}
	boxes := serving(view, a)
	if len(boxes) == 0 {
		return nil, notRunning(view, a)
	}
	leave, err := s.logs.Enter(c.WorkspaceID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &runLog{
		s: s, ctx: ctx, end: func() { cancel(); leave() }, c: c, id: id, tail: tail,
		seen: map[string]bool{}, lines: make(chan sandbox.LogLine), ended: make(chan struct{}),
	}
	for _, box := range boxes {
		body, oerr := s.openRunLog(ctx, c.RequestID, box, f.query())
		if f.seen[box.ID] = true; oerr != nil {
			err = oerr
			continue
		}
		f.follow(instanceOf(box), body)
	}
	if f.open == 0 {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// runLog follows the instances of an app.
type runLog struct {
	s    *Apps
	ctx  context.Context
	end  func()
	c    core.Caller
	id   string
	tail int

	// Used only by the goroutine that calls Next.
	seen map[string]bool // sandboxes whose log is or was followed
	open int             // number of their logs that have not ended

	lines chan sandbox.LogLine
	ended chan struct{} // gets a value for each log that ends

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
}

func (f *runLog) query() appapi.LogQuery { return appapi.LogQuery{Tail: f.tail, Follow: true} }

// Next implements core.Follower.
func (f *runLog) Next() (sandbox.LogLine, error) {
	for {
		view := f.s.core.Store.View()
		if a, err := Owned(view, f.c, f.id); err == nil {
			f.join(view, a)
		}
		if f.open == 0 {
			return sandbox.LogLine{}, io.EOF
		}
		select {
		case line := <-f.lines:
			return line, nil
		case <-f.ended:
			f.open--
		case <-view.Changed(record.Apps.Name, record.Sandboxes.Name):
		case <-f.ctx.Done():
			return sandbox.LogLine{}, core.StoreError(f.ctx.Err())
		}
	}
}

// join begins to follow the instances that have begun to serve the app.
func (f *runLog) join(view *raftstore.Snapshot, a *record.App) {
	for _, box := range serving(view, a) {
		if f.seen[box.ID] {
			continue
		}
		f.seen[box.ID] = true
		f.begin(func() {
			body, err := f.s.openRunLog(f.ctx, f.c.RequestID, box, f.query())
			if err != nil {
				f.send(logLine(streamErr, "its log cannot be read now", false), instanceOf(box))
				return
			}
			f.pump(instanceOf(box), body)
		})
	}
}

// follow begins to follow an open log.
func (f *runLog) follow(instance string, body io.ReadCloser) {
	if !f.begin(func() { f.pump(instance, body) }) {
		_ = body.Close()
	}
}

// begin runs work in the background; Close waits for its end. After Close it does nothing
// and returns false.
func (f *runLog) begin(work func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.open++
	f.work.Go(func() {
		work()
		select {
		case f.ended <- struct{}{}:
		case <-f.ctx.Done():
		}
	})
	return true
}

// pump passes on the lines of a log until the log ends.
func (f *runLog) pump(instance string, body io.ReadCloser) {
	stop := context.AfterFunc(f.ctx, func() { _ = body.Close() })
	defer stop()
	in := &lines{r: bufio.NewReaderSize(body, maxLogLine), body: body}
	defer in.Close()
	for {
		line, err := in.Next()
		if err != nil || !f.send(line, instance) {
			return
		}
	}
}

func (f *runLog) send(line sandbox.LogLine, instance string) bool {
	line.Instance = instance
	select {
	case f.lines <- line:
		return true
	case <-f.ctx.Done():
		return false
	}
}

// Close implements core.Follower.
func (f *runLog) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.end()
	f.work.Wait()
	return nil
}
