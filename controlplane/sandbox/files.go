package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// MaxPath is Linux's limit for a path, without the final NUL, in bytes.
const MaxPath = 4095

// File is an open file of a sandbox. The caller closes Body.
type File struct {
	Status int         // 200, 206 or 304
	Header http.Header // those of FileHeaders
	Body   io.ReadCloser
}

// FileHeaders are the response headers that describe a file.
var FileHeaders = []string{"Content-Type", "Content-Length", "Content-Range", "Last-Modified", "Accept-Ranges"}

// FileConditions are the request headers that a reader of a file may set.
var FileConditions = []string{"Range", "If-Range", "If-Modified-Since"}

// checkPath refuses paths that are not absolute, and those with "..", whose meaning
// depends on links that the caller does not see.
func checkPath(p string) error {
	switch {
	case p == "":
		return apierror.Invalid("path required", "the query parameter path is an absolute path in the sandbox")
	case !path.IsAbs(p):
		return apierror.Invalid("invalid path", "path must be absolute")
	case len(p) > MaxPath:
		return apierror.Invalid("invalid path", "path is at most %d bytes", MaxPath)
	case strings.ContainsRune(p, 0):
		return apierror.Invalid("invalid path", "path contains a NUL character")
	case slices.Contains(strings.Split(p, "/"), ".."):
		return apierror.Invalid("invalid path", `path contains ".."`)
	}
	return nil
}

// Files contains the use cases of a sandbox's file system.
type Files struct{ *reach }

// Read opens a file.
func (f *Files) Read(ctx context.Context, c core.Caller, id, name string, conditions http.Header) (*File, error) {
	if err := checkPath(name); err != nil {
		return nil, f.orNotFound(ctx, c, id, err)
	}
	header := http.Header{}
	for _, k := range FileConditions {
		if v := conditions.Values(k); len(v) > 0 {
			header[k] = v
		}
	}
	var out opened[*http.Response]
	err := f.onRunning(ctx, c, id, open(f.reach, &out, func(ctx context.Context, t target) (*http.Response, error) {
		return t.client.FS(ctx, http.MethodGet, id, hostapi.FSFile, url.Values{"path": {name}}, header, nil)
	}))
	if err != nil {
		return nil, err
	}
	file := &File{Status: out.it.StatusCode, Header: http.Header{}, Body: &core.Body{ReadCloser: out.it.Body, Release: out.release}}
	for _, k := range FileHeaders {
		if v := out.it.Header.Values(k); len(v) > 0 {
			file.Header[k] = v
		}
	}
	if file.Header.Get("Content-Length") == "" && out.it.ContentLength >= 0 {
		file.Header.Set("Content-Length", strconv.FormatInt(out.it.ContentLength, 10))
	}
	return file, nil
}

var fileMode = regexp.MustCompile(`^[0-7]{3,4}$`)

// Write replaces a file in one step once all of it has arrived, and reports whether
// it is new. size is -1 if unknown. If the body fails, nothing changes.
func (f *Files) Write(ctx context.Context, c core.Caller, id, name, mode string, body io.Reader, size int64) (isNew bool, err error) {
	err = checkPath(name)
	if err == nil && mode != "" && !fileMode.MatchString(mode) {
		err = apierror.Invalid("invalid mode", "mode is octal, such as 0644")
	}
	if err != nil {
		return false, f.orNotFound(ctx, c, id, err)
	}
	query := url.Values{"path": {name}}
	if mode != "" {
		query.Set("mode", mode)
	}
	header := http.Header{"Content-Type": {"application/octet-stream"}}
	if size >= 0 {
		header.Set("Content-Length", strconv.FormatInt(size, 10))
	}
	// The body can be read only once, so the call may be repeated only if the host
	// has read nothing of it.
	source := &unread{r: body}
	var resp *http.Response
	err = f.onRunning(ctx, c, id, func(ctx context.Context, t target) error {
		if source.begun.Load() {
			return apierror.Unreachable("the sandbox stopped while the file was sent", nil)
		}
		ctx, release := f.core.Hosts.WhileHeard(ctx, t.row.HostID)
		defer release()
		var err error
		resp, err = t.client.FS(ctx, http.MethodPut, id, hostapi.FSFile, query, header, source)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	})
	if err != nil {
		return false, err
	}
	return resp.StatusCode == http.StatusCreated, nil
}

// unread records whether its reader was ever read.
type unread struct {
	r     io.Reader
	begun atomic.Bool
}

// Read implements io.Reader.
func (u *unread) Read(p []byte) (int, error) {
	u.begun.Store(true)
	return u.r.Read(p)
}

// Remove removes a file or a directory. A directory must be empty unless recursive
// is set.
func (f *Files) Remove(ctx context.Context, c core.Caller, id, name string, recursive bool) error {
	query := url.Values{"path": {name}}
	if recursive {
		query.Set("recursive", "true")
	}
	return f.fs(ctx, c, http.MethodDelete, id, hostapi.FSFile, query, nil)
}

