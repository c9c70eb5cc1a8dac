package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A function soon goes to sleep, and its sandbox is deleted. Its output is kept before that,
// as a blob. Each sleep replaces the blob by one that has the new output too. The former
// blob is deleted only once the app's row names the new one.

// maxRunLog limits the output that is kept of a function, in bytes. The end is kept.
const maxRunLog = 256 << 10

// kept is the output of a function, and the offset up to which each sandbox's log is in it.
type kept struct {
	Boxes map[string]int64 `json:"boxes,omitempty"`
	text  []byte
}

// encode returns the content of the blob: a line of JSON, then the text.
func (k kept) encode() []byte {
	head, _ := json.Marshal(k) // a map of numbers never fails
	return append(append(head, '\n'), k.text...)
}

// keptLog reads the blob of a function. The result is empty if there is no blob or it is
// gone for good. An error means that the blob may still exist.
func (f *Flows) keptLog(ctx context.Context, a *record.App) (k kept, err error) {
	if a.Log == nil {
		return kept{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, blobTime)
	defer cancel()
	body, _, err := f.getBlob(ctx, placeOf(*a.Log), a.Log.ID)
	switch {
	case errors.Is(err, errBlobLost), hostapi.HasCode(err, hostapi.CodeNotFound):
		return kept{}, nil
	case err != nil:
		return kept{}, err
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, maxRunLog+64<<10))
	if err != nil {
		return kept{}, fmt.Errorf("read blob %s: %w", a.Log.ID, err)
	}
	head, text, ok := bytes.Cut(raw, []byte{'\n'})
	if !ok || json.Unmarshal(head, &k) != nil {
		return kept{}, nil // reading it again would not help
	}
	k.text = text
	return k, nil
}

// written returns the output of a function, as far as it can be read now.
func (f *Flows) written(ctx context.Context, r raftstore.Reader, a *record.App) (kept, error) {
	before, err := f.keptLog(ctx, a)
	if err != nil {
		f.Logger.InfoContext(ctx, "kept log of a function cannot be read", "function_id", a.ID, "error", err)
	}
	return before.add(ctx, f, r, a)
}

// add returns k extended by what the instances of a function have written since.
func (k kept) add(ctx context.Context, f *Flows, r raftstore.Reader, a *record.App) (kept, error) {
	out := kept{Boxes: map[string]int64{}, text: k.text}
	for _, in := range a.Instances {
		box, ok := raftstore.Get(r, record.Sandboxes, in.SandboxID)
		if !ok || box.Status != record.SandboxRunning {
			continue
		}
		text, end, err := f.readRunLog(ctx, box, k.Boxes[in.SandboxID])
		if err != nil {
			return k, err
		}
		out.Boxes[in.SandboxID] = end
		out.text = append(out.text[:len(out.text):len(out.text)], text...)
	}
	if over := len(out.text) - maxRunLog; over > 0 {
		out.text = out.text[over:]
		if i := bytes.IndexByte(out.text, '\n'); i >= 0 { // whole lines
			out.text = out.text[i+1:]
		}
	}
	return out, nil
}

// readRunLog reads the output of the program in a sandbox from an offset on, at most the
// last maxRunLog bytes. end is the offset after the text.
func (f *Flows) readRunLog(ctx context.Context, box *record.Sandbox, from int64) (text []byte, end int64, err error) {
	err = f.onGuest(ctx, "", box, guestTime, func(ctx context.Context, g *appapi.Client) error {
		st, err := g.Status(ctx)
		if err != nil {
			return err
		}
		r, at, err := g.RunLog(ctx, appapi.LogQuery{From: max(from, st.Run.LogBytes-maxRunLog)})
		if err != nil {
			return err
		}
		defer r.Close()
		if text, err = io.ReadAll(io.LimitReader(r, 2*maxRunLog)); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		end = at + int64(len(text))
		return nil
	})
	return text, end, err
}

