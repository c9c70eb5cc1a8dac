package build

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/server"
)

var _ server.Builds = (*Queue)(nil)

// yard is builds whose templates a test makes.
type yard struct {
	*Queue
	t      *testing.T
	dir    string
	begun  chan image.Definition
	answer chan error
	stop   func()
}

func newYard(t *testing.T, dir string) *yard {
	t.Helper()
	y := &yard{t: t, dir: dir, begun: make(chan image.Definition), answer: make(chan error)}
	var err error
	y.Queue, err = newQueue(queueConfig{
		Dir: dir, MemoryMB: 4096, Changed: func() {}, Log: slog.New(slog.DiscardHandler),
		Delete: func(context.Context, string) error { return nil },
		Have:   func(digest string) bool { return digest != "damaged" },
		Source: func(name, recipe string) (image.Definition, bool) {
			return image.Definition{Name: name, From: "base"}, recipe == "r1"
		},
		Fetch: func(_ context.Context, digest, template, _ string) (image.Template, error) {
			if digest == "gone" {
				return image.Template{}, hosterr.ErrNoSnapshot
			}
			return image.Template{Name: template, BuildID: digest}, nil
		},
		Ensure: func(ctx context.Context, d image.Definition, o image.Options) (image.Template, error) {
			if (o.Workspace == "") != (d.Name == "python") {
				t.Error("a tenant's build is made as the operator's, or the other way round")
			}
			o.Progress(image.Progress{Step: image.StepRun, Detail: "make all", Percent: 78})
			o.Progress(image.Progress{Step: image.StepRun, Detail: "all made", Output: true})
			select {
			case y.begun <- d:
			case <-ctx.Done():
				return image.Template{}, ctx.Err()
			}
			select {
			case err := <-y.answer:
				return image.Template{BuildID: "b-" + d.Name, CPU: 2, MemoryMB: 512, DiskMB: 1024, SizeBytes: 9, Definition: d}, err
			case <-ctx.Done():
				return image.Template{}, ctx.Err()
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); y.Run(ctx) }()
	y.stop = func() { cancel(); <-ended }
	t.Cleanup(y.stop)
	y.await("it serves", func() bool { y.mu.Lock(); defer y.mu.Unlock(); return y.serving })
	return y
}

func (y *yard) await(what string, ok func() bool) {
	y.t.Helper()
	end := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			y.t.Fatalf("waited in vain: %s", what)
		}
	}
}

func (y *yard) put(id string, spec hostapi.BuildSpec) hostapi.Build {
	y.t.Helper()
	b, err := y.PutBuild(y.t.Context(), id, spec)
	if err != nil {
		y.t.Fatal(err)
	}
	return b
}

func (y *yard) awaitEnd(id string) hostapi.Build {
	y.t.Helper()
	var b hostapi.Build
	y.await("the end of "+id, func() bool { b, _ = y.Build(id); return !b.FinishedAt.IsZero() })
	return b
}

func (y *yard) log(id string) string {
	y.t.Helper()
	var all []string
	err := y.BuildLogs(y.t.Context(), id, true, func(l hostapi.LogLine) error { all = append(all, l.Line); return nil })
	if err != nil {
		y.t.Fatal(err)
	}
	return strings.Join(all, "\n")
}

var web = hostapi.BuildSpec{Template: "t-0123456789.web", WorkspaceID: "ws", From: "base", Run: []string{"make all"}}

