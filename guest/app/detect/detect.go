// Package detect finds out from an app's source how it is built and started. It only
// reads: what it is given is a file system of which no symbolic link leads out (as that
// of an os.Root).
package detect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"unicode/utf16"

	"github.com/berth-cloud/berth/guest/appapi"
)

// Settings are the app's own: what is not empty is used instead of what is detected.
type Settings struct {
	RootDirectory  string // relative to the repository
	Framework      string
	Runtime        string // "node 20", "python@3.12", "go"
	InstallCommand string
	BuildCommand   string
	StartCommand   string
	// NoImage has a Dockerfile passed over.
	NoImage bool
}

// Result is what was found.
type Result struct {
	Plan  appapi.Plan
	Tools []Tool // which programs its commands need, the main one first
	Venv  bool   // Python's packages go into .venv, which is to be made first
	// StaticDirs are where a build may put a site that Plan.StaticDir does not name
	// for certain, the likeliest first.
	StaticDirs []string
	// Notes are what else the tenant should hear; mostly nothing.
	Notes []string
}

// Tool is a program that commands need.
type Tool struct {
	Name    string // "node", "python", "go", "rust", "bun", "deno", "pnpm", "yarn"
	Version string // that the repository asks for: "20", "3.11", "lts", ">=1.22", ">=3.10,<3.13"; "": any
	From    string // the file that asks for the version
}

// ErrUnknown is wrapped by errors that say why no plan could be made, in words for the
// tenant.
var ErrUnknown = errors.New("cannot tell how this app is built")

// source is the app's directory.
type source struct {
	fs.FS                 // of the app
	repo  fs.FS           // of the whole repository
	dir   string          // of the app in it; "."
	pins  map[string]Tool // what the repository asks for, by name
	set   Settings
}

// detectors are asked in turn; the first that knows the source is believed.
var detectors = []struct {
	family string
	find   func(*source) (Result, bool, error)
}{
	{dockerfile, image}, {"go", golang}, {"rust", rust}, {"python", python}, {"deno", deno}, {"node", node}, {"static", static},
}

// Detect makes the plan of an app in a repository.
func Detect(repo fs.FS, set Settings) (Result, error) {
	s := &source{repo: repo, dir: path.Clean(strings.Trim(set.RootDirectory, "/")), set: set}
	if set.RootDirectory == "" {
		s.dir = "."
	}
	if !fs.ValidPath(s.dir) {
		return Result{}, fmt.Errorf("%w: root_directory %q is not a relative path without \"..\"", ErrUnknown, set.RootDirectory)
	}
	if st, err := fs.Stat(repo, s.dir); err != nil || !st.IsDir() {
		return Result{}, fmt.Errorf("%w: root_directory %q is not a directory of the repository", ErrUnknown, set.RootDirectory)
	}
	sub, err := fs.Sub(repo, s.dir)
	if err != nil {
		return Result{}, fmt.Errorf("root_directory: %w", err)
	}
	s.FS = sub
	s.pins = pins(repo)
	r, err := s.detect()
	if err != nil {
		return r, err
	}
	if s.passedOver() {
		r.Notes = append(r.Notes, passedOver)
	}
	if r, err = s.override(r); err != nil {
		return r, err
	}
	return r, s.usePins(&r)
}

func (s *source) detect() (Result, error) {
	want := families[s.set.Framework]
	for _, d := range detectors {
		if want != "" && d.family != want {
			continue
		}
		r, ok, err := d.find(s)
		if err != nil || ok {
			return r, err
		}
	}
	switch {
	case want != "":
		return Result{}, fmt.Errorf("%w: framework is set to %s, but there is no %s", ErrUnknown, s.set.Framework, marks[want])
	case s.set.StartCommand != "" || s.procfile() != "":
		return Result{Plan: appapi.Plan{Framework: "other"}}, nil
	case s.passedOver():
		return Result{}, fmt.Errorf("%w: %s, and there is nothing else that is known: clear them, or set start_command", ErrUnknown, passedOver)
	}
	return Result{}, fmt.Errorf("%w: there is no package.json, requirements.txt, pyproject.toml, Pipfile, go.mod, Cargo.toml, deno.json, Dockerfile, Procfile or index.html in %s: "+
		"set root_directory if the app is in another directory, or start_command", ErrUnknown, s.where())
}

