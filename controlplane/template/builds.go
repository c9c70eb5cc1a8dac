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
		_, err := s.template(view, c, name) // which says why
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.Find(view, record.Builds, "template", t.WorkspaceID+"/"+name), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, showBuild), next, nil
}

// BuildLogs returns what a build has said until now, as text.
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
	case hostapi.HasCode(err, hostapi.CodeNotFound): // not yet, or no more
		release()
		return io.NopCloser(strings.NewReader(failureLine(row))), nil
	case err != nil:
		release()
		return nil, core.HostError(err)
	}
	return &core.Body{ReadCloser: text, Release: release}, nil
}

// failureLine is the log of a build that left none.
func failureLine(b *record.Build) string {
	if b.Error == "" {
		return ""
	}
	return "==> failed: " + b.Error + "\n"
}

// FollowBuildLogs returns what a build has said and will say. It ends with the
// build.
func (s *Templates) FollowBuildLogs(ctx context.Context, c core.Caller, id string) (core.Follower[string], error) {
	if _, err := s.GetBuild(ctx, c, id); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(hosts.WithRequestID(ctx, c.RequestID))
	return &buildFollower{ctx: ctx, cancel: cancel, core: s.core, id: id}, nil
}

// buildFollower follows a build from one host to the next, should it change. A
// stream that breaks off is taken up again behind the lines that were read.
type buildFollower struct {
	ctx    context.Context
	cancel context.CancelFunc
	core   *core.Core
	id     string

	agent string
	read  int  // lines of this agent's that were passed on
	skip  int  // of those that the present stream still repeats
	said  bool // that it failed

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
			if err := f.awaitChange(errors.Is(err, io.EOF)); err != nil {
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

// open begins to read from the host that has the build. done: there is a last
// line, or there is nothing more.
func (f *buildFollower) open() (line string, done bool, err error) {
	view := f.core.Store.View()
	row, ok := raftstore.Get(view, record.Builds, f.id)
	if !ok {
		return "", true, io.EOF
	}
	over := !row.FinishedAt.IsZero()
	if row.HostID != f.agent {
		f.agent, f.read = row.HostID, 0
	}
	if row.HostID != "" && !(over && f.read > 0) {
		err := f.dial(row.HostID)
		if err == nil {
			return "", false, nil
		}
		if f.ctx.Err() != nil {
			return "", true, f.ctx.Err()
		}
	}
	if over {
		if f.read == 0 && row.Error != "" && !f.said {
			f.said = true
			return "==> failed: " + row.Error, true, nil
		}
		return "", true, io.EOF
	}
	return "", false, f.wait(view)
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

// awaitChange waits, after a stream's end, until the row knows of the build's
// end, or it is time to look again.
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
	return nil
}
