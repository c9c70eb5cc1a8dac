package build

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// Reasons for the end of a build.
var (
	errBuildDeleted = errors.New("the build was deleted")
	errInterrupted  = errors.New("the host's daemon ended while it was built")
)

// queueConfig is what a queue works with.
type queueConfig struct {
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
	// Room refuses what would fill the disk.
	Room func(bytes int64) error
	// Changed is told that templates are not what they were.
	Changed func()
	// Delete removes a template that no box uses.
	Delete func(ctx context.Context, name string) error
	Log    *slog.Logger
}

// Queue is the template builds that the control plane asks for. Workspaces take
// turns. A build that the end of the daemon cuts off has failed.
type Queue struct {
	cfg queueConfig

	mu       sync.Mutex
	jobs     map[string]*job
	queue    []*job
	underWay map[string]int    // by workspace
	served   map[string]uint64 // the turn that each workspace had last, while it has builds here
	turn     uint64
	serving  bool
	wake     chan struct{}
}

// job is one build. Its build is guarded by Queue.mu.
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

// newQueue reads what an earlier daemon left.
func newQueue(cfg queueConfig) (*Queue, error) {
	cfg.Parallel = max(cfg.Parallel, 2)
	q := &Queue{
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
		j, err := q.load(e.Name())
		if err != nil {
			cfg.Log.Warn("record of a template build cannot be read and is removed", "build", e.Name(), "error", err)
			if err := os.RemoveAll(q.path(e.Name())); err != nil {
				return nil, fmt.Errorf("template builds: %w", err)
			}
			continue
		}
		q.jobs[j.build.ID] = j
	}
	return q, nil
}

// Run makes the builds until ctx ends, which fails those under way.
func (q *Queue) Run(ctx context.Context) {
	q.mu.Lock()
	q.serving = true
	q.mu.Unlock()
	var underWay sync.WaitGroup
	defer underWay.Wait()
	defer q.stop()
	for ctx.Err() == nil {
		j, jctx, end := q.next(ctx)
		if j != nil {
			underWay.Go(func() {
				q.make(jctx, j)
				end()
				q.releaseTurn(j)
			})
			continue
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
	}
}

// releaseTurn gives a build's turn to the next.
func (q *Queue) releaseTurn(j *job) {
	q.mu.Lock()
	if q.underWay[j.workspace]--; q.underWay[j.workspace] == 0 {
		delete(q.underWay, j.workspace)
		if !slices.ContainsFunc(q.queue, func(o *job) bool { return o.workspace == j.workspace }) {
			delete(q.served, j.workspace)
		}
	}
	q.mu.Unlock()
	q.signal()
}

// signal has Run look for a build to start.
func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// stop fails what waits.
func (q *Queue) stop() {
	q.mu.Lock()
	q.serving = false
	waiting := q.queue
	q.queue = nil
	q.mu.Unlock()
	for _, j := range waiting {
		q.finish(j, image.Template{}, errInterrupted)
	}
}

// pick says which build is next, -1 if none is: of the workspaces with the fewest
// builds under way the one that has had no turn for longest.
func (q *Queue) pick() int {
	total := 0
	for _, n := range q.underWay {
		total += n
	}
	best := -1
	if total >= q.cfg.Parallel {
		return best
	}
	for i, j := range q.queue {
		n := q.underWay[j.workspace]
		if n >= q.cfg.Parallel-1 {
			continue
		}
		if best >= 0 {
			o := q.queue[best].workspace
			if n > q.underWay[o] || n == q.underWay[o] && q.served[j.workspace] >= q.served[o] {
				continue
			}
		}
		best = i
	}
	return best
}

// next takes the build whose turn it is, with the context that ends it.
func (q *Queue) next(ctx context.Context) (j *job, jctx context.Context, end func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.pick()
	if i < 0 {
		return nil, nil, nil
	}
	j = q.queue[i]
	q.queue = slices.Delete(q.queue, i, i+1)
	q.turn++
	q.underWay[j.workspace]++
	q.served[j.workspace] = q.turn
	ctx, j.cancel = context.WithCancelCause(ctx)
	jctx, stop := context.WithTimeoutCause(ctx, buildTime, fmt.Errorf("not done within %s", buildTime))
	cancel := j.cancel
	return j, jctx, func() {
		stop()
		cancel(nil)
	}
}

// make makes one build.
func (q *Queue) make(ctx context.Context, j *job) {
	tpl, err := q.ensure(ctx, j)
	if err != nil && ctx.Err() != nil {
		if err = context.Cause(ctx); errors.Is(err, context.Canceled) {
			err = errInterrupted
		}
	}
	q.finish(j, tpl, err)
}

func (q *Queue) ensure(ctx context.Context, j *job) (image.Template, error) {
	q.mu.Lock()
	j.build.Status = hostapi.BuildBuilding
	err := q.save(j)
	q.mu.Unlock()
	if err != nil {
		return image.Template{}, err
	}
	j.log.say("==> build " + j.build.ID)
	if j.fetch != "" {
		return q.cfg.Fetch(ctx, j.fetch, j.build.Template, j.build.ID)
	}
	return q.cfg.Ensure(ctx, j.def, image.Options{Workspace: j.workspace, By: j.build.ID, Progress: j.log.progress(), Room: q.cfg.Room, Admit: q.cfg.Admit})
}

// finish writes down how a build ended.
func (q *Queue) finish(j *job, tpl image.Template, err error) {
	q.mu.Lock()
	j.cancel = nil
	j.build.FinishedAt = time.Now().UTC()
	if err != nil {
		// Its reader knows the template by another name than this host does.
		told := err
		if failed := (*image.BuildError)(nil); errors.As(err, &failed) {
			told = failed.Err
		}
		reason := strings.TrimSpace(told.Error())
		j.build.Status, j.build.Error = hostapi.BuildFailed, oneLine(reason)
		j.build.Interrupted = errors.Is(err, errInterrupted) || errors.Is(err, errBuildDeleted)
		j.build.Refused = errors.Is(err, hosterr.ErrNoMemory) || errors.Is(err, hosterr.ErrNoDisk) || errors.Is(err, hosterr.ErrNoSlot)
		j.build.Missing = j.fetch != "" && errors.Is(err, hosterr.ErrNoSnapshot)
		j.log.last("==> failed: " + reason)
	} else {
		j.build.Status, j.build.BuildID, j.build.From = hostapi.BuildSucceeded, tpl.BuildID, tpl.Definition.From
		j.build.CPU, j.build.MemoryMB, j.build.DiskMB, j.build.SizeBytes = tpl.CPU, tpl.MemoryMB, tpl.DiskMB, tpl.SizeBytes
		j.log.last("==> ready: build " + tpl.BuildID)
	}
	if !errors.Is(err, errBuildDeleted) {
		if saveErr := q.save(j); saveErr != nil {
			q.cfg.Log.Error("end of a template build is not on disk", "build", j.build.ID, "error", saveErr)
		}
	}
	out := j.build
	q.mu.Unlock()
	j.log.close()
	close(j.done)
	q.cfg.Log.Info("template build ended", "build", out.ID, "template", out.Template, "status", out.Status, "error", out.Error)
	q.cfg.Changed()
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

func (q *Queue) path(id string) string { return filepath.Join(q.cfg.Dir, id) }
