package pgapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// Dial connects to a guest's Port.
type Dial func(ctx context.Context) (net.Conn, error)

// Client calls one guest. Every call has a connection of its own: a guest may be
// paused, restored or gone between two calls, and a kept connection with it.
type Client struct{ http *http.Transport }

// NewClient returns a client of the guest that dial reaches.
func NewClient(dial Dial) *Client {
	return &Client{http: &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
		ExpectContinueTimeout:  continueWait,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
	}}
}

// Transport passes requests on to the guest as they are, whatever host their URL names:
// for the routes of the broker.
func (c *Client) Transport() http.RoundTripper { return c.http }

// continueWait is how long a body is held back that may be refused unread.
var continueWait = timescale.Limit(time.Minute)

// The guest is not trusted: maxAnswer bounds what is read of an answer, maxText what of
// it comes into an error, which ends in logs, rows and heartbeats. In bytes.
const (
	maxAnswer = 1 << 20
	maxText   = 1 << 10
)

// shorten is a text without what is too long of it.
func shorten(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "") }

// badAnswer is an answer that cannot be decoded. What encoding/json says of it quotes
// it, whole.
type badAnswer struct {
	path  string
	cause error
}

func (e *badAnswer) Error() string {
	return shorten("guestpg " + e.path + ": decode answer: " + e.cause.Error())
}
func (e *badAnswer) Unwrap() error { return e.cause }

// Refusal is guestpg's refusal of a call.
type Refusal struct {
	Status int // HTTP
	Body   Error
}

func (r *Refusal) Error() string { return "guestpg: " + r.Body.Error }

// HasCode says whether an error is a refusal with a code.
func HasCode(err error, code string) bool {
	r, ok := errors.AsType[*Refusal](err)
	return ok && r.Body.Code == code
}

// Status asks for the state of PostgreSQL.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var st Status
	return st, c.json(ctx, http.MethodGet, PathStatus, nil, &st)
}

// Settings has PostgreSQL tuned.
func (c *Client) Settings(ctx context.Context, s Settings) (SettingsApplied, error) {
	var done SettingsApplied
	return done, c.json(ctx, http.MethodPut, PathSettings, s, &done)
}

// Credentials puts the tenant's credentials into force.
func (c *Client) Credentials(ctx context.Context, cr Credentials) (CredentialsApplied, error) {
	var done CredentialsApplied
	return done, c.json(ctx, http.MethodPut, PathCredentials, cr, &done)
}

// Switch makes a checkpoint, ends the WAL segment, and waits until all is stored, or
// for timeout, a number of whole seconds.
func (c *Client) Switch(ctx context.Context, timeout time.Duration) (Switched, error) {
	var done Switched
	return done, c.json(ctx, http.MethodPost, PathSwitch, Switch{TimeoutSeconds: int(timeout.Seconds())}, &done)
}

// Stop ends PostgreSQL; it stays so until Start.
func (c *Client) Stop(ctx context.Context, s Stop) error {
	return c.json(ctx, http.MethodPost, PathStop, s, nil)
}

// Start has PostgreSQL run again.
func (c *Client) Start(ctx context.Context) error {
	return c.json(ctx, http.MethodPost, PathStart, struct{}{}, nil)
}

// NextWAL waits for a WAL file to store. False means that none came meanwhile.
func (c *Client) NextWAL(ctx context.Context, wait time.Duration) (WALFile, bool, error) {
	var f WALFile
	err := c.json(ctx, http.MethodGet, waitFor(PathWALNext, wait), nil, &f)
	return f, f.Name != "", err
}

