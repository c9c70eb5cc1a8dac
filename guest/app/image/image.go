// Package image builds an image from an app's Dockerfile, with buildah, and has its file
// system and its settings ready for the app to run. Nothing of it is guestapp's to trust:
// buildah and the Dockerfile's commands are contained, and what they leave is only read.
package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/app/contain"
	"github.com/berth-cloud/berth/guest/proc"
)

// Image is what an app runs in.
type Image struct {
	Root       string   `json:"root"` // its file system
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"`  // name=value
	Dir        string   `json:"dir,omitempty"`  // where its command starts
	User       string   `json:"user,omitempty"` // as whom, as USER has it
}

// Argv is the command that the image itself starts.
func (i Image) Argv() []string { return slices.Concat(i.Entrypoint, i.Cmd) }

// Builder builds images.
type Builder struct {
	Runner  *command.Runner
	Program string // this program, which contains commands
	User    string // whose rights they have
	Dir     string // its own; it is made anew for each image
	Buildah string // the program; "": buildah, in the usual places
}

// Input is an image to be built.
type Input struct {
	Context    string            // directory
	Dockerfile string            // relative to it
	Vars       map[string]string // values for the ARGs of these names
}

// FailedError says how a command of the build ended that failed. What it said is in the
// build's output.
type FailedError struct {
	What  string
	Ended command.Ended
}

func (e *FailedError) Error() string { return e.What + " " + e.Ended.String() }

// ErrNone says that there is no buildah.
var ErrNone = errors.New("images cannot be built here: the template of apps has no buildah. Its operator has to build it anew")

// name is what the image is called while it is built.
const name = "localhost/app"

// unpack copies an image's files: $1 is where to, $2 the image, the rest is buildah.
const unpack = `set -e
root=$1 image=$2; shift 2
container=$("$@" from --pull-never "$image")
files=$("$@" mount "$container")
cp -a -- "$files/." "$root/"`

// Build builds an image. What is said meanwhile goes to out.
func (b *Builder) Build(ctx context.Context, in Input, out io.Writer) (Image, error) {
	text, err := readFile(filepath.Join(in.Context, in.Dockerfile), maxDockerfile)
	if err != nil {
		return Image{}, fmt.Errorf("%s: %w", in.Dockerfile, err)
	}
	u, err := proc.LookUpUser(b.User)
	if err != nil {
		return Image{}, err
	}
	s, err := openStore(b.Dir, int(u.UID), int(u.GID))
	if err != nil {
		return Image{}, fmt.Errorf("room for the image: %w", err)
	}
	made, err := b.in(ctx, s, in, text, out)
	// Layers are of no use to the app, and would be stored with it.
	return made, errors.Join(err, s.close())
}

func (b *Builder) in(ctx context.Context, s *store, in Input, text string, out io.Writer) (Image, error) {
	buildah := append([]string{b.buildah()}, s.options()...)
	argv := append(slices.Clone(buildah), "build", "--isolation", "chroot", "--network", "host", "--layers=false", "--format", "docker",
		"--tag", name, "--file", filepath.Join(in.Context, in.Dockerfile))
	for _, arg := range Args(text) {
		if value, ok := in.Vars[arg]; ok {
			argv = append(argv, "--build-arg", arg+"="+value)
		}
	}
	if err := b.run(ctx, s, "the build of the Dockerfile", in.Context, out, append(argv, in.Context)...); err != nil {
		return Image{}, err
	}
	said := &bounded{most: maxInspect}
	if err := b.run(ctx, s, "the look at the image", in.Context, said, append(slices.Clone(buildah), "inspect", "--type", "image", name)...); err != nil {
		return Image{}, err
	}
	made, err := parse(said.Bytes(), said.over)
	if err != nil {
		return Image{}, err
	}
	made.Root = s.root
	return made, b.run(ctx, s, "the unpacking of the image", in.Context, out, append([]string{"/bin/sh", "-c", unpack, "sh", s.root, name}, buildah...)...)
}

func (b *Builder) buildah() string {
	if b.Buildah != "" {
		return b.Buildah
	}
	return "buildah"
}

// run runs a contained command of a build.
func (b *Builder) run(ctx context.Context, s *store, what, dir string, out io.Writer, argv ...string) error {
	file := filepath.Join(b.Dir, "command.json")
	defer os.Remove(file) // it has values of ARGs
	c, err := contain.Command(b.Program, file, b.User, contain.Spec{
		Argv: argv, Dir: dir, Env: []string{"HOME=" + s.dir, "TMPDIR=" + filepath.Join(s.dir, "tmp"), "XDG_RUNTIME_DIR=" + filepath.Join(s.dir, "run"), "LANG=C.UTF-8"},
	})
	if err != nil {
		return err
	}
	ended, err := b.Runner.Run(ctx, c, out, out)
	switch {
	case err != nil:
		return fmt.Errorf("%s could not be started: %w", what, err)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !ended.OK():
		return &FailedError{what, ended}
	}
	return nil
}

// Command returns the command of an app in an image. file is kept for it; argv takes the
// place of the image's own command if there is any, and vars go over its variables.
func (i Image) Command(program, file, user string, argv []string, vars ...map[string]string) (command.Command, error) {
	if len(argv) == 0 {
		argv = i.Argv()
	}
	env := slices.Clone(i.Env)
	for _, over := range vars {
		for k, v := range over {
			env = slices.DeleteFunc(env, func(kv string) bool { return len(kv) > len(k) && kv[:len(k)] == k && kv[len(k)] == '=' })
			env = append(env, k+"="+v)
		}
	}
	slices.Sort(env)
	return contain.Command(program, file, user, contain.Spec{Argv: argv, Env: env, Dir: i.Dir, User: i.User, Root: i.Root})
}

// bounded keeps as much as may be read of what the tenant's commands write.
type bounded struct {
	bytes.Buffer
	most int
	over bool
}

func (w *bounded) Write(p []byte) (int, error) {
	if w.Len()+len(p) > w.most {
		w.over = true
		return len(p), nil
	}
	return w.Buffer.Write(p)
}

// readFile reads a file of the tenant's, and none that a link leads to.
func readFile(path string, most int64) (string, error) {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	defer root.Close()
	if st, err := root.Stat(filepath.Base(path)); err != nil || !st.Mode().IsRegular() {
		return "", errors.Join(err, errors.New("it is no file"))
	}
	f, err := root.Open(filepath.Base(path))
	if err != nil {
		return "", err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(raw)) > most {
		err = fmt.Errorf("it has more than %d KB", most>>10)
	}
	return string(raw), err
}
