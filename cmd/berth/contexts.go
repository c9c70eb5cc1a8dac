package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/berth-cloud/berth/atomicfile"
)

// envContext names the context of a command, as --context does.
const envContext = "BERTH_CONTEXT"

// contexts is the file that berth login writes.
type contexts struct {
	Current  string            `yaml:"current,omitempty"`
	Contexts map[string]*saved `yaml:"contexts,omitempty"`
}

// saved is a service and the credentials for it.
type saved struct {
	URLs       []string `yaml:"urls"`
	Token      string   `yaml:"token,omitempty"`
	JWT        string   `yaml:"jwt,omitempty"`
	AdminToken string   `yaml:"admin_token,omitempty"`
}

// credential returns the one that a variable of this name would hold.
func (s *saved) credential(name string) *string {
	switch name {
	case envJWT:
		return &s.JWT
	case envAdmin:
		return &s.AdminToken
	}
	return &s.Token
}

// has reports whether all addresses are replicas of the context.
func (s *saved) has(urls []string) bool {
	return !slices.ContainsFunc(urls, func(u string) bool {
		return !slices.ContainsFunc(s.URLs, func(own string) bool { return strings.TrimRight(own, "/") == u })
	})
}

// chosen is the context of a run.
type chosen struct {
	name string
	*saved
	// byFlag: --context was given. Nothing of the environment is then sent there.
	byFlag bool
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// contextFile is at the place of the XDG Base Directory Specification, on macOS too.
func (a *app) contextFile() (string, error) {
	if dir := a.env("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "berth", "config.yaml"), nil
	}
	home := a.env("HOME")
	if home == "" {
		return "", errors.New("neither XDG_CONFIG_HOME nor HOME is set: there is no place for contexts")
	}
	return filepath.Join(home, ".config", "berth", "config.yaml"), nil
}

// maxContextFile bounds what is read.
const maxContextFile = 1 << 20

// loadContexts reads the file. There need not be one.
func (a *app) loadContexts() (*contexts, error) {
	c := &contexts{Contexts: map[string]*saved{}}
	path, err := a.contextFile()
	if err != nil { // there is no place for one
		return c, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the contexts: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has credentials, and others may read it (mode %04o): chmod 600 %s", path, info.Mode().Perm(), path)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxContextFile))
	if err != nil {
		return nil, fmt.Errorf("read the contexts: %w", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s cannot be read: %w; correct it, or remove it and berth login again", path, err)
	}
	for name, s := range c.Contexts {
		if s == nil || len(s.URLs) == 0 {
			return nil, fmt.Errorf("%s: the context %q has no urls; correct it, or remove it and berth login again", path, name)
		}
	}
	if c.Contexts == nil {
		c.Contexts = map[string]*saved{}
	}
	return c, nil
}

// saveContexts replaces the file.
func (a *app) saveContexts(c *contexts) error {
	path, err := a.contextFile()
	if err != nil {
		return err
	}
	raw, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("save the contexts: %w", err)
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to // a link to a file that is kept elsewhere stays
	}
	if err := atomicfile.Write(path, raw, 0o600); err != nil {
		return fmt.Errorf("save the contexts: %w", err)
	}
	return nil
}

// context returns the context that this run uses, or nil for none: the one of --context,
// otherwise that of BERTH_CONTEXT, or the current one. If the flags or the environment
// name an address, it is none, so that no credential reaches a service that it is not of;
// but --url may name some of the context's own replicas, which are then those that are
// called.
func (a *app) context() (*chosen, error) {
	name, byFlag := a.contextFlag, a.contextFlag != ""
	given := a.givenURLs()
	if !byFlag && len(given) > 0 && len(a.urls) == 0 {
		return nil, nil
	}
	all, err := a.loadContexts()
	switch {
	case err != nil && !byFlag && len(given) > 0: // an address is enough
		return nil, nil
	case err != nil:
		return nil, err
	}
	if name == "" {
		name = a.env(envContext)
	}
	if name == "" {
		name = all.Current
	}
	if name == "" {
		return nil, nil
	}
	s := all.Contexts[name]
	if len(a.urls) > 0 {
		switch {
		case s != nil && s.has(given):
			narrowed := *s
			narrowed.URLs = given
			s = &narrowed
		case byFlag:
			return nil, errors.New("--context and --url both name a service: leave one of them out, or name one of the context's own replicas")
		default:
			return nil, nil
		}
	}
	if s == nil {
		return nil, fmt.Errorf("there is no context %q: berth context ls shows them, berth login --context %s --url URL makes it", name, name)
	}
	return &chosen{name: name, saved: s, byFlag: byFlag}, nil
}

// credential returns the first of the named credentials that is set. In the
// environment a variable comes before what a context has.
func (a *app) credential(from *chosen, names []string) string {
	for _, name := range names {
		if from == nil || !from.byFlag {
			if v := a.env(name); v != "" {
				return v
			}
		}
		if from != nil {
			if v := *from.credential(name); v != "" {
				return v
			}
		}
	}
	return ""
}
