package files

import (
	"context"
	"errors"
	"net/http"

	"golang.org/x/sys/unix"
)

// Texts of refusals.
const (
	TextInvalidPath  = "invalid path"
	TextNotFound     = "no such file or directory"
	TextIsDirectory  = "is a directory"
	TextNotDirectory = "not a directory"
	TextNotRegular   = "not a regular file"
	TextSymlinks     = "too many levels of symbolic links"
	TextNotEmpty     = "directory not empty"
	TextNoSpace      = "no space left on device"
	TextReadOnly     = "read-only file system"
	TextPermission   = "permission denied"
	TextBusy         = "device or resource busy"
	TextExists       = "file exists"
	TextTooLarge     = "file too large"
	TextManyEntries  = "directory too large"
	TextTooDeep      = "directory too deep"
	TextInterrupted  = "upload interrupted"
)

// Refusal is an error as callers see it, with its HTTP status.
type Refusal struct {
	Status int
	Text   string
	Detail string
}

func (e *Refusal) Error() string {
	if e.Detail == "" {
		return e.Text
	}
	return e.Text + ": " + e.Detail
}

var errInterrupted = errors.New(TextInterrupted)

var (
	errNotRegular = &Refusal{Status: http.StatusBadRequest, Text: TextNotRegular}
	errTooLarge   = &Refusal{Status: http.StatusRequestEntityTooLarge, Text: TextManyEntries}
	errTooDeep    = &Refusal{Status: http.StatusBadRequest, Text: TextTooDeep}
)

// kernel maps the kernel's errors to refusals.
var kernel = []struct {
	errno  unix.Errno
	status int
	text   string
}{
	{unix.ENOENT, http.StatusNotFound, TextNotFound},
	{unix.EISDIR, http.StatusBadRequest, TextIsDirectory},
	{unix.ENOTDIR, http.StatusBadRequest, TextNotDirectory},
	{unix.ELOOP, http.StatusBadRequest, TextSymlinks},
	{unix.ENAMETOOLONG, http.StatusBadRequest, TextInvalidPath},
	{unix.EINVAL, http.StatusBadRequest, TextInvalidPath},
	{unix.ENXIO, http.StatusBadRequest, TextNotRegular},
	{unix.ENOTEMPTY, http.StatusConflict, TextNotEmpty},
	{unix.EEXIST, http.StatusConflict, TextExists},
	{unix.EBUSY, http.StatusConflict, TextBusy},
	{unix.ETXTBSY, http.StatusConflict, TextBusy},
	{unix.ENOSPC, http.StatusInsufficientStorage, TextNoSpace},
	{unix.EDQUOT, http.StatusInsufficientStorage, TextNoSpace},
	{unix.EFBIG, http.StatusRequestEntityTooLarge, TextTooLarge},
	{unix.EROFS, http.StatusForbidden, TextReadOnly},
	{unix.EACCES, http.StatusForbidden, TextPermission},
	{unix.EPERM, http.StatusForbidden, TextPermission},
}

// Refuse turns any error of this package into a refusal.
func Refuse(err error) *Refusal {
	var known *Refusal
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled) {
		return &Refusal{Status: http.StatusBadRequest, Text: TextInterrupted}
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		for _, k := range kernel {
			if k.errno == errno {
				r := &Refusal{Status: k.status, Text: k.text}
				if k.text != errno.Error() {
					r.Detail = errno.Error()
				}
				return r
			}
		}
		return &Refusal{Status: http.StatusInternalServerError, Text: errno.Error()}
	}
	return &Refusal{Status: http.StatusInternalServerError, Text: err.Error()}
}