// sleepFunction keeps the output of an idle function and puts the function to sleep. Output
// that cannot be kept is lost; the function sleeps all the same.
func (k *keeper) sleepFunction(ctx context.Context, a *record.App) {
	if err := k.keepRunLog(ctx, a); err != nil {
		k.Logger.InfoContext(ctx, "log of a function is not kept", "function_id", a.ID, "error", err)
	}
	k.putToSleep(ctx, a.ID)
}

// keepRunLog keeps the output of a function. The former blob exists until the row names the
// new one, whatever fails in between.
func (k *keeper) keepRunLog(ctx context.Context, a *record.App) error {
	before, err := k.flows.keptLog(ctx, a)
	if err != nil {
		return err
	}
	now, err := before.add(ctx, k.flows, k.Store.View(), a)
	if err != nil || maps.Equal(before.Boxes, now.Boxes) { // it has written nothing
		return err
	}
	u := record.AppUpload{ID: logPrefix + a.ID + "-" + core.RandomText(logRandom), Dropped: true}
	defer k.streams.begin(u.ID)()
	// Before a host gets any of the blob, name it as one to delete: if this leader dies,
	// the next one deletes it.
	if err := k.noteLog(ctx, a.ID, u); err != nil {
		return err
	}
	pctx, cancel := context.WithTimeout(ctx, blobTime)
	defer cancel()
	at, size, err := k.flows.putBlob(pctx, u.ID, bytes.NewReader(now.encode()))
	if err != nil {
		return err
	}
	u.HostID, u.Local, u.SizeBytes, u.Dropped = at.host, at.local, size, false
	if err := k.noteLog(ctx, a.ID, u); err != nil {
		_ = k.deleteBlob(context.WithoutCancel(ctx), at, u.ID) // nobody else may be left to do it; it logs its error
		return err
	}
	return nil
}

// logRandom is the number of random characters in the name of a kept log.
const logRandom = 12

var errNotKept = errors.New("the function is gone, or another leader keeps it")