func (s *source) where() string {
	if s.dir == "." {
		return "the repository's root"
	}
	return s.dir
}

// override puts the app's settings and its Procfile over what was detected.
func (s *source) override(r Result) (Result, error) {
	p := &r.Plan
	if p.Dockerfile != "" { // the image says all else
		p.StartCommand = s.set.StartCommand
		return r, nil
	}
	if web := s.procfile(); web != "" {
		p.StartCommand = web
	}
	for _, o := range []struct {
		to  *string
		set string
	}{{&p.Framework, s.set.Framework}, {&p.InstallCommand, s.set.InstallCommand}, {&p.BuildCommand, s.set.BuildCommand}, {&p.StartCommand, s.set.StartCommand}} {
		if o.set != "" {
			*o.to = o.set
		}
	}
	if p.StartCommand != "" {
		p.StaticDir, p.SPA, r.StaticDirs = "", false, nil
	}
	if name, version := parseRuntime(s.set.Runtime); name != "" {
		r.Tools = replaceTool(r.Tools, Tool{Name: name, Version: version, From: "runtime"})
	}
	if p.StartCommand == "" && p.StaticDir == "" {
		return r, fmt.Errorf("%w: it is %s, but nothing says how it is started: %s", ErrUnknown, p.Framework, s.startHint(r))
	}
	return r, nil
}

func (s *source) startHint(r Result) string {
	if len(r.Tools) > 0 && (r.Tools[0].Name == "node" || r.Tools[0].Name == "bun") {
		return `add a "start" script to package.json, or set start_command`
	}
	return "set start_command, or add a Procfile with a line \"web: <command>\""
}

// procfile returns the command of the Procfile's web process.
func (s *source) procfile() string {
	for line := range strings.Lines(s.read("Procfile")) {
		name, command, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == "web" {
			return strings.TrimSpace(command)
		}
	}
	return ""
}

// tool is a program, in the version that the repository asks for.
func (s *source) tool(name string) Tool {
	if t, ok := s.pins[name]; ok {
		return t
	}
	return Tool{Name: name}
}

// maxRead bounds what is read of a file, in bytes.
const maxRead = 1 << 20

// read returns a file's beginning; of what is no file, nothing.
func (s *source) read(name string) string { return readFile(s.FS, name) }

func readFile(fsys fs.FS, name string) string {
	if st, err := fs.Stat(fsys, name); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	f, err := fsys.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	raw, _ := io.ReadAll(io.LimitReader(f, maxRead))
	return strings.ToValidUTF8(decoded(raw), "\uFFFD")
}

// decoded returns a text without its byte order mark, which says how it is encoded:
// PowerShell's "pip freeze > requirements.txt" writes UTF-16, and pip reads that.
func decoded(raw []byte) string {
	low := 0 // the byte of each unit that is the lower one
	switch {
	case bytes.HasPrefix(raw, []byte("\xff\xfe")):
	case bytes.HasPrefix(raw, []byte("\xfe\xff")):
		low = 1
	default:
		return strings.TrimPrefix(string(raw), "\uFEFF")
	}
	var units []uint16
	for raw = raw[2:]; len(raw) > 1; raw = raw[2:] {
		units = append(units, uint16(raw[low])|uint16(raw[1-low])<<8)
	}
	return string(utf16.Decode(units))
}

// has reports whether one of the files is there.
func (s *source) has(names ...string) bool { return s.first(names...) != "" }

// first returns the first of the files that is there.
func (s *source) first(names ...string) string {
	for _, name := range names {
		if isFile(s.FS, name) {
			return name
		}
	}
	return ""
}

func isFile(fsys fs.FS, name string) bool {
	st, err := fs.Stat(fsys, name)
	return err == nil && st.Mode().IsRegular()
}

// glob is fs.Glob, without its error for a bad pattern.
func (s *source) glob(pattern string) []string {
	found, _ := fs.Glob(s.FS, pattern)
	return found
}