// WAL reads a WAL file that NextWAL named. The caller closes it, and compares what it
// read with the file's checksum.
func (c *Client) WAL(ctx context.Context, name string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, named(PathWAL, name), nil, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WALStored says that a WAL file is durable in the archive.
func (c *Client) WALStored(ctx context.Context, f WALFile) error {
	return c.json(ctx, http.MethodPost, named(PathWALStored, f.Name), Stored{SHA256: f.SHA256}, nil)
}

// Backup copies a base backup to w. Whatever was written is worthless if it fails.
func (c *Client) Backup(ctx context.Context, b Backup, w io.Writer) (BackupInfo, error) {
	raw, err := json.Marshal(b)
	if err != nil {
		return BackupInfo{}, err
	}
	resp, err := c.do(ctx, http.MethodPost, PathBackup, bytes.NewReader(raw), nil)
	if err != nil {
		return BackupInfo{}, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return BackupInfo{}, fmt.Errorf("base backup: %w", err)
	}
	t := resp.Trailer
	if t.Get(TrailerComplete) != "true" {
		return BackupInfo{}, errors.New("base backup: it ended early")
	}
	info := BackupInfo{StartLSN: t.Get(TrailerStartLSN), StopLSN: t.Get(TrailerStopLSN)}
	timeline, err1 := strconv.ParseUint(t.Get(TrailerTimeline), 10, 32)
	files, err2 := strconv.Atoi(t.Get(TrailerFiles))
	size, err3 := strconv.ParseInt(t.Get(TrailerBytes), 10, 64)
	info.Timeline, info.Files, info.DataBytes = uint32(timeline), files, size
	return info, errors.Join(err1, err2, err3)
}

// RestoreBase puts a base backup in the place of the data.
func (c *Client) RestoreBase(ctx context.Context, tar io.Reader) (RestoreBase, error) {
	var done RestoreBase
	resp, err := c.do(ctx, http.MethodPut, PathRestoreBase, tar, http.Header{"Expect": {"100-continue"}})
	if err != nil {
		return done, err
	}
	return done, decodeAnswer(resp, &done)
}

// Restore begins recovery; Status tells of it, and NextFetch what it needs.
func (c *Client) Restore(ctx context.Context, r Restore) error {
	return c.json(ctx, http.MethodPost, PathRestore, r, nil)
}

// Adopt makes data that came with a copied disk a database's own.
func (c *Client) Adopt(ctx context.Context, as string) error {
	return c.json(ctx, http.MethodPost, PathAdopt, Adopt{As: as}, nil)
}

// NextFetch waits until recovery asks for a file. False means that it did not meanwhile.
func (c *Client) NextFetch(ctx context.Context, wait time.Duration) (string, bool, error) {
	var f FetchRequest
	err := c.json(ctx, http.MethodGet, waitFor(PathFetchNext, wait), nil, &f)
	return f.Name, f.Name != "", err
}

// Provide brings a file that recovery asked for. sha256 is that of its bytes, in hex,
// as the archive has it.
func (c *Client) Provide(ctx context.Context, name string, content []byte, sha256 string) error {
	resp, err := c.do(ctx, http.MethodPut, named(PathFetch, name), bytes.NewReader(content), http.Header{SHA256Header: {sha256}})
	if err != nil {
		return err
	}
	return decodeAnswer(resp, nil)
}

// Missing says that the archive has no such file, and should have none.
func (c *Client) Missing(ctx context.Context, name string) error {
	return c.json(ctx, http.MethodDelete, named(PathFetch, name), nil, nil)
}

// FetchFailed says that the archive should have a file and cannot give it.
func (c *Client) FetchFailed(ctx context.Context, name, cause string) error {
	return c.json(ctx, http.MethodPost, named(PathFetchFailed, name), FetchFailed{Error: cause}, nil)
}

func named(path, name string) string {
	return strings.Replace(path, "{name}", url.PathEscape(name), 1)
}

func waitFor(path string, wait time.Duration) string {
	return path + "?wait_seconds=" + strconv.Itoa(int(min(wait, MaxWait).Seconds()))
}

func (c *Client) json(ctx context.Context, method, target string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	resp, err := c.do(ctx, method, target, body, nil)
	if err != nil {
		return err
	}
	return decodeAnswer(resp, out)
}

func decodeAnswer(resp *http.Response, out any) error {
	defer resp.Body.Close()
	if out == nil || resp.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return &badAnswer{resp.Request.URL.Path, err}
	}
	return nil
}

// do makes a request. A refusal is a *Refusal; the caller closes the body of anything
// else.
func (c *Client) do(ctx context.Context, method, target string, body io.Reader, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+target, body)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.http.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("guestpg %s: %w", req.URL.Path, errors.Join(context.Cause(ctx), err))
	}
	if resp.StatusCode == http.StatusSwitchingProtocols { // the context no longer ends its body
		resp.Body.Close()
		return nil, fmt.Errorf("guestpg %s: it switches protocols", req.URL.Path)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	refusal := &Refusal{Status: resp.StatusCode}
	if json.Unmarshal(raw, &refusal.Body) != nil || refusal.Body.Error == "" {
		refusal.Body.Error = "status " + strconv.Itoa(resp.StatusCode)
	}
	for _, text := range []*string{&refusal.Body.Error, &refusal.Body.SQLState, &refusal.Body.Detail, &refusal.Body.Code} {
		*text = shorten(*text)
	}
	return nil, refusal
}
