package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/berth-cloud/berth/hostd/image/oci"
)

// Definition is a template as its author writes it. It is also the body of a
// template build request; Bootstrap and Programs are only for the host's operator.
type Definition struct {
	Name      string            `json:"name" yaml:"name"`
	From      string            `json:"from,omitempty" yaml:"from"` // another template, or an OCI image reference
	Bootstrap *Bootstrap        `json:"bootstrap,omitempty" yaml:"bootstrap"`
	Run       []string          `json:"run,omitempty" yaml:"run"`           // shell commands, in the guest
	Files     map[string]string `json:"files,omitempty" yaml:"files"`       // absolute path → content, before Run; content that begins with #! is executable
	Programs  map[string]string `json:"programs,omitempty" yaml:"programs"` // absolute path → name of a program installed beside guestd, before Run
	Env       map[string]string `json:"env,omitempty" yaml:"env"`           // environment of Run, Start and every exec
	Start     string            `json:"start,omitempty" yaml:"start"`       // shell command that runs as long as the guest
	Ready     *Ready            `json:"ready,omitempty" yaml:"ready"`       // when the guest may be stored
	CPU       int               `json:"cpu,omitempty" yaml:"cpu"`
	MemoryMB  int               `json:"memory_mb,omitempty" yaml:"memory_mb"`
	DiskMB    int               `json:"disk_mb,omitempty" yaml:"disk_mb"` // writable, logical size
}

// Bootstrap describes a Debian root file system, made from the host's package
// sources.
type Bootstrap struct {
	Suite    string   `json:"suite" yaml:"suite"`
	Packages []string `json:"packages" yaml:"packages"`
}

// Ready says when the guest may be stored; all given conditions must hold.
type Ready struct {
	Port           int    `json:"port,omitempty" yaml:"port"` // accepts a TCP connection
	Cmd            string `json:"cmd,omitempty" yaml:"cmd"`   // exits 0
	TimeoutSeconds int    `json:"timeout_seconds,omitempty" yaml:"timeout_seconds"`
}

// ErrInvalid is wrapped by errors about a definition.
var ErrInvalid = errors.New("invalid template")

// Defaults and limits.
const (
	MaxCPU      = 32
	MinMemoryMB = 256
	MaxMemoryMB = 256 << 10

	DefaultCPU      = 1
	DefaultMemoryMB = 512
	DefaultDiskMB   = 10 << 10
	defaultReady    = 60 // seconds

	minDiskMB     = 256
	maxDiskMB     = 4 << 20
	maxReady      = 3600 // seconds
	maxDefinition = 8 << 20
	maxFiles      = 4 << 20 // bytes of content together
	maxSteps      = 100
)

// DefinitionFile is the name of a template's file, and filesDir that of the
// directory beside it whose files are added to Files.
const (
	DefinitionFile = "template.yaml"
	filesDir       = "files"
)

// ReadDefinition reads a template's file and the files beside it.
func ReadDefinition(file string) (Definition, error) {
	f, err := os.Open(file)
	if err != nil {
		return Definition{}, fmt.Errorf("template: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxDefinition+1))
	if err != nil {
		return Definition{}, fmt.Errorf("template: %w", err)
	}
	d, err := parseDefinition(raw)
	if err == nil {
		err = d.addFiles(filepath.Join(filepath.Dir(file), filesDir))
	}
	if err != nil {
		return d, fmt.Errorf("%s: %w", file, err)
	}
	return d, nil
}

// addFiles adds the files below dir, which may not exist.
func (d *Definition) addFiles(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if _, twice := d.Files["/"+name]; twice || !e.Type().IsRegular() {
			return fmt.Errorf("%w: %s is no file, or in the template as well", ErrInvalid, filepath.Join(dir, name))
		}
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if d.Files == nil {
			d.Files = map[string]string{}
		}
		d.Files["/"+name] = string(raw)
		return nil
	})
	if err != nil {
		return err
	}
	return d.Validate()
}

// fileMode returns the mode of a definition's file.
func fileMode(content string) os.FileMode {
	if strings.HasPrefix(content, "#!") {
		return 0o755
	}
	return 0o644
}

