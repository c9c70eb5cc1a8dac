// Package files reads and writes the guest's file system for callers outside it.
// The whole guest belongs to its workload, so no path is protected from another.
// Calls are bounded in time and memory, whatever is at a path, and errors say
// plainly what is wrong.
package files

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxPath is the longest path that the kernel takes, in bytes.
const maxPath = unix.PathMax - 1

// Path checks a path and returns its shortest form.
func Path(raw string) (string, error) {
	invalid := func(detail string) (string, error) {
		return "", &Refusal{Status: http.StatusBadRequest, Text: TextInvalidPath, Detail: detail}
	}
	switch {
	case raw == "":
		return invalid("the path is empty")
	case len(raw) > maxPath:
		return invalid(fmt.Sprintf("the path is longer than %d bytes", maxPath))
	case raw[0] != '/':
		return invalid("the path is not absolute")
	case strings.ContainsRune(raw, 0):
		return invalid("the path contains a NUL byte")
	}
	for segment := range strings.SplitSeq(raw, "/") {
		if segment == ".." {
			return invalid("the path contains a segment '..'")
		}
	}
	return filepath.Clean(raw), nil
}
