// Package build builds an app in its guest: brings the source, detects what it is, has
// its runtimes there, and runs its install and build commands.
package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/app/applog"
	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/app/detect"
	"github.com/berth-cloud/berth/guest/app/image"
	"github.com/berth-cloud/berth/guest/app/mask"
	"github.com/berth-cloud/berth/guest/app/source"
	"github.com/berth-cloud/berth/guest/appapi"
)

// Config is where and as whom a build works.
type Config struct {
	Runner *command.Runner
	Cloner *source.Cloner
	Limits source.Limits

	WorkDir string         // where the source is put
	Staging string         // an empty directory on WorkDir's disk
	Upload  string         // the file of a source that was handed over
	Cache   string         // of the tenant's commands, kept between builds
	Home    string         // of the tenant's commands
	Temp    string         // is emptied of what they left; "": nothing is
	Image   *image.Builder // of apps with a Dockerfile; nil: there can be none
	// Program is guestapp, which installs Go; "": it is not installed so.
	Program string
	// LastCache is the file with the caches of an earlier build, which need not be there.
	LastCache string
}

// Made is what a build made, beside its status.
type Made struct {
	Dir  string   `json:"dir"`  // where its commands run
	Path []string `json:"path"` // directories before the usual ones of PATH
	Venv string   `json:"venv,omitempty"`
	// Image is what the app runs in; nil: the guest.
	Image *image.Image `json:"image,omitempty"`

	Caches     []string `json:"caches,omitempty"` // directories that are kept for the next build
	CacheBytes int64    `json:"cache_bytes,omitempty"`
}

// builder is one build.
type builder struct {
	Config
	in     appapi.Build
	log    *applog.Log
	out    *command.Output
	secret []string
	update func(func(*appapi.BuildStatus))
	found  detect.Result
	made   Made
}

// ErrStopped is the cause of a context that ends because the build is to be stopped.
var ErrStopped = errors.New("cancelled")

// lastLines is how many lines of output a failure is told with.
const lastLines = 20

// Run builds, and tells how far it is by update. Its error is for the tenant: without
// secrets, and with the last lines of the command that failed.
func Run(ctx context.Context, cfg Config, in appapi.Build, log *applog.Log, update func(func(*appapi.BuildStatus))) (Made, error) {
	b := &builder{Config: cfg, in: in, log: log, update: update, secret: Secrets(in)}
	b.out = command.NewOutput(log, b.secret)
	budget := time.Duration(in.TimeoutSeconds) * time.Second
	if budget > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, budget, fmt.Errorf("the build exceeded its budget of %s", short(budget)))
		defer cancel()
	}
	err := b.phases(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("%w%s", cause, b.tail())
	}
	if err != nil {
		text := mask.Text(err.Error(), b.secret)
		first, _, _ := strings.Cut(text, "\n")
		b.say("Failed: %s", first)
		err = errors.New(text)
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if e := b.Runner.EndAll(ending); e != nil && err == nil {
		err = e
	}
	b.clean()
	b.forgetCache()
	if err == nil && b.made.Image == nil {
		if b.keep(); b.made.CacheBytes > 0 {
			b.say("Caches of %d MB are for the next build", (b.made.CacheBytes+1<<20-1)>>20)
		}
	}
	_ = b.out.Close()
	return b.made, err
}

// short writes 12m0s as 12m.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	return s
}

// Secrets are the values of a build that no log shows.
func Secrets(in appapi.Build) []string {
	var out []string
	for _, name := range in.Secrets {
		out = append(out, in.Env[name])
	}
	if in.Git != nil {
		out = append(out, in.Git.Token)
	}
	return out
}

func (b *builder) phases(ctx context.Context) error {
	for _, p := range []struct {
		name string
		do   func(context.Context) error
	}{
		{appapi.PhaseSource, b.source}, {appapi.PhaseDetect, b.detect}, {appapi.PhaseRuntimes, b.runtimes},
		{appapi.PhaseInstall, b.install}, {appapi.PhaseBuild, b.build},
	} {
		b.update(func(st *appapi.BuildStatus) { st.Phase = p.name })
		began := time.Now()
		err := p.do(ctx)
		if err != nil {
			return err
		}
		b.update(func(st *appapi.BuildStatus) {
			st.Phases = append(st.Phases, appapi.Phase{Name: p.name, DurationMS: time.Since(began).Milliseconds()})
		})
	}
	return nil
}

// say writes a line of our own to the log.
func (b *builder) say(format string, args ...any) {
	fmt.Fprintf(b.out, "==> "+format+"\n", args...) // the log takes everything
}

