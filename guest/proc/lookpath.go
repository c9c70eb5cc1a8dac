package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Exit codes of a shell for a command that it cannot run.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// CommandError says that a command's program cannot be run. It is the command's
// fault, not the request's, so it is reported as a shell reports it: a line on
// standard error and Code, which is 126 or 127.
type CommandError struct {
	Code int
	Name string
	Err  error
}

func (e *CommandError) Error() string { return fmt.Sprintf("%s: %v", e.Name, e.Err) }

// Unwrap returns the cause.
func (e *CommandError) Unwrap() error { return e.Err }

var errNotFound = errors.New("command not found")

func commandError(name string, err error) *CommandError {
	e := &CommandError{Code: exitNotExecutable, Name: name, Err: err}
	if errors.Is(err, errNotFound) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		e.Code = exitNotFound
	}
	return e
}

// lookPath finds a program as execvp does, with the command's own PATH and
// working directory instead of the agent's.
func lookPath(name, path, dir string) (string, error) {
	if name == "" {
		return "", commandError("''", errNotFound)
	}
	if strings.Contains(name, "/") {
		file := absolute(name, dir)
		if err := executable(file); err != nil {
			return "", commandError(name, err)
		}
		return file, nil
	}
	err := errNotFound
	for _, entry := range filepath.SplitList(path) {
		file := filepath.Join(absolute(entry, dir), name)
		switch e := executable(file); {
		case e == nil:
			return file, nil
		case errors.Is(e, unix.EACCES):
			err = e
		}
	}
	return "", commandError(name, err)
}

// fallbackShell is that of a user whose own is not there.
const fallbackShell = "/bin/sh"

// loginShell is the user's shell, with the dash before its name that has it read
// the profile.
func loginShell(user User) (path string, argv []string) {
	path = user.Shell
	if !filepath.IsAbs(path) || executable(path) != nil {
		path = fallbackShell
	}
	return path, []string{"-" + filepath.Base(path)}
}

func absolute(path, dir string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// executable asks for any execute bit; whether it is this user's is for the
// kernel to say.
func executable(file string) error {
	st, err := os.Stat(file)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			return path.Err
		}
		return err
	}
	if st.IsDir() {
		return unix.EISDIR
	}
	if st.Mode()&0o111 == 0 {
		return unix.EACCES
	}
	return nil
}
