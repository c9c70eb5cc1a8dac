package template

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// GetBuild returns one build.
func (s *Templates) GetBuild(ctx context.Context, c core.Caller, id string) (api.Build, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return api.Build{}, err
	}
	b, err := ownedBuild(view, c, id)
	if err != nil {
		return api.Build{}, err
	}
	return showBuild(b), nil
}

func ownedBuild(r raftstore.Reader, c core.Caller, id string) (*record.Build, error) {
	b, ok := raftstore.Get(r, record.Builds, id)
	if !ok || b.Dropped || b.WorkspaceID != "" && b.WorkspaceID != c.WorkspaceID {
		return nil, apierror.NotFound()
	}
	return b, nil
}

// ListBuilds returns a page of a template's builds, newest first.
func (s *Templates) ListBuilds(ctx context.Context, c core.Caller, name string, o core.ListOptions) (page []api.Build, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	t, ok := usable(view, c.WorkspaceID, name)
	if !ok {
		_, err := s.template(view, c, name) // for its error
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.Find(view, record.Builds, "template", t.WorkspaceID+"/"+name), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, showBuild), next, nil
}

// BuildLogs returns the lines of a build's log so far, as text.
func (s *Templates) BuildLogs(ctx context.Context, c core.Caller, id string) (io.ReadCloser, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, err
	}
	row, err := ownedBuild(view, c, id)
	if err != nil {
		return nil, err
	}
	if row.HostID == "" {
		return io.NopCloser(strings.NewReader(failureLine(row))), nil
	}
	client, err := s.core.Hosts.Reach(ctx, row.HostID)
	if err != nil {
		return nil, core.HostError(err)
	}
	hctx, release := s.core.Hosts.WhileHeard(hosts.WithRequestID(ctx, c.RequestID), row.HostID)
	text, err := client.BuildLogs(hctx, id)
	switch {
	case hostapi.HasCode(err, hostapi.CodeNotFound): // not yet, or no longer
		release()
		return io.NopCloser(strings.NewReader(failureLine(row))), nil
	case err != nil:
		release()
		return nil, core.HostError(err)
	}
	return &core.Body{ReadCloser: text, Release: release}, nil
}

// failureLine is the log of a build whose host has none.
func failureLine(b *record.Build) string {
	if b.Error == "" {
		return ""
	}
	return "==> failed: " + b.Error + "\n"
}

// FollowBuildLogs returns the existing lines of a build's log and then new ones. It
// ends with the build.
func (s *Templates) FollowBuildLogs(ctx context.Context, c core.Caller, id string) (core.Follower[string], error) {
	if _, err := s.GetBuild(ctx, c, id); err != nil {
		return nil, err
	}
	leave, err := s.core.Streams.Enter(c.WorkspaceID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(hosts.WithRequestID(ctx, c.RequestID))
	return &buildFollower{ctx: ctx, cancel: cancel, leave: leave, core: s.core, id: id}, nil
}

// buildFollower follows a build's log, even if the build moves to another host. If
// the stream breaks, it continues after the lines that were read.
type buildFollower struct {
	ctx    context.Context
	cancel context.CancelFunc
	leave  func()
	core   *core.Core
	id     string

	agent string
	read  int  // lines of the host's log that were returned
	skip  int  // of those, how many the current stream still repeats
	whole bool // the last stream ended with the log, and was not cut
	vain  int  // how often the host of a build that has ended was asked in vain
	said  bool // the failure was returned, or that the rest cannot be read

	mu      sync.Mutex
	from    *hostapi.Follower[hostapi.LogLine]
	release context.CancelFunc
}

// Next implements Follower.
func (f *buildFollower) Next() (string, error) {
	for {
		from := f.current()
		if from == nil {
			if line, done, err := f.open(); done || err != nil {
				return line, err
			}
			continue
		}
		got, err := from.Next()
		if err != nil {
			f.drop()
			if f.ctx.Err() != nil {
				return "", f.ctx.Err()
			}
			f.whole = errors.Is(err, io.EOF)
			if err := f.awaitChange(f.whole); err != nil {
				return "", err
			}
			continue
		}
		if f.skip > 0 {
			f.skip--
			continue
		}
		f.read++
		return got.Line, nil
	}
}

// open starts reading from the host that has the build. done means that line is the
// last one, or that there is nothing more.
func (f *buildFollower) open() (line string, done bool, err error) {
	view := f.core.Store.View()
	row, ok := raftstore.Get(view, record.Builds, f.id)
	if !ok {
		return "", true, io.EOF
	}
	over := !row.FinishedAt.IsZero()
	if row.HostID != f.agent {
		f.agent, f.read, f.whole = row.HostID, 0, false
	}
	// Lines may follow the point where a stream was cut, even if the build has ended.
	if row.HostID != "" && !(over && f.whole) && !f.said {
		err := f.dial(row.HostID)
		if err == nil {
			return "", false, nil
		}
		if f.ctx.Err() != nil {
			return "", true, f.ctx.Err()
		}
		if f.vain++; over && f.read > 0 && f.vain < lookAgain && !hostapi.HasCode(err, hostapi.CodeNotFound) {
			return "", false, f.wait(view)
		}
	}
	if !over {
		f.vain = 0
		return "", false, f.wait(view)
	}
	if line := f.missing(row); line != "" && !f.said {
		f.said = true
		return line, true, nil
	}
	return "", true, io.EOF
}

// lookAgain is how often the host of a build that has ended is asked for the rest of
// its log: as a rule only the connection broke.
const lookAgain = 3

// missing is said instead of the lines that the host did not give.
func (f *buildFollower) missing(row *record.Build) string {
	switch {
	case f.read == 0 && row.Error != "":
		return strings.TrimSuffix(failureLine(row), "\n")
	case f.read > 0 && !f.whole:
		return "==> the rest of the log cannot be read"
	}
	return ""
}

func (f *buildFollower) dial(hostID string) error {
	client, err := f.core.Hosts.Client(hostID)
	if err != nil {
		return err
	}
	ctx, release := f.core.Hosts.WhileHeard(f.ctx, hostID)
	from, err := client.FollowBuildLogs(ctx, f.id)
	if err != nil {
		release()
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.from, f.release, f.skip = from, release, f.read
	return nil
}

func (f *buildFollower) current() *hostapi.Follower[hostapi.LogLine] {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.from
}

// awaitChange waits, after a stream has ended, until the row shows the build's end
// or it is time to look again.
func (f *buildFollower) awaitChange(orderly bool) error {
	view := f.core.Store.View()
	row, ok := raftstore.Get(view, record.Builds, f.id)
	if !ok || orderly && !row.FinishedAt.IsZero() {
		return nil
	}
	return f.wait(view)
}

func (f *buildFollower) wait(view *raftstore.Snapshot) error {
	again := time.NewTimer(time.Second)
	defer again.Stop()
	select {
	case <-view.Changed(record.Builds.Name):
	case <-again.C:
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
	return nil
}

func (f *buildFollower) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.from != nil {
		_ = f.from.Close()
		f.release()
		f.from = nil
	}
}

// Close implements Follower. It may be called while Next waits.
func (f *buildFollower) Close() error {
	f.cancel()
	f.drop()
	f.leave()
	return nil
}