// ReadDefinitions reads every template below dir, by name: dir/<name>/template.yaml.
func ReadDefinitions(dir string) ([]Definition, error) {
	found, err := fs.Glob(os.DirFS(dir), "*/"+DefinitionFile)
	if err != nil {
		return nil, err
	}
	var all []Definition
	for _, file := range found {
		d, err := ReadDefinition(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		if d.Name != path.Dir(file) {
			return nil, fmt.Errorf("%s: %w: its name is %q, its directory's is %q", file, ErrInvalid, d.Name, path.Dir(file))
		}
		all = append(all, d)
	}
	if err := checkOrigins(all); err != nil {
		return nil, err
	}
	return all, nil
}

// checkOrigins refuses cycles of templates, whose builds would wait for each other.
func checkOrigins(defs []Definition) error {
	from := map[string]string{}
	for _, d := range defs {
		from[d.Name], _ = d.fromTemplate()
	}
	for _, d := range defs {
		chain := []string{d.Name}
		for next := from[d.Name]; next != ""; next = from[next] {
			if slices.Contains(chain, next) {
				return fmt.Errorf("%w: from: %s: a template is not made from itself", ErrInvalid, strings.Join(append(chain, next), " is made from "))
			}
			chain = append(chain, next)
		}
	}
	return nil
}

// parseDefinition parses YAML, and JSON, which is a subset. An unknown field is an
// error that names it.
func parseDefinition(raw []byte) (Definition, error) {
	var d Definition
	if len(raw) > maxDefinition {
		return d, fmt.Errorf("%w: over %d bytes", ErrInvalid, maxDefinition)
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(&d); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is empty")
		}
		return Definition{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return Definition{}, fmt.Errorf("%w: more than one document", ErrInvalid)
	}
	if _, inherits := d.fromTemplate(); !inherits {
		d.setDefaults()
	}
	d.setReadyDefaults()
	return d, d.Validate()
}

// fromTemplate returns the template that this one is based on, if there is one.
func (d *Definition) fromTemplate() (string, bool) {
	return d.From, d.From != "" && !oci.IsReference(d.From)
}

// inherit sets missing fields from the template that this one is based on. If the
// definition has a start command, it does not inherit a readiness condition.
func (d *Definition) inherit(from Definition) {
	setDefault(&d.CPU, from.CPU)
	setDefault(&d.MemoryMB, from.MemoryMB)
	setDefault(&d.DiskMB, from.DiskMB)
	d.Env = under(from.Env, d.Env)
	if d.Start != "" {
		return
	}
	d.Start = from.Start
	if d.Ready == nil {
		d.Ready = from.Ready
	}
}

// under merges two environments; the second takes precedence.
func under(below, above map[string]string) map[string]string {
	if len(below) == 0 {
		return above
	}
	out := maps.Clone(below)
	maps.Copy(out, above)
	return out
}

func (d *Definition) setDefaults() {
	setDefault(&d.CPU, DefaultCPU)
	setDefault(&d.MemoryMB, DefaultMemoryMB)
	setDefault(&d.DiskMB, DefaultDiskMB)
}

func (d *Definition) setReadyDefaults() {
	if d.Ready != nil {
		setDefault(&d.Ready.TimeoutSeconds, defaultReady)
	}
}

func setDefault(value *int, otherwise int) {
	if *value == 0 {
		*value = otherwise
	}
}

var (
	validName    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	validSuite   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	validPackage = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{0,127}$`)
	validEnv     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	validProgram = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`) // only a name, so that it cannot lead to another directory
)

// Validate returns everything that is wrong.
func (d *Definition) Validate() error {
	var all error
	wrong := func(format string, args ...any) {
		all = errors.Join(all, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	if !validName.MatchString(d.Name) {
		wrong("name %q is not 1 to 64 of a-z, 0-9, '.', '_', '-', beginning with a letter or digit", d.Name)
	}
	switch {
	case (d.From == "") == (d.Bootstrap == nil):
		wrong("exactly one of from and bootstrap says what it is made of")
	case oci.IsReference(d.From):
		if err := oci.Check(d.From); err != nil {
			wrong("from: %w", err)
		}
	case d.From != "" && !validName.MatchString(d.From):
		wrong("from: %q is not the name of a template", d.From)
	case d.From == d.Name && d.Name != "":
		wrong("from: a template is not made from itself")
	}
	if b := d.Bootstrap; b != nil {
		if !validSuite.MatchString(b.Suite) {
			wrong("bootstrap.suite %q", b.Suite)
		}
		for _, p := range b.Packages {
			if !validPackage.MatchString(p) {
				wrong("bootstrap.packages: %q is not a package's name", p)
			}
		}
	}
	d.validateSteps(wrong)
	_, inherits := d.fromTemplate()
	between := func(field string, value, least, most int) {
		if value == 0 && inherits {
			return
		}
		if value < least || value > most {
			wrong("%s is %d, not %d to %d", field, value, least, most)
		}
	}
	between("cpu", d.CPU, 1, MaxCPU)
	between("memory_mb", d.MemoryMB, MinMemoryMB, MaxMemoryMB)
	between("disk_mb", d.DiskMB, minDiskMB, maxDiskMB)
	if r := d.Ready; r != nil {
		if r.Port == 0 && r.Cmd == "" {
			wrong("ready: neither port nor cmd")
		}
		between("ready.port", r.Port, 0, 65535)
		if r.TimeoutSeconds != 0 {
			between("ready.timeout_seconds", r.TimeoutSeconds, 1, maxReady)
		}
		if strings.ContainsRune(r.Cmd, 0) {
			wrong("ready.cmd contains a NUL byte")
		}
	}
	return all
}

func (d *Definition) validateSteps(wrong func(string, ...any)) {
	if len(d.Run) > maxSteps {
		wrong("run: %d steps, at most %d", len(d.Run), maxSteps)
	}
	for i, line := range d.Run {
		if strings.TrimSpace(line) == "" || strings.ContainsRune(line, 0) {
			wrong("run[%d] is empty or contains a NUL byte", i)
		}
	}
	if strings.ContainsRune(d.Start, 0) {
		wrong("start contains a NUL byte")
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(d.Files)) {
		total += len(d.Files[name])
		if !isCleanAbs(name) {
			wrong("files: %q is not a clean absolute path", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Programs)) {
		if _, twice := d.Files[name]; twice || !isCleanAbs(name) {
			wrong("programs: %q is not a clean absolute path, or in files as well", name)
		}
		if !validProgram.MatchString(d.Programs[name]) {
			wrong("programs: %q is not the name of a program", d.Programs[name])
		}
	}
	if total > maxFiles {
		wrong("files: %d bytes, at most %d", total, maxFiles)
	}
	for _, k := range slices.Sorted(maps.Keys(d.Env)) {
		if !validEnv.MatchString(k) || strings.ContainsRune(d.Env[k], 0) {
			wrong("env: variable %q", k)
		}
	}
}

// isCleanAbs reports whether a path can be a file's in the guest.
func isCleanAbs(name string) bool {
	return path.IsAbs(name) && path.Clean(name) == name && name != "/" && !strings.ContainsRune(name, 0)
}
