package build

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/image/oci"
)

// PutBuild begins a build, or answers with the one of this id. One that the
// daemon's end, or want of room, has failed is begun anew.
func (q *Queue) PutBuild(_ context.Context, id string, spec hostapi.BuildSpec) (hostapi.Build, error) {
	def, err := q.definition(spec)
	if err != nil {
		return hostapi.Build{}, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	old := q.jobs[id]
	if old != nil && !q.rebuildable(old.build, spec) {
		return old.build, nil
	}
	switch {
	case !q.serving:
		return hostapi.Build{}, hosterr.ErrDraining
	case len(q.queue) >= maxQueued:
		return hostapi.Build{}, fmt.Errorf("%w: %d template builds wait", hosterr.ErrBusy, maxQueued)
	}
	q.prune()
	j := &job{
		build: hostapi.Build{ID: id, Template: spec.Template, Status: hostapi.BuildQueued, CreatedAt: time.Now().UTC()},
		def:   def, fetch: spec.Fetch, done: make(chan struct{}),
	}
	if spec.Source == "" && spec.Fetch == "" {
		j.workspace = cmp.Or(spec.WorkspaceID, spec.Template)
	}
	if old != nil {
		j.build.CreatedAt = old.build.CreatedAt
	}
	if err := q.save(j); err != nil {
		return hostapi.Build{}, err
	}
	if j.log, err = createBuildLog(q.path(id)); err != nil {
		return hostapi.Build{}, err
	}
	q.jobs[id] = j
	q.queue = append(q.queue, j)
	q.signal()
	return j.build, nil
}

// rebuildable reports whether a build that ended is started again: it failed
// for a reason that may have passed, or what it made is damaged or gone.
func (q *Queue) rebuildable(old hostapi.Build, spec hostapi.BuildSpec) bool {
	switch old.Status {
	case hostapi.BuildFailed:
		return old.Interrupted || old.Refused || spec.Fetch != ""
	case hostapi.BuildSucceeded:
		return !q.cfg.Have(old.BuildID)
	}
	return false
}

// definition is what a build is made of. A workspace's is checked as any input.
func (q *Queue) definition(spec hostapi.BuildSpec) (def image.Definition, err error) {
	switch {
	case spec.Fetch != "":
		if q.cfg.Fetch == nil {
			return def, fmt.Errorf("%w: this host has no snapshot store", hosterr.ErrTemplate)
		}
		return image.Definition{Name: spec.Template}, nil
	case spec.Source != "":
		def, ok := q.cfg.Source(spec.Template, spec.Source)
		if !ok {
			return def, fmt.Errorf("%w: this host has no definition of %s with that recipe", hosterr.ErrTemplate, spec.Template)
		}
		return def, nil
	}
	def = definitionOf(spec)
	return def, q.check(spec, &def)
}

func definitionOf(spec hostapi.BuildSpec) image.Definition {
	d := image.Definition{
		Name: spec.Template, From: spec.From, Run: spec.Run, Files: spec.Files, Env: spec.Env, Start: spec.Start,
		CPU: spec.CPU, MemoryMB: spec.MemoryMB, DiskMB: spec.DiskMB,
	}
	if r := spec.Ready; r != nil {
		d.Ready = &image.Ready{Port: r.Port, Cmd: r.Cmd, TimeoutSeconds: r.TimeoutSeconds}
	}
	return d
}

func (q *Queue) check(spec hostapi.BuildSpec, d *image.Definition) error {
	if spec.FromOCI != oci.IsReference(spec.From) {
		return fmt.Errorf("%w: from_oci is %v and from %q", hosterr.ErrInvalid, spec.FromOCI, spec.From)
	}
	if spec.MemoryMB > q.cfg.MemoryMB {
		return fmt.Errorf("%w: %d MB, this host has %d", hosterr.ErrNoMemory, spec.MemoryMB, q.cfg.MemoryMB)
	}
	complete := *d
	if complete.CPU == 0 { // what is not said is inherited, or has a default
		complete.CPU = image.DefaultCPU
	}
	if complete.MemoryMB == 0 {
		complete.MemoryMB = image.DefaultMemoryMB
	}
	if complete.DiskMB == 0 {
		complete.DiskMB = image.DefaultDiskMB
	}
	if err := complete.Validate(); err != nil {
		return fmt.Errorf("%w: %w", hosterr.ErrInvalid, err)
	}
	return nil
}

// Build returns one build.
func (q *Queue) Build(id string) (hostapi.Build, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[id]
	if j == nil {
		return hostapi.Build{}, errNoBuild(id)
	}
	return j.build, nil
}

func errNoBuild(id string) error {
	return &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such build on this host", Detail: id, HTTPStatus: http.StatusNotFound}
}

// DeleteBuild ends a build that goes on, waits for its end, and forgets it.
func (q *Queue) DeleteBuild(ctx context.Context, id string) error {
	q.mu.Lock()
	j := q.jobs[id]
	if j == nil {
		q.mu.Unlock()
		return nil
	}
	waiting := slices.Contains(q.queue, j)
	q.queue = slices.DeleteFunc(q.queue, func(o *job) bool { return o == j })
	if j.cancel != nil {
		j.cancel(errBuildDeleted)
	}
	q.mu.Unlock()
	if waiting {
		q.finish(j, image.Template{}, errBuildDeleted)
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.jobs[id] == j {
		delete(q.jobs, id)
		return os.RemoveAll(q.path(id))
	}
	return nil
}

// BuildLogs hands on what a build has said, and with follow what it will say,
// until it ends.
func (q *Queue) BuildLogs(ctx context.Context, id string, follow bool, emit func(hostapi.LogLine) error) error {
	q.mu.Lock()
	j := q.jobs[id]
	q.mu.Unlock()
	if j == nil {
		return errNoBuild(id)
	}
	return j.log.read(ctx, follow, func(line string) error {
		return emit(hostapi.LogLine{Stream: "build", Line: line})
	})
}

// DeleteTemplate removes a template that neither a box nor a build needs.
func (q *Queue) DeleteTemplate(ctx context.Context, name string) error {
	if q.needs(name) {
		return fmt.Errorf("%w: a build is under way", hosterr.ErrInUse)
	}
	return q.cfg.Delete(ctx, name)
}

// needs reports whether a build that waits or runs is made from a template, or
// makes it.
func (q *Queue) needs(template string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, j := range q.jobs {
		if j.build.FinishedAt.IsZero() && (j.def.From == template || j.def.Name == template) {
			return true
		}
	}
	return false
}

// prune forgets the oldest builds that have ended, beyond the number that is
// kept.
func (q *Queue) prune() {
	var ended []*job
	for _, j := range q.jobs {
		if !j.build.FinishedAt.IsZero() {
			ended = append(ended, j)
		}
	}
	slices.SortFunc(ended, func(x, y *job) int { return y.build.FinishedAt.Compare(x.build.FinishedAt) })
	for _, j := range ended[min(len(ended), buildsKept):] {
		delete(q.jobs, j.build.ID)
		if err := os.RemoveAll(q.path(j.build.ID)); err != nil {
			q.cfg.Log.Warn("files of an old template build are left", "build", j.build.ID, "error", err)
		}
	}
}