// noteLog makes a function's row name a blob: as one to delete, or as its log in place of
// the former.
func (k *keeper) noteLog(ctx context.Context, id string, u record.AppUpload) error {
	return k.Store.Update(ctx, func(tx *raftstore.Tx) error {
		a, ok := raftstore.Get(tx, record.Apps, id)
		if !ok || a.Status == record.AppDeleting {
			return errNotKept
		}
		a = a.Clone()
		u.CreatedAt = tx.Now()
		n := len(a.Uploads)
		a.Uploads = slices.DeleteFunc(a.Uploads, func(of record.AppUpload) bool { return of.ID == u.ID })
		switch {
		case u.Dropped:
			a.Uploads = append(a.Uploads, u)
		case len(a.Uploads) == n: // it was deleted meanwhile
			return errNotKept
		default:
			if a.Log != nil {
				former := *a.Log
				former.Dropped = true
				a.Uploads = append(a.Uploads, former)
			}
			a.Log = &u
		}
		boundDropped(tx, a)
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
}

// functionsAtOnce limits how many functions of a workspace are put to sleep at once.
const functionsAtOnce = 4 * loops.AtOnce

// Logs returns the latest output of a function, including output from before it slept: the
// last tail lines, or all that is kept if tail is 0.
func (s *Functions) Logs(ctx context.Context, c core.Caller, id string, tail int) (io.ReadCloser, error) {
	view, a, err := s.find(ctx, c, id)
	if err != nil {
		return nil, err
	}
	leave, err := s.logs.Enter(c.WorkspaceID)
	if err != nil {
		return nil, err
	}
	now, err := s.flows.written(ctx, view, a)
	if err != nil {
		leave()
		return nil, guestError(err)
	}
	return &openText{bytes.NewReader(lastOf(now.text, tail)), leave}, nil
}

// openText is a text that counts as open until it is closed.
type openText struct {
	io.Reader
	leave func()
}

// Close implements io.Closer.
func (l *openText) Close() error {
	l.leave()
	return nil
}

// lastOf returns the last tail lines of a text, or all of it if tail is 0.
func lastOf(text []byte, tail int) []byte {
	if tail <= 0 {
		return text
	}
	at := len(bytes.TrimSuffix(text, []byte{'\n'}))
	for ; tail > 0 && at >= 0; tail-- {
		at = bytes.LastIndexByte(text[:at], '\n')
	}
	return text[at+1:]
}

// FollowLogs returns the latest output of a function, as Logs does, and then what it writes
// while it is awake and whenever it wakes again.
func (s *Functions) FollowLogs(ctx context.Context, c core.Caller, id string, tail int) (core.Follower[sandbox.LogLine], error) {
	view, a, err := s.find(ctx, c, id)
	if err != nil {
		return nil, err
	}
	leave, err := s.logs.Enter(c.WorkspaceID)
	if err != nil {
		return nil, err
	}
	now, err := s.flows.written(ctx, view, a)
	if err != nil {
		leave()
		return nil, guestError(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &functionLog{s: s, ctx: ctx, cancel: cancel, leave: leave, c: c, id: id, told: kept{Boxes: now.Boxes}}
	text := bytes.NewReader(lastOf(now.text, tail))
	l.now = &lines{r: bufio.NewReaderSize(text, maxLogLine), body: io.NopCloser(text)}
	return l, nil
}

// functionLog follows a function from one instance to the next.
type functionLog struct {
	s      *Functions
	ctx    context.Context
	cancel context.CancelFunc
	leave  func()
	c      core.Caller
	id     string

	now  *lines
	box  string // the sandbox whose log is read; "": the kept output
	told kept   // offsets up to which the logs of instances were returned
}

// Close implements core.Follower.
func (l *functionLog) Close() error {
	defer l.leave()
	defer l.cancel()
	if l.now != nil {
		return l.now.Close()
	}
	return nil
}

// Next implements core.Follower.
func (l *functionLog) Next() (sandbox.LogLine, error) {
	for {
		broke := false // a log that was followed has just ended
		if l.now != nil {
			line, err := l.now.Next()
			if err == nil {
				return line, nil
			}
			if broke = l.box != ""; broke {
				l.told.Boxes[l.box] += l.now.read
			}
			_ = l.now.Close() // it was read to its end
			l.now = nil
		}
		view := l.s.core.Store.View()
		a, err := l.s.owned(view, l.c, l.id)
		switch {
		case err != nil:
			return sandbox.LogLine{}, io.EOF // it was deleted
		case !broke && l.follow(view, a):
			continue
		case !l.s.core.Store.IsLeader():
			return sandbox.LogLine{}, apierror.Unavailable("leadership has changed", nil)
		}
		select {
		case <-view.Changed(record.Apps.Name, record.Sandboxes.Name):
		case <-time.After(logLook):
		case <-l.ctx.Done():
			return sandbox.LogLine{}, core.StoreError(l.ctx.Err())
		}
	}
}

// follow opens the log of the first instance that has one, from where reading stopped.
func (l *functionLog) follow(view *raftstore.Snapshot, a *record.App) bool {
	for _, in := range a.Instances {
		box, ok := raftstore.Get(view, record.Sandboxes, in.SandboxID)
		if !ok || box.Status != record.SandboxRunning {
			continue
		}
		from := l.told.Boxes[in.SandboxID]
		body, err := l.s.openLog(l.ctx, l.c.RequestID, box, func(ctx context.Context, g *appapi.Client) (io.ReadCloser, error) {
			body, at, err := g.RunLog(ctx, appapi.LogQuery{From: from, Follow: true})
			from = max(from, at)
			return body, err
		})
		if err != nil {
			continue
		}
		l.box, l.told.Boxes[box.ID] = box.ID, from
		l.now = &lines{r: bufio.NewReaderSize(body, maxLogLine), body: body}
		return true
	}
	return false
}