// Stat describes an entry. It describes a symbolic link itself, not its target.
func (f *Files) Stat(ctx context.Context, c core.Caller, id, name string) (api.FileStat, error) {
	var out entry
	err := f.fs(ctx, c, http.MethodGet, id, hostapi.FSStat, url.Values{"path": {name}}, &out)
	return fileStat(out), err
}

// List calls each for the entries of a directory, sorted by name, while it reads the
// guest's answer, which may be large. An error of each ends it and is returned.
func (f *Files) List(ctx context.Context, c core.Caller, id, name string, each func(api.FileStat) error) error {
	if err := checkPath(name); err != nil {
		return f.orNotFound(ctx, c, id, err)
	}
	var out opened[*http.Response]
	err := f.onRunning(ctx, c, id, open(f.reach, &out, func(ctx context.Context, t target) (*http.Response, error) {
		return t.client.FS(ctx, http.MethodGet, id, hostapi.FSDir, url.Values{"path": {name}}, nil, nil)
	}))
	if err != nil {
		return err
	}
	defer out.release()
	defer out.it.Body.Close()
	return entries(io.LimitReader(out.it.Body, maxDirectory), each)
}

// entries decodes a guestapi.Directory as it arrives. It holds at most maxShort
// bytes of each part.
func entries(r io.Reader, each func(api.FileStat) error) error {
	part := &io.LimitedReader{R: r}
	decoder := json.NewDecoder(part)
	next := func() *json.Decoder {
		part.N = maxShort
		return decoder
	}
	malformed := func(err error) error {
		return apierror.Unreachable("the sandbox's answer makes no sense", fmt.Errorf("decode the guest's answer: %w", err))
	}
	for _, want := range []json.Token{json.Delim('{'), "path", nil, "entries", json.Delim('[')} {
		got, err := next().Token()
		if err == nil && want != nil && got != want {
			err = fmt.Errorf("%v where %v should be", got, want)
		}
		if err != nil {
			return malformed(err)
		}
	}
	for next().More() {
		var st entry
		if err := next().Decode(&st); err != nil {
			return malformed(err)
		}
		if err := each(fileStat(st)); err != nil {
			return err
		}
	}
	for _, want := range []json.Token{json.Delim(']'), json.Delim('}')} {
		if got, err := next().Token(); err != nil || got != want {
			return malformed(errors.Join(err, errors.New("it has no end")))
		}
	}
	return nil
}

// entry is a guestapi.FileStat of any time.
type entry struct {
	guestapi.FileStat
	ModifiedAt fileTime `json:"modified_at"`
}

// fileTime is a file's time, the nearest of the years 1 to 9999: RFC 3339 has no others,
// but file systems do, and one file must not make its directory unreadable. Agents of
// older templates send them all the same.
type fileTime struct{ time.Time }

var (
	earliest = time.Date(1, time.January, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(9999, time.December, 31, 23, 59, 59, 999_999_999, time.UTC)
	otherAge = regexp.MustCompile(`^"(?:(-[0-9]{4,})|[0-9]{5,})-[0-9]{2}-[0-9]{2}T`)
)

// UnmarshalJSON implements json.Unmarshaler.
func (t *fileTime) UnmarshalJSON(b []byte) error {
	err := t.Time.UnmarshalJSON(b)
	year := otherAge.FindSubmatch(b)
	switch {
	case year != nil && year[1] != nil, err == nil && t.Before(earliest):
		t.Time = earliest
	case year != nil, err == nil && t.After(latest):
		t.Time = latest
	default:
		return err
	}
	return nil
}

func fileStat(s entry) api.FileStat {
	return api.FileStat{
		Path: s.Path, Name: s.Name, Type: api.FileType(s.Type), SizeBytes: s.SizeBytes, Mode: s.Mode, UID: s.UID, GID: s.GID,
		ModifiedAt: api.Time{Time: s.ModifiedAt.Time}, Target: s.Target,
	}
}

// MakeDir creates a directory and its parents.
func (f *Files) MakeDir(ctx context.Context, c core.Caller, id, name string) error {
	return f.fs(ctx, c, http.MethodPost, id, hostapi.FSDir, url.Values{"path": {name}}, nil)
}

// maxDirectory and maxShort limit what is read of a guest's answer, in bytes.
const (
	maxDirectory = 256 << 20
	maxShort     = 64 << 10
)

// fs makes a call about a path. The answer is short.
func (f *Files) fs(ctx context.Context, c core.Caller, method, id, sub string, query url.Values, out any) error {
	if err := checkPath(query.Get("path")); err != nil {
		return f.orNotFound(ctx, c, id, err)
	}
	return f.onRunning(ctx, c, id, func(ctx context.Context, t target) error {
		ctx, release := f.core.Hosts.WhileHeard(ctx, t.row.HostID)
		defer release()
		resp, err := t.client.FS(ctx, method, id, sub, query, nil, nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if out == nil {
			return nil
		}
		if err := json.NewDecoder(io.LimitReader(resp.Body, maxShort)).Decode(out); err != nil {
			return apierror.Unreachable("the sandbox's answer makes no sense", fmt.Errorf("decode the guest's answer: %w", err))
		}
		return nil
	})
}