func (b *builder) source(ctx context.Context) error {
	if err := b.Runner.EndAll(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(b.Staging); err != nil {
		return err
	}
	if b.in.Upload {
		b.say("Unpacking the source")
		f, err := os.Open(b.Upload)
		if err != nil {
			return errors.New("no source was uploaded")
		}
		defer f.Close()
		if err := source.Unpack(ctx, f, b.Staging, b.Limits); err != nil {
			return err
		}
		_ = os.Remove(b.Upload)
	} else {
		g := *b.in.Git
		b.say("Cloning %s%s", g.URL, ofRef(g.Ref))
		commit, err := b.Cloner.Clone(ctx, g, b.Staging, b.out)
		if err != nil {
			return err
		}
		b.update(func(st *appapi.BuildStatus) {
			st.GitCommit, st.GitMessage, st.GitAuthor = commit.ID, mask.Text(commit.Message, b.secret), commit.Author
		})
		subject, _, _ := strings.Cut(commit.Message, "\n")
		b.say("Commit %.12s by %s: %s", commit.ID, commit.Author, subject)
	}
	if err := source.Give(b.Staging, b.Runner.User, b.Limits); err != nil {
		return err
	}
	return source.Replace(b.Staging, b.WorkDir)
}

func ofRef(ref string) string {
	if ref == "" {
		return ""
	}
	return " at " + ref
}

func (b *builder) detect(context.Context) error {
	root, err := os.OpenRoot(b.WorkDir)
	if err != nil {
		return err
	}
	defer root.Close()
	b.found, err = detect.Detect(root.FS(), detect.Settings{
		RootDirectory: b.in.RootDirectory, Framework: b.in.Framework, Runtime: b.in.Runtime,
		InstallCommand: b.in.InstallCommand, BuildCommand: b.in.BuildCommand, StartCommand: b.in.StartCommand, NoImage: b.in.NoImage,
	})
	if err != nil {
		return err
	}
	b.made.Dir = filepath.Join(b.WorkDir, b.in.RootDirectory)
	b.made.Path = []string{filepath.Join(b.made.Dir, "node_modules", ".bin")}
	if b.made.Dir != b.WorkDir {
		b.made.Path = append(b.made.Path, filepath.Join(b.WorkDir, "node_modules", ".bin"))
	}
	b.setPlan()
	p := b.found.Plan
	if !b.in.NoImage { // of a function nothing is detected: a runner starts it
		b.say("Detected %s", p.Framework)
	}
	for _, note := range b.found.Notes {
		b.say("Note: %s", note)
	}
	return nil
}

func (b *builder) setPlan() {
	b.update(func(st *appapi.BuildStatus) { st.Plan = b.found.Plan })
}

func (b *builder) install(ctx context.Context) error {
	return b.command(ctx, "Install", b.found.Plan.InstallCommand, b.in.InstallCommand == "")
}

func (b *builder) build(ctx context.Context) error {
	if b.found.Plan.Dockerfile != "" {
		return b.image(ctx)
	}
	if err := b.restore(ctx, b.inProject()...); err != nil {
		return err
	}
	b.forgetCache()
	if err := b.command(ctx, "Build", b.found.Plan.BuildCommand, false); err != nil {
		return err
	}
	if b.found.Plan.StaticDir == "" {
		return nil
	}
	return b.site()
}

// command runs one of the tenant's commands.
func (b *builder) command(ctx context.Context, what, line string, detected bool) error {
	if line == "" {
		return nil
	}
	b.say("%s: %s", what, line)
	env := []map[string]string{{"CI": "1"}, b.caches(), b.in.Env, ports(b.in.Port)}
	if detected {
		// A build needs what package.json calls dev dependencies, whatever NODE_ENV is.
		env = append(env, map[string]string{"npm_config_include": "dev"})
	}
	ended, err := b.Runner.Run(ctx, command.Command{Argv: command.Shell(line), Dir: b.made.Dir, Env: append([]map[string]string{b.base()}, env...)}, b.out, b.out)
	switch {
	case err != nil:
		return fmt.Errorf("%s could not be started: %w", strings.ToLower(what)+" command", err)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !ended.OK():
		return fmt.Errorf("the %s command %s%s", strings.ToLower(what), ended, b.tail())
	}
	return nil
}

// tail is the end of the log, as the end of an error.
func (b *builder) tail() string {
	_ = b.out.Flush() // the log takes everything
	lines := b.log.LastLines(lastLines)
	if len(lines) == 0 {
		return ""
	}
	return "\n" + strings.Join(lines, "\n")
}

// site finds where the build has put a site.
func (b *builder) site() error {
	root, err := os.OpenRoot(b.made.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	isSite := func(dir string) bool {
		return slices.ContainsFunc([]string{"index.html", "200.html"}, func(page string) bool {
			st, err := root.Stat(filepath.Join(dir, page))
			return err == nil && st.Mode().IsRegular()
		})
	}
	dirs := append([]string{b.found.Plan.StaticDir}, b.found.StaticDirs...)
	for _, dir := range dirs {
		for _, candidate := range append([]string{dir}, below(root, dir)...) {
			if isSite(candidate) {
				b.found.Plan.StaticDir = candidate
				b.setPlan()
				b.say("The site is in %s", candidate)
				return nil
			}
		}
	}
	return fmt.Errorf("the build made no site: there is no index.html in %s. Set start_command if the app is a server", strings.Join(dirs[1:], ", "))
}

// below lists where Angular puts a site: dist/<name>/browser, dist/<name>.
func below(root *os.Root, dir string) []string {
	if dir != "dist" {
		return nil
	}
	d, err := root.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(100)
	out := []string{filepath.Join(dir, "browser")}
	for _, name := range names {
		out = append(out, filepath.Join(dir, name, "browser"), filepath.Join(dir, name))
	}
	return out
}

// clean deletes what the tenant's commands have left for everybody.
func (b *builder) clean() {
	if b.Temp == "" {
		return
	}
	entries, err := os.ReadDir(b.Temp)
	if err != nil {
		return
	}
	uid, ok := b.Runner.UID()
	for _, e := range entries {
		path := filepath.Join(b.Temp, e.Name())
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); ok && err == nil && int(st.Uid) == uid {
			_ = os.RemoveAll(path) // it is only room
		}
	}
}
