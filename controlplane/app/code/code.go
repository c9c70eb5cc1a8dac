// Package code checks the code of functions as it is uploaded: files by name, or a tar.gz.
// Code is checked before it is stored, so that the user hears at once what is wrong with it.
// The builder in the guest checks it again.
package code

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of a function's code.
const (
	MaxPacked   = 50 << 20  // size of a tar.gz, in bytes
	MaxUnpacked = 250 << 20 // size of its content, in bytes
	MaxFiles    = 10_000    // number of files and directories
	MaxInline   = 8 << 20   // size of the files in a JSON body, in bytes
	maxName     = 512       // length of a file's name, in bytes
)

var (
	// ErrRefused is wrapped by errors that tell the author of the code what is wrong with
	// it.
	ErrRefused = errors.New("refused")
	// ErrTooLarge is wrapped by errors that say that there is too much code. It wraps
	// ErrRefused.
	ErrTooLarge = fmt.Errorf("%w: too large", ErrRefused)
)

// problem is an error with its own text that wraps another error.
type problem struct {
	text string
	is   error
}

func (p *problem) Error() string { return p.text }
func (p *problem) Unwrap() error { return p.is }

func refused(format string, args ...any) error {
	return &problem{fmt.Sprintf(format, args...), ErrRefused}
}

func tooLarge(format string, args ...any) error {
	return &problem{fmt.Sprintf(format, args...), ErrTooLarge}
}

// handlers lists the files that may contain a function's handler, by runtime.
var handlers = map[string][]string{
	"python": {"handler.py"},
	"node":   {"handler.mjs", "handler.js", "handler.cjs"},
}

// Runtimes returns the names of the runtimes.
func Runtimes() []string { return []string{"python", "node"} }

// tree collects the files and directories of a function.
type tree struct {
	names map[string]bool // true: a directory, possibly one that appears only in a file's name
	size  int64
}

func newTree() *tree { return &tree{names: map[string]bool{}} }

// add adds a file or a directory. given is its name in the archive; add returns the name
// cleaned.
func (t *tree) add(given string, dir bool, size int64) (name string, err error) {
	name = path.Clean(given)
	switch {
	case !utf8.ValidString(given), strings.ContainsFunc(given, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }):
		return "", refused("%.100q: a name has a character that it may not have", given)
	case path.IsAbs(given), !fs.ValidPath(name), slices.Contains(strings.Split(given, "/"), ".."):
		return "", refused("%.100q: names are relative, without \"..\"", given)
	case len(given) > maxName:
		return "", refused("%.100q…: a name has at most %d bytes", given, maxName)
	case name == "." && !dir, !dir && strings.HasSuffix(given, "/"):
		return "", refused("%.100q is no name of a file", given)
	}
	if t.size += max(size, 0); size > MaxUnpacked || t.size > MaxUnpacked {
		return "", tooLarge("the files of a function have at most %d MiB together", MaxUnpacked>>20)
	}
	if is, known := t.names[name]; known && (is || dir) && is != dir {
		return "", refused("%.100q is both a file and a directory", name)
	}
	t.names[name] = dir
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		if is, known := t.names[above]; known && !is {
			return "", refused("%.100q is both a file and a directory", above)
		}
		t.names[above] = true
	}
	if len(t.names) > MaxFiles {
		return "", tooLarge("a function has at most %d files and directories; packages are installed by requirements.txt or package.json", MaxFiles)
	}
	return name, nil
}

// complete returns an error if the handler of a runtime is missing.
func (t *tree) complete(runtime string) error {
	for _, name := range handlers[runtime] {
		if dir, known := t.names[name]; known && !dir {
			return nil
		}
	}
	return refused("there is no %s at its top", strings.Join(handlers[runtime], " or "))
}
