package hostd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/image/oci"
	"github.com/berth-cloud/berth/timescale"
)

const (
	maxQueued = 32
	// buildsKept is how many finished builds, and their logs, are kept.
	buildsKept = 64
)

// buildTime bounds a whole build, its wait for the guest included: builds
// are made one after the other.
var buildTime = timescale.Limit(2 * time.Hour)

// Why a build was ended.
var (
	errBuildDeleted = errors.New("the build was deleted")
	errInterrupted  = errors.New("the host's daemon ended while it was built")
)

// buildsConfig is what builds work with.
type buildsConfig struct {
	Dir      string // one directory a build
	MemoryMB int    // that the host has for sandboxes
	Ensure   func(context.Context, image.Definition, image.Options) (image.Template, error)
	// Parallel is how many are made at once, at least two. One workspace has all
	// but one of them at most.
	Parallel int
	// Source finds a definition of this host's operator.
	Source func(name, recipe string) (image.Definition, bool)
	// Fetch makes a template mean a build of the snapshot store, made elsewhere
	// by the control plane's build.
	Fetch func(ctx context.Context, digest, template, by string) (image.Template, error)
	// Have reports whether a build is here and whole.
	Have func(digest string) bool
	// Admit takes what a build's guest needs, as a box of this size would.
	Admit func(image.Guest) (release func(), err error)
	// Changed is told that templates are not what they were.
	Changed func()
	// Delete removes a template that no box uses.
	Delete func(ctx context.Context, name string) error
	Log    *slog.Logger
}

// builds are the template builds that the control plane asks for. Workspaces take
// turns; what the daemon's end cuts off has failed after its start.
type builds struct {
	cfg buildsConfig

	mu       sync.Mutex
	jobs     map[string]*job
	queue    []*job
	underWay map[string]int    // by workspace
	served   map[string]uint64 // the turn that each workspace had last, while it has builds here
	turn     uint64
	serving  bool
	wake     chan struct{}
}

// job is one build. Its build is guarded by builds.mu.
type job struct {
	build     hostapi.Build
	def       image.Definition
	workspace string // whose build it is; empty: the operator's
	fetch     string // digest, where it comes from the snapshot store
	log       *buildLog
	cancel    context.CancelCauseFunc // set while it runs
	done      chan struct{}           // closed when it has ended
}

var validBuildID = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

// newBuilds reads what an earlier daemon left.
func newBuilds(cfg buildsConfig) (*builds, error) {
	cfg.Parallel = max(cfg.Parallel, 2)
	b := &builds{
		cfg: cfg, jobs: map[string]*job{}, underWay: map[string]int{}, served: map[string]uint64{}, wake: make(chan struct{}, 1),
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("template builds: %w", err)
	}
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("template builds: %w", err)
	}
	for _, e := range entries {
		j, err := b.load(e.Name())
		if err != nil {
			cfg.Log.Warn("record of a template build cannot be read and is removed", "build", e.Name(), "error", err)
			if err := os.RemoveAll(b.path(e.Name())); err != nil {
				return nil, fmt.Errorf("template builds: %w", err)
			}
			continue
		}
		b.jobs[j.build.ID] = j
	}
	return b, nil
}

// Run makes the builds until ctx ends, which fails those under way.
func (b *builds) Run(ctx context.Context) {
	b.mu.Lock()
	b.serving = true
	b.mu.Unlock()
	var underWay sync.WaitGroup
	defer underWay.Wait()
	defer b.stop()
	for ctx.Err() == nil {
		j, jctx, end := b.next(ctx)
		if j != nil {
			underWay.Go(func() {
				b.make(jctx, j)
				end()
				b.leave(j)
			})
			continue
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
		}
	}
}

// leave gives a build's turn to the next.
func (b *builds) leave(j *job) {
	b.mu.Lock()
	if b.underWay[j.workspace]--; b.underWay[j.workspace] == 0 {
		delete(b.underWay, j.workspace)
		if !slices.ContainsFunc(b.queue, func(o *job) bool { return o.workspace == j.workspace }) {
			delete(b.served, j.workspace)
		}
	}
	b.mu.Unlock()
	b.look()
}

// look has Run look for what can be done.
func (b *builds) look() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// stop fails what waits.
func (b *builds) stop() {
	b.mu.Lock()
	b.serving = false
	waiting := b.queue
	b.queue = nil
	b.mu.Unlock()
	for _, j := range waiting {
		b.finish(j, image.Template{}, errInterrupted)
	}
}

// pick says which build is next, -1 if none is: of the workspaces with the fewest
// builds under way the one that has had no turn for longest.
func (b *builds) pick() int {
	total := 0
	for _, n := range b.underWay {
		total += n
	}
	best := -1
	if total >= b.cfg.Parallel {
		return best
	}
	for i, j := range b.queue {
		n := b.underWay[j.workspace]
		if n >= b.cfg.Parallel-1 {
			continue
		}
		if best >= 0 {
			o := b.queue[best].workspace
			if n > b.underWay[o] || n == b.underWay[o] && b.served[j.workspace] >= b.served[o] {
				continue
			}
		}
		best = i
	}
	return best
}

