package chvemu

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// fault is an error as Cloud Hypervisor answers it: a chain of messages, the
// outermost first. Its texts are those of v53.0's error types, which the names
// in the comments beside each use refer to.
type fault struct {
	status   int
	messages []string
}

func (f *fault) Error() string { return strings.Join(f.messages, ": ") }

// failf makes a chain of one message with a cause below it, which may be nil.
func fail(cause error, messages ...string) *fault {
	f := &fault{messages: messages}
	var inner *fault
	switch {
	case cause == nil:
	case errors.As(cause, &inner):
		f.messages = append(f.messages, inner.messages...)
		f.status = inner.status
	default:
		f.messages = append(f.messages, osMessage(cause))
	}
	return f
}

func failf(format string, args ...any) *fault {
	return &fault{messages: []string{fmt.Sprintf(format, args...)}}
}

// The states in which nothing can be done (vm::Error in vmm/src/vm.rs). The two
// that mean that there is no VM are answered with 404, all else with 500
// (api_error_status_code in vmm/src/api/http/mod.rs).
var (
	errNotCreated     = &fault{status: 404, messages: []string{"VM is not created"}}
	errMissingConfig  = &fault{status: 404, messages: []string{"VM config is missing"}}
	errAlreadyCreated = &fault{messages: []string{"VM is already created"}}
	errNotRunning     = &fault{messages: []string{"VM is not running"}}
)

// unsupported refuses what Cloud Hypervisor has and this program has not.
func unsupported(what string) *fault {
	return failf("chvemu does not support %s", what)
}

// osMessage words an error of the operating system as Rust's io::Error does, so
// that both engines read alike.
func osMessage(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		text := errno.Error()
		return fmt.Sprintf("%s (os error %d)", strings.ToUpper(text[:1])+text[1:], int(errno))
	}
	return err.Error()
}

// quoted prints a path as Rust's Debug does.
func quoted(s string) string { return fmt.Sprintf("%q", s) }
