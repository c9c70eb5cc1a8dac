package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/app/detect"
)

// program is how a tool is asked for its version.
type program struct {
	argv []string
	npm  string // the package of npm's registry that has it; "": none
}

var tools = map[string]program{
	"node":   {[]string{"node", "--version"}, "node"},
	"python": {[]string{"python3", "--version"}, ""},
	"go":     {[]string{"go", "version"}, ""},
	"rust":   {[]string{"cargo", "--version"}, ""},
	"bun":    {[]string{"bun", "--version"}, "bun"},
	"deno":   {[]string{"deno", "--version"}, "deno"},
	"pnpm":   {[]string{"pnpm", "--version"}, "pnpm"},
	"yarn":   {[]string{"yarn", "--version"}, "yarn"},
}

func (b *builder) runtimes(ctx context.Context) error {
	if b.found.Plan.Dockerfile != "" {
		return nil // they are the image's
	}
	if err := b.restore(ctx, b.Cache); err != nil {
		return err
	}
	for i, t := range b.found.Tools {
		version, err := b.tool(ctx, t)
		if err != nil {
			return err
		}
		b.say("%s %s", t.Name, version)
		if i == 0 {
			b.found.Plan.Runtime = t.Name + " " + version
			b.setPlan()
		}
	}
	if b.found.Venv {
		return b.venv(ctx)
	}
	return nil
}

// tool has a program there in the version that is wanted, and returns its version.
func (b *builder) tool(ctx context.Context, t detect.Tool) (string, error) {
	p, known := tools[t.Name]
	if !known {
		return "", fmt.Errorf("runtime %q is not known: use one of node, python, go, rust, bun, deno", t.Name)
	}
	have := b.version(ctx, p.argv)
	if have != "" && satisfies(have, t.Version) {
		return have, nil
	}
	want, _, _ := strings.Cut(strings.TrimPrefix(t.Version, ">="), ",")
	if b.version(ctx, []string{"mise", "--version"}) != "" {
		if err := b.mise(ctx, t.Name, want); err == nil {
			return b.version(ctx, p.argv), nil
		} else if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
	}
	if t.Name == "go" && b.Program != "" {
		if err := b.goToolchain(ctx, t.Version); err == nil {
			return b.version(ctx, p.argv), nil
		} else if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
	}
	if p.npm != "" {
		if err := b.npm(ctx, t.Name, want); err == nil {
			return b.version(ctx, p.argv), nil
		} else if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
	}
	return "", unavailable(t, have)
}

func unavailable(t detect.Tool, have string) error {
	wanted := t.Name
	if t.Version != "" {
		wanted = fmt.Sprintf("%s %s, which %s asks for,", t.Name, t.Version, t.From)
	}
	there := "there is no " + t.Name + " in this guest"
	if have != "" {
		there = fmt.Sprintf("there is %s %s", t.Name, have)
	}
	return fmt.Errorf("%s cannot be installed here: %s", wanted, there)
}

var number = regexp.MustCompile(`[0-9]+(?:\.[0-9A-Za-z]+)*`)

// version asks a program for its version; "": it is not there.
func (b *builder) version(ctx context.Context, argv []string) string {
	var out bytes.Buffer
	ended, err := b.Runner.Run(ctx, command.Command{Argv: argv, Dir: b.Home, Env: []map[string]string{b.base(), b.caches()}}, &bounded{&out}, io.Discard)
	if err != nil || !ended.OK() {
		return ""
	}
	return number.FindString(strings.TrimPrefix(out.String(), "go version go"))
}

// bounded keeps as much as a version needs.
type bounded struct{ *bytes.Buffer }

func (w *bounded) Write(p []byte) (int, error) {
	w.Buffer.Write(p[:min(len(p), max(0, 4096-w.Len()))])
	return len(p), nil
}

// satisfies reports whether a version is the one that is wanted: of "20" and "20.11" as
// many parts as it has; of ">=3.10,<3.13" both. A wanted name, as "lts", is any version.
func satisfies(have, want string) bool {
	if first, rest, more := strings.Cut(want, ","); more {
		return satisfies(have, first) && satisfies(have, rest)
	}
	if below, ok := strings.CutPrefix(want, "<"); ok {
		return compare(have, below) < 0
	}
	if least, ok := strings.CutPrefix(want, ">="); ok {
		return compare(have, least) >= 0
	}
	if want == "" || want[0] < '0' || want[0] > '9' {
		return true
	}
	return have == want || strings.HasPrefix(have, strings.TrimSuffix(strings.TrimSuffix(want, ".x"), ".")+".")
}