// next takes the build whose turn it is, with the context that ends it.
func (b *builds) next(ctx context.Context) (j *job, jctx context.Context, end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.pick()
	if i < 0 {
		return nil, nil, nil
	}
	j = b.queue[i]
	b.queue = slices.Delete(b.queue, i, i+1)
	b.turn++
	b.underWay[j.workspace]++
	b.served[j.workspace] = b.turn
	ctx, j.cancel = context.WithCancelCause(ctx)
	jctx, stop := context.WithTimeoutCause(ctx, buildTime, fmt.Errorf("not done within %s", buildTime))
	cancel := j.cancel
	return j, jctx, func() {
		stop()
		cancel(nil)
	}
}

// make makes one build.
func (b *builds) make(ctx context.Context, j *job) {
	tpl, err := b.ensure(ctx, j)
	if err != nil && ctx.Err() != nil {
		if err = context.Cause(ctx); errors.Is(err, context.Canceled) {
			err = errInterrupted
		}
	}
	b.finish(j, tpl, err)
}

func (b *builds) ensure(ctx context.Context, j *job) (image.Template, error) {
	b.mu.Lock()
	j.build.Status = hostapi.BuildBuilding
	err := b.save(j)
	b.mu.Unlock()
	if err != nil {
		return image.Template{}, err
	}
	j.log.say("==> build " + j.build.ID)
	if j.fetch != "" {
		return b.cfg.Fetch(ctx, j.fetch, j.build.Template, j.build.ID)
	}
	return b.cfg.Ensure(ctx, j.def, image.Options{Workspace: j.workspace, By: j.build.ID, Progress: j.log.progress(), Admit: b.cfg.Admit})
}

// finish writes down how a build ended.
func (b *builds) finish(j *job, tpl image.Template, err error) {
	b.mu.Lock()
	j.cancel = nil
	j.build.FinishedAt = time.Now().UTC()
	if err != nil {
		// Who reads this knows the template by another name than its hosts do.
		told := err
		if failed := (*image.BuildError)(nil); errors.As(err, &failed) {
			told = failed.Err
		}
		why := strings.TrimSpace(told.Error())
		j.build.Status, j.build.Error = hostapi.BuildFailed, oneLine(why)
		j.build.Interrupted = errors.Is(err, errInterrupted) || errors.Is(err, errBuildDeleted)
		j.build.Refused = errors.Is(err, hosterr.ErrNoMemory) || errors.Is(err, hosterr.ErrNoDisk) || errors.Is(err, hosterr.ErrNoSlot)
		j.build.Missing = j.fetch != "" && errors.Is(err, hosterr.ErrNoSnapshot)
		j.log.last("==> failed: " + why)
	} else {
		j.build.Status, j.build.BuildID, j.build.From = hostapi.BuildSucceeded, tpl.BuildID, tpl.Definition.From
		j.build.CPU, j.build.MemoryMB, j.build.DiskMB, j.build.SizeBytes = tpl.CPU, tpl.MemoryMB, tpl.DiskMB, tpl.SizeBytes
		j.log.last("==> ready: build " + tpl.BuildID)
	}
	if !errors.Is(err, errBuildDeleted) {
		if saveErr := b.save(j); saveErr != nil {
			b.cfg.Log.Error("end of a template build is not on disk", "build", j.build.ID, "error", saveErr)
		}
	}
	out := j.build
	b.mu.Unlock()
	j.log.close()
	close(j.done)
	b.cfg.Log.Info("template build ended", "build", out.ID, "template", out.Template, "status", out.Status, "error", out.Error)
	b.cfg.Changed()
}

// oneLine is an error's first line, with what a failed step said last.
func oneLine(text string) string {
	const limit = 500
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) == 0 {
		return ""
	}
	out := strings.TrimSpace(lines[0])
	if last := strings.TrimSpace(lines[len(lines)-1]); len(lines) > 1 {
		out += " … " + last
	}
	if len(out) > limit {
		out = strings.ToValidUTF8(out[:limit], "") + "…"
	}
	return out
}