func TestBuildsAreMadeOneAfterTheOther(t *testing.T) {
	y := newYard(t, t.TempDir())
	if b := y.put("one", web); b.Status != hostapi.BuildQueued {
		t.Errorf("%+v", b)
	}
	if d := <-y.begun; d.Name != web.Template || d.From != "base" || len(d.Run) != 1 {
		t.Errorf("%+v", d)
	}
	other := web
	other.Template = "t-0123456789.other"
	y.put("two", other)
	if again := y.put("one", web); again.Status != hostapi.BuildBuilding {
		t.Errorf("a second put: %+v", again)
	}
	if two, err := y.Build("two"); err != nil || two.Status != hostapi.BuildQueued {
		t.Errorf("%+v, %v", two, err)
	}
	if err := y.DeleteTemplate(t.Context(), "base"); !errors.Is(err, hosterr.ErrInUse) {
		t.Errorf("a template that a build is made from is removed: %v", err)
	}
	y.answer <- nil
	one := y.awaitEnd("one")
	if one.Status != hostapi.BuildSucceeded || one.BuildID != "b-"+web.Template || one.MemoryMB != 512 || one.Error != "" {
		t.Errorf("%+v", one)
	}
	<-y.begun
	y.answer <- &image.BuildError{Template: other.Template, Err: errors.New("run[0] \"make all\": exit code 2: cc: not found\nmake: *** [all] Error 127")}
	two := y.awaitEnd("two")
	if two.Status != hostapi.BuildFailed || strings.ContainsAny(two.Error, "\n") || !strings.HasPrefix(two.Error, `run[0] "make all"`) ||
		!strings.Contains(two.Error, "Error 127") || two.Interrupted {
		t.Errorf("%+v", two)
	}
	for _, want := range []string{"==> run: make all (78 %, 0s)", "\nall made\n", "cc: not found"} {
		if log := y.log("two"); !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	// The name is one between hosts and the control plane; the reader knows another.
	if log := y.log("two"); strings.Contains(log, other.Template) {
		t.Errorf("the log names %s:\n%s", other.Template, log)
	}
	if err := y.DeleteTemplate(t.Context(), "base"); err != nil {
		t.Error(err)
	}
}

func TestBuildsAreCutOffByTheDaemonsEnd(t *testing.T) {
	dir := t.TempDir()
	y := newYard(t, dir)
	y.put("runs", web)
	<-y.begun
	y.put("waits", web)
	y.stop()
	if _, err := y.PutBuild(t.Context(), "late", web); !errors.Is(err, hosterr.ErrDraining) {
		t.Errorf("got %v", err)
	}
	// One that a daemon had no time to write down.
	y.jobs["runs"].build.FinishedAt, y.jobs["runs"].build.Status = time.Time{}, hostapi.BuildBuilding
	if err := y.save(y.jobs["runs"]); err != nil {
		t.Fatal(err)
	}
	y = newYard(t, dir)
	for _, id := range []string{"runs", "waits"} {
		b, err := y.Build(id)
		if err != nil || b.Status != hostapi.BuildFailed || !b.Interrupted || b.Error != errInterrupted.Error() || b.FinishedAt.IsZero() {
			t.Errorf("%s: %+v, %v", id, b, err)
		}
	}
	t.Run("and begun anew by the same id", func(t *testing.T) {
		if b := y.put("runs", web); b.Status != hostapi.BuildQueued || b.Interrupted {
			t.Errorf("%+v", b)
		}
		<-y.begun
		y.answer <- nil
		if b := y.awaitEnd("runs"); b.Status != hostapi.BuildSucceeded {
			t.Errorf("%+v", b)
		}
	})
	t.Run("but not one that failed by itself", func(t *testing.T) {
		y.put("bad", web)
		<-y.begun
		y.answer <- errors.New("no")
		y.awaitEnd("bad")
		if b := y.put("bad", web); b.Status != hostapi.BuildFailed || b.Error != "no" {
			t.Errorf("%+v", b)
		}
	})
}

func TestBuildsAreDeleted(t *testing.T) {
	y := newYard(t, t.TempDir())
	y.put("runs", web)
	<-y.begun
	y.put("waits", web)
	for _, id := range []string{"waits", "runs", "runs", "never-was"} {
		if err := y.DeleteBuild(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		var refusal *hostapi.Error
		if _, err := y.Build(id); !errors.As(err, &refusal) || refusal.Code != hostapi.CodeNotFound {
			t.Errorf("%s: %v", id, err)
		}
	}
	again, err := newQueue(y.cfg)
	if err != nil || len(again.jobs) != 0 {
		t.Errorf("left: %v, %v", again.jobs, err)
	}
}

// One whose end nobody waited for has not failed by itself.
func TestABuildThatWasEndedIsBegunAnew(t *testing.T) {
	y := newYard(t, t.TempDir())
	release := make(chan struct{})
	y.cfg.Ensure = func(ctx context.Context, d image.Definition, _ image.Options) (image.Template, error) {
		y.begun <- d
		<-ctx.Done()
		<-release
		return image.Template{}, ctx.Err()
	}
	y.put("one", web)
	<-y.begun
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := y.DeleteBuild(gone, "one"); !errors.Is(err, context.Canceled) {
		t.Errorf("its end was waited for: %v", err)
	}
	close(release)
	if b := y.awaitEnd("one"); b.Status != hostapi.BuildFailed || !b.Interrupted {
		t.Errorf("%+v", b)
	}
	if b := y.put("one", web); b.Status != hostapi.BuildQueued {
		t.Fatalf("%+v", b)
	}
	<-y.begun
}

func TestBuildLogIsFollowed(t *testing.T) {
	y := newYard(t, t.TempDir())
	y.put("one", web)
	<-y.begun
	lines, ended := make(chan string, 100), make(chan error, 1)
	go func() {
		ended <- y.BuildLogs(t.Context(), "one", true, func(l hostapi.LogLine) error { lines <- l.Line; return nil })
	}()
	for _, want := range []string{"==> build one", "==> run: make all", "all made"} {
		if got := <-lines; !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	y.answer <- nil
	if got := <-lines; !strings.HasPrefix(got, "==> ready") {
		t.Errorf("got %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	y.put("two", web)
	<-y.begun
	if err := y.BuildLogs(ctx, "two", true, func(hostapi.LogLine) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("one who went away: %v", err)
	}
}

func TestBuildLogIsBounded(t *testing.T) {
	l, err := createBuildLog(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("x", 64<<10)
	for range 1000 {
		l.say(line)
	}
	l.last("==> failed: the reason")
	l.close()
	size, last := 0, ""
	if err := l.read(t.Context(), true, func(s string) error { size += len(s); last = s; return nil }); err != nil {
		t.Fatal(err)
	}
	if size > maxBuildLog+maxBuildLine || last != "==> failed: the reason" {
		t.Errorf("%d bytes, the last line is %.40q", size, last)
	}
}

func TestBuildsThatAreRefused(t *testing.T) {
	y := newYard(t, t.TempDir())
	for name, c := range map[string]struct {
		id   string
		edit func(*hostapi.BuildSpec)
		is   error
	}{
		"no template":           {"a", func(s *hostapi.BuildSpec) { s.Template = "" }, hosterr.ErrInvalid},
		"nothing to begin with": {"a", func(s *hostapi.BuildSpec) { s.From = "" }, hosterr.ErrInvalid},
		"an image not said so":  {"a", func(s *hostapi.BuildSpec) { s.From = "alpine:3" }, hosterr.ErrInvalid},
		"a template as image":   {"a", func(s *hostapi.BuildSpec) { s.FromOCI = true }, hosterr.ErrInvalid},
		"an empty step":         {"a", func(s *hostapi.BuildSpec) { s.Run = []string{" "} }, hosterr.ErrInvalid},
		"much memory":           {"a", func(s *hostapi.BuildSpec) { s.MemoryMB = 8192 }, hosterr.ErrNoMemory},
		"negative sizes":        {"a", func(s *hostapi.BuildSpec) { s.CPU = -1 }, hosterr.ErrInvalid},
		"a relative file":       {"a", func(s *hostapi.BuildSpec) { s.Files = map[string]string{"x": ""} }, hosterr.ErrInvalid},
	} {
		spec := web
		c.edit(&spec)
		if _, err := y.PutBuild(t.Context(), c.id, spec); !errors.Is(err, c.is) {
			t.Errorf("%s: %v", name, err)
		}
	}
	y.put("first", web)
	<-y.begun
	for i := range maxQueued {
		y.put(fmt.Sprint("q", i), web)
	}
	if _, err := y.PutBuild(t.Context(), "more", web); !errors.Is(err, hosterr.ErrBusy) {
		t.Errorf("got %v", err)
	}
}

// One workspace's builds do not keep another's waiting, however many they are.
func TestWorkspacesTakeTurns(t *testing.T) {
	y := newYard(t, t.TempDir())
	of := func(workspace, name string) hostapi.BuildSpec {
		spec := web
		spec.WorkspaceID, spec.Template = workspace, "t-0123456789."+name
		return spec
	}
	begun := func() string { return strings.TrimPrefix((<-y.begun).Name, "t-0123456789.") }
	for _, name := range []string{"a1", "a2", "a3"} {
		y.put(name, of("a", name))
	}
	if got := begun(); got != "a1" {
		t.Fatalf("first: %s", got)
	}
	// Of two places the one workspace has one.
	y.put("b1", of("b", "b1"))
	if got := begun(); got != "b1" {
		t.Fatalf("second: %s", got)
	}
	y.put("c1", of("c", "c1"))
	y.answer <- nil // whichever of the two that are made it is, c has waited without a turn
	if got := begun(); got != "c1" {
		t.Errorf("third: %s", got)
	}
	for range 2 {
		y.answer <- nil
	}
	for _, want := range []string{"a2", "a3"} {
		if got := begun(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		y.answer <- nil
	}
}

// A host that has no room says so, and may be asked again.
func TestABuildThatFindsNoRoom(t *testing.T) {
	y := newYard(t, t.TempDir())
	y.put("one", web)
	<-y.begun
	y.answer <- fmt.Errorf("run: %w", hosterr.ErrNoMemory)
	if b := y.awaitEnd("one"); b.Status != hostapi.BuildFailed || !b.Refused || b.Interrupted {
		t.Errorf("%+v", b)
	}
	y.put("one", web)
	<-y.begun
	y.answer <- nil
	if b := y.awaitEnd("one"); b.Status != hostapi.BuildSucceeded || b.Refused {
		t.Errorf("%+v", b)
	}
}

func TestTheOperatorsOwnBuilds(t *testing.T) {
	y := newYard(t, t.TempDir())
	if _, err := y.PutBuild(t.Context(), "x", hostapi.BuildSpec{Template: "python", Source: "other"}); !errors.Is(err, hosterr.ErrTemplate) {
		t.Errorf("a recipe that this host has not: %v", err)
	}
	y.put("x", hostapi.BuildSpec{Template: "python", Source: "r1"})
	if d := <-y.begun; d.Name != "python" || d.From != "base" {
		t.Errorf("%+v", d)
	}
	y.answer <- nil
	y.awaitEnd("x")
	// What another host has built is fetched, and tried again if that failed.
	y.put("y", hostapi.BuildSpec{Template: "python", Fetch: "gone"})
	if b := y.awaitEnd("y"); b.Status != hostapi.BuildFailed || !b.Missing {
		t.Errorf("%+v", b)
	}
	y.put("y", hostapi.BuildSpec{Template: "python", Fetch: "digest"})
	if b := y.awaitEnd("y"); b.Missing || b.Status != hostapi.BuildSucceeded || b.BuildID != "digest" || b.Template != "python" {
		t.Errorf("%+v", b)
	}
	// So is what was damaged since.
	y.put("z", hostapi.BuildSpec{Template: "python", Fetch: "damaged"})
	y.awaitEnd("z")
	if b := y.put("z", hostapi.BuildSpec{Template: "python", Fetch: "damaged"}); b.Status != hostapi.BuildQueued {
		t.Errorf("%+v", b)
	}
	y.awaitEnd("z")
}
