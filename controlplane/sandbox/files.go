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

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// MaxPath is the longest path of Linux, without its NUL, in bytes.
const MaxPath = 4095

// File is a file as its sandbox gives it out. Whoever has it closes it.
type File struct {
	Status int         // 200, 206 or 304
	Header http.Header // those of FileHeaders
	Body   io.ReadCloser
}

// FileHeaders are the headers of a file that mean something to its reader.
var FileHeaders = []string{"Content-Type", "Content-Length", "Content-Range", "Last-Modified", "Accept-Ranges"}

// FileConditions are the headers of a request that a file's reader may set.
var FileConditions = []string{"Range", "If-Range", "If-Modified-Since"}

// checkPath refuses what is no absolute path. One with ".." in it is refused
// too: what it means depends on links that the caller does not see.
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

// Files are the use cases of a sandbox's file system.
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

// Write puts a file in place of whatever was there, in one step once all
// of it has arrived, and reports whether there was none. size is -1 where it is
// not known. A body that fails leaves everything as it was.
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
	// The body can be read once: only what the host has not begun to take can be
	// sent again.
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

// unread knows whether some of it was read.
type unread struct {
	r     io.Reader
	begun atomic.Bool
}

// Read implements io.Reader.
func (u *unread) Read(p []byte) (int, error) {
	u.begun.Store(true)
	return u.r.Read(p)
}

// Remove removes a file, or a directory, which has to be empty unless
// recursive.
func (f *Files) Remove(ctx context.Context, c core.Caller, id, name string, recursive bool) error {
	query := url.Values{"path": {name}}
	if recursive {
		query.Set("recursive", "true")
	}
	return f.fs(ctx, c, http.MethodDelete, id, hostapi.FSFile, query, nil)
}

// Stat describes an entry; a link itself, not what it points to.
func (f *Files) Stat(ctx context.Context, c core.Caller, id, name string) (api.FileStat, error) {
	var out guestapi.FileStat
	err := f.fs(ctx, c, http.MethodGet, id, hostapi.FSStat, url.Values{"path": {name}}, &out)
	return fileStat(out), err
}

// List describes what is in a directory, by name, as it is read: a listing may
// be larger than what is good to hold. An error of each ends it, and is returned.
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

// entries reads a guestapi.Directory as it comes, and holds at most maxShort of
// it for each of its parts.
func entries(r io.Reader, each func(api.FileStat) error) error {
	part := &io.LimitedReader{R: r}
	decoder := json.NewDecoder(part)
	next := func() *json.Decoder {
		part.N = maxShort
		return decoder
	}
	nonsense := func(err error) error {
		return apierror.Unreachable("the sandbox's answer makes no sense", fmt.Errorf("decode the guest's answer: %w", err))
	}
	for _, want := range []json.Token{json.Delim('{'), "path", nil, "entries", json.Delim('[')} {
		got, err := next().Token()
		if err == nil && want != nil && got != want {
			err = fmt.Errorf("%v where %v should be", got, want)
		}
		if err != nil {
			return nonsense(err)
		}
	}
	for next().More() {
		var st guestapi.FileStat
		if err := next().Decode(&st); err != nil {
			return nonsense(err)
		}
		if err := each(fileStat(st)); err != nil {
			return err
		}
	}
	for _, want := range []json.Token{json.Delim(']'), json.Delim('}')} {
		if got, err := next().Token(); err != nil || got != want {
			return nonsense(errors.Join(err, errors.New("it has no end")))
		}
	}
	return nil
}

// fileStat converts what a guest says of an entry.
func fileStat(s guestapi.FileStat) api.FileStat {
	return api.FileStat{
		Path: s.Path, Name: s.Name, Type: api.FileType(s.Type), SizeBytes: s.SizeBytes, Mode: s.Mode, UID: s.UID, GID: s.GID,
		ModifiedAt: api.Time{Time: s.ModifiedAt}, Target: s.Target,
	}
}

// MakeDir makes a directory, with its parents.
func (f *Files) MakeDir(ctx context.Context, c core.Caller, id, name string) error {
	return f.fs(ctx, c, http.MethodPost, id, hostapi.FSDir, url.Values{"path": {name}}, nil)
}

// maxDirectory and maxShort bound what is read of a guest's answer, in bytes.
const (
	maxDirectory = 256 << 20
	maxShort     = 64 << 10
)

// fs makes a call about a path that has a short answer.
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