// PutBuild begins a build, or answers with the one of this id. One that the
// daemon's end, or want of room, has failed is begun anew.
func (b *builds) PutBuild(_ context.Context, id string, spec hostapi.BuildSpec) (hostapi.Build, error) {
	def, err := b.definition(id, spec)
	if err != nil {
		return hostapi.Build{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.jobs[id]
	if old != nil && !b.again(old.build, spec) {
		return old.build, nil
	}
	switch {
	case !b.serving:
		return hostapi.Build{}, hosterr.ErrDraining
	case len(b.queue) >= maxQueued:
		return hostapi.Build{}, fmt.Errorf("%w: %d template builds wait", hosterr.ErrBusy, maxQueued)
	}
	b.prune()
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
	if err := b.save(j); err != nil {
		return hostapi.Build{}, err
	}
	if j.log, err = createBuildLog(b.path(id)); err != nil {
		return hostapi.Build{}, err
	}
	b.jobs[id] = j
	b.queue = append(b.queue, j)
	b.look()
	return j.build, nil
}

// again reports whether a build that ended is begun anew: it failed by no fault of
// its own, or what it made is damaged or gone.
func (b *builds) again(old hostapi.Build, spec hostapi.BuildSpec) bool {
	switch old.Status {
	case hostapi.BuildFailed:
		return old.Interrupted || old.Refused || spec.Fetch != ""
	case hostapi.BuildSucceeded:
		return !b.cfg.Have(old.BuildID)
	}
	return false
}

// definition is what a build is made of. A workspace's is checked as any input.
func (b *builds) definition(id string, spec hostapi.BuildSpec) (def image.Definition, err error) {
	switch {
	case !validBuildID.MatchString(id):
		return def, fmt.Errorf("%w: id of a build", hosterr.ErrInvalid)
	case spec.Fetch != "":
		if b.cfg.Fetch == nil {
			return def, fmt.Errorf("%w: this host has no snapshot store", hosterr.ErrTemplate)
		}
		return image.Definition{Name: spec.Template}, nil
	case spec.Source != "":
		def, ok := b.cfg.Source(spec.Template, spec.Source)
		if !ok {
			return def, fmt.Errorf("%w: this host has no definition of %s with that recipe", hosterr.ErrTemplate, spec.Template)
		}
		return def, nil
	}
	def = definitionOf(spec)
	return def, b.check(spec, &def)
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

func (b *builds) check(spec hostapi.BuildSpec, d *image.Definition) error {
	if spec.FromOCI != oci.IsReference(spec.From) {
		return fmt.Errorf("%w: from_oci is %v and from %q", hosterr.ErrInvalid, spec.FromOCI, spec.From)
	}
	if spec.MemoryMB > b.cfg.MemoryMB {
		return fmt.Errorf("%w: %d MB, this host has %d", hosterr.ErrNoMemory, spec.MemoryMB, b.cfg.MemoryMB)
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
func (b *builds) Build(id string) (hostapi.Build, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jobs[id]
	if j == nil {
		return hostapi.Build{}, errNoBuild(id)
	}
	return j.build, nil
}

func errNoBuild(id string) error {
	return &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such build on this host", Detail: id, HTTPStatus: http.StatusNotFound}
}

// DeleteBuild ends a build that goes on, waits for its end, and forgets it.
func (b *builds) DeleteBuild(ctx context.Context, id string) error {
	b.mu.Lock()
	j := b.jobs[id]
	if j == nil {
		b.mu.Unlock()
		return nil
	}
	waiting := slices.Contains(b.queue, j)
	b.queue = slices.DeleteFunc(b.queue, func(o *job) bool { return o == j })
	if j.cancel != nil {
		j.cancel(errBuildDeleted)
	}
	b.mu.Unlock()
	if waiting {
		b.finish(j, image.Template{}, errBuildDeleted)
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.jobs[id] == j {
		delete(b.jobs, id)
		return os.RemoveAll(b.path(id))
	}
	return nil
}

// BuildLogs hands on what a build has said, and with follow what it will say,
// until it ends.
func (b *builds) BuildLogs(ctx context.Context, id string, follow bool, emit func(hostapi.LogLine) error) error {
	b.mu.Lock()
	j := b.jobs[id]
	b.mu.Unlock()
	if j == nil {
		return errNoBuild(id)
	}
	return j.log.read(ctx, follow, func(line string) error {
		return emit(hostapi.LogLine{Stream: "build", Line: line})
	})
}

// DeleteTemplate removes a template that neither a box nor a build needs.
func (b *builds) DeleteTemplate(ctx context.Context, name string) error {
	if b.needs(name) {
		return fmt.Errorf("%w: a build is under way", hosterr.ErrInUse)
	}
	return b.cfg.Delete(ctx, name)
}

// needs reports whether a build that waits or runs is made from a template, or
// makes it.
func (b *builds) needs(template string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range b.jobs {
		if j.build.FinishedAt.IsZero() && (j.def.From == template || j.def.Name == template) {
			return true
		}
	}
	return false
}

// prune forgets the oldest of the builds that ended, but for the last ones.
func (b *builds) prune() {
	var ended []*job
	for _, j := range b.jobs {
		if !j.build.FinishedAt.IsZero() {
			ended = append(ended, j)
		}
	}
	slices.SortFunc(ended, func(x, y *job) int { return y.build.FinishedAt.Compare(x.build.FinishedAt) })
	for _, j := range ended[min(len(ended), buildsKept):] {
		delete(b.jobs, j.build.ID)
		if err := os.RemoveAll(b.path(j.build.ID)); err != nil {
			b.cfg.Log.Warn("files of an old template build are left", "build", j.build.ID, "error", err)
		}
	}
}

func (b *builds) path(id string) string { return filepath.Join(b.cfg.Dir, id) }
