// Package frameworks has a small app of each usual framework. Its test deploys them, one
// after the other, on the Berth that BERTH_URL names; end-to-end tests do so from git.
package frameworks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Framework is one of them.
type Framework struct {
	Dir    string // below testdata
	Build  string // its build command; "": it is detected
	Answer string // what is in its page
	// program is a package of Go's below Dir, which the app gets compiled and static.
	program string
}

// All are all of them.
var All = []Framework{
	{Dir: "static", Answer: "hello from static"},
	{Dir: "express", Answer: "hello from express"},
	{Dir: "vite", Answer: "hello from vite"},
	{Dir: "next", Answer: "hello from next"},
	{Dir: "astro", Answer: "hello from astro"},
	{Dir: "flask", Answer: "hello from flask"},
	{Dir: "fastapi", Answer: "hello from fastapi"},
	{Dir: "django", Build: "python manage.py migrate --no-input", Answer: "hello from django, visit 1"},
	{Dir: "go", Answer: "hello from go"},
	{Dir: "dockerfile", program: "server", Answer: "hello from dockerfile, world, built as 0, run as 1234 in /srv, yes, true true"},
}

// Write writes an app's source into a directory; testdata is this package's.
func (f Framework) Write(testdata, dir string) error {
	from := filepath.Join(testdata, f.Dir)
	err := os.CopyFS(dir, os.DirFS(from))
	if err != nil || f.program == "" {
		return err
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "program"), "./"+f.program)
	build.Dir, build.Env = from, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w: %s", f.program, err, out)
	}
	return nil
}