func compare(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		var x, y int
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			y, _ = strconv.Atoi(bs[i])
		}
		if x != y {
			return x - y
		}
	}
	return 0
}

// mise installs a runtime, in the cache, and puts it into PATH.
func (b *builder) mise(ctx context.Context, name, version string) error {
	if version == "" {
		version = "latest"
	}
	spec := name + "@" + version
	b.say("Installing %s", spec)
	// It runs in the home directory: a repository's own mise.toml may run programs.
	if err := b.quiet(ctx, "mise", "install", "--yes", spec); err != nil {
		return err
	}
	var where bytes.Buffer
	ended, err := b.Runner.Run(ctx, command.Command{Argv: []string{"mise", "where", spec}, Dir: b.Home, Env: []map[string]string{b.base(), b.caches()}}, &bounded{&where}, io.Discard)
	dir := strings.TrimSpace(where.String())
	if err != nil || !ended.OK() || !filepath.IsAbs(dir) {
		return errors.Join(err, fmt.Errorf("mise where %s: %s %q", spec, ended, dir))
	}
	b.made.Path = append([]string{filepath.Join(dir, "bin"), dir}, b.made.Path...)
	return nil
}

// goToolchain installs Go from the proxy of Go's modules, in the cache.
func (b *builder) goToolchain(ctx context.Context, want string) error {
	b.say("Installing go %s", want)
	dir := b.cache("runtimes", "go")
	var where bytes.Buffer
	ended, err := b.Runner.Run(ctx, command.Command{
		Argv: []string{b.Program, InstallGoMode, "-version", want, "-dir", dir}, Dir: b.Home, Env: []map[string]string{b.base(), b.caches()},
	}, &bounded{&where}, b.out)
	goroot := strings.TrimSpace(where.String())
	if err != nil || !ended.OK() || !filepath.IsAbs(goroot) {
		return errors.Join(err, fmt.Errorf("install Go: it %s", ended))
	}
	b.made.Path = append([]string{filepath.Join(goroot, "bin")}, b.made.Path...)
	return nil
}

// npm installs a runtime from npm's registry, which has some.
func (b *builder) npm(ctx context.Context, name, version string) error {
	pkg := tools[name].npm
	if name == "yarn" && compare(version, "2") >= 0 {
		pkg = "@yarnpkg/cli-dist"
	}
	spec := pkg
	if version != "" {
		spec += "@" + version
	}
	b.say("Installing %s", spec)
	dir := b.cache("runtimes", strings.ReplaceAll(spec, "/", "-"))
	if err := b.quiet(ctx, "npm", "install", "--fetch-retries=1", "--prefix", dir, "--", spec); err != nil {
		return err
	}
	b.made.Path = append([]string{filepath.Join(dir, "node_modules", ".bin")}, b.made.Path...)
	return nil
}

// quiet runs a command of our own as the tenant's user, with its output in the log.
func (b *builder) quiet(ctx context.Context, argv ...string) error {
	ended, err := b.Runner.Run(ctx, command.Command{Argv: argv, Dir: b.Home, Env: []map[string]string{b.base(), b.caches()}}, b.out, b.out)
	if err == nil && !ended.OK() {
		err = fmt.Errorf("%s %s", argv[0], ended)
	}
	return err
}

// venv makes the directory of Python's packages: Debian's Python takes none elsewhere.
func (b *builder) venv(ctx context.Context) error {
	dir := filepath.Join(b.made.Dir, ".venv")
	if st, err := os.Lstat(filepath.Join(dir, "pyvenv.cfg")); err != nil || !st.Mode().IsRegular() {
		if err := b.quiet(ctx, "python3", "-m", "venv", dir); err != nil {
			return fmt.Errorf("make .venv: %w", err)
		}
	}
	b.made.Venv = dir
	b.made.Path = append([]string{filepath.Join(dir, "bin")}, b.made.Path...)
	return nil
}
