package guestio

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/timescale"
)

const (
	maxPorts = 1 << 20 // bytes of the answer
	// maxListening is how many are told of what listens.
	maxListening = 4096
	// maxLogLine bounds one line of the guest's log on the wire: a byte may
	// become six in JSON.
	maxLogLine = 8 * guestapi.MaxLine
)

var portsTimeout = timescale.Limit(10 * time.Second)

// Refusal is the guest's own refusal of a request.
type Refusal struct {
	Status          int // HTTP, 400 and above
	Message, Detail string
	ContentRange    string // of a 416, the header of that name; "" where it is not known
}

func (e *Refusal) Error() string {
	if e.Detail == "" {
		return e.Message
	}
	return e.Message + ": " + e.Detail
}

// GuestRequest is passed on to the guest's agent as it is.
type GuestRequest struct {
	Method string
	Path   string // of guestapi
	Query  url.Values
	Header http.Header
	Body   io.Reader // nil: none
	Length int64     // of the body; -1 where it is not known
	Held   bool      // the body is in memory: it counts against the budget for input and output
}

// Relay passes a request on to the agent of a running box and returns its
// answer, whose body the caller closes. Both bodies are streamed. A body that
// fails is cut off, never ended: the agent can tell it from a complete one. A
// refusal is a *Refusal.
func (g *Guests) Relay(ctx context.Context, id string, r GuestRequest) (*http.Response, error) {
	l, err := g.boxes.Enter(ctx, id, Connection)
	if err != nil {
		return nil, err
	}
	if r.Held {
		in, err := g.holdInput(l.line, r.Length, r.Body)
		if err != nil {
			l.Leave()
			return nil, err
		}
		l.free = in.free
	}
	t := &transfer{link: l, guests: g}
	// The use of the slot ends with the VMM, also while whoever asked takes no
	// more of the answer.
	t.stop = context.AfterFunc(l.ctx, t.end)
	resp, err := t.do(r)
	if err != nil {
		err = l.classify(err)
		t.close()
		return nil, err
	}
	resp.Body = &relayedBody{ReadCloser: resp.Body, transfer: t}
	return resp, nil
}

// transfer is one request to an agent, on a connection of its own.
type transfer struct {
	link   *Link
	guests *Guests
	stop   func() bool

	mu   sync.Mutex
	conn net.Conn
	over bool
}

func (t *transfer) do(r GuestRequest) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "guest", Path: r.Path, RawQuery: r.Query.Encode()}
	req, err := http.NewRequestWithContext(t.link.ctx, r.Method, u.String(), r.Body)
	if err != nil {
		return nil, hosterr.Invalid("%s", err)
	}
	req.ContentLength = r.Length
	if r.Body == nil {
		req.ContentLength = 0
	} else if r.Length == 0 {
		req.Body = http.NoBody
	}
	req.Header = r.Header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("User-Agent", "")
	if r.Length != 0 && r.Body != nil {
		req.Header.Set("Expect", "100-continue")
	}
	resp, err := guestclient.New(t.dial).Transport().RoundTrip(req)
	switch {
	case errors.Is(err, hosterr.ErrGuest):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", hosterr.ErrGuest, err)
	case resp.StatusCode >= http.StatusBadRequest:
		defer resp.Body.Close()
		return nil, asRefusal(resp)
	case resp.StatusCode >= http.StatusMultipleChoices && resp.StatusCode != http.StatusNotModified:
		resp.Body.Close()
		return nil, fmt.Errorf("%w: it answered %s", hosterr.ErrGuest, resp.Status)
	}
	return resp, nil
}

func (t *transfer) dial(context.Context) (net.Conn, error) {
	conn, err := t.guests.dialLinked(t.link.ctx, t.link)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		conn.Close()
		return nil, net.ErrClosed
	}
	t.conn = conn
	return conn, nil
}

func (t *transfer) close() {
	t.stop()
	t.end()
}

// end closes the connection before the use of the slot is over: net/http would
// close it a moment later.
func (t *transfer) end() {
	t.mu.Lock()
	over := t.over
	t.over = true
	if t.conn != nil {
		if t.link.ctx.Err() != nil {
			linger(t.conn) // cut off, not ended
		}
		t.conn.Close()
	}
	t.mu.Unlock()
	if !over {
		t.link.Leave()
	}
}

type relayedBody struct {
	io.ReadCloser
	transfer *transfer
}

// Read says why a body ended early.
func (b *relayedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.transfer.link.classify(err)
	}
	return n, err
}

func (b *relayedBody) Close() error {
	err := b.ReadCloser.Close()
	b.transfer.close()
	return err
}

// heldAnswer is an answer that is kept in memory: what was read of it counts against the
// budget for input and output until it is freed. A guest may take its time with the rest.
type heldAnswer struct {
	body *relayedBody
	n    int64
	err  error // once there is no more budget
}

// holdAnswer counts what is read of an answer of Relay.
func holdAnswer(resp *http.Response) *heldAnswer { return &heldAnswer{body: resp.Body.(*relayedBody)} }

// Read implements io.Reader.
func (h *heldAnswer) Read(p []byte) (int, error) {
	if h.err != nil {
		return 0, h.err
	}
	n, err := h.body.Read(p)
	if t := h.body.transfer; !t.guests.hold(t.link.line, int64(n)) {
		h.err = fmt.Errorf("%w: their input and output take all that may be held", hosterr.ErrBusy)
		return 0, h.err
	}
	h.n += int64(n)
	return n, err
}

func (h *heldAnswer) free() { h.body.transfer.guests.unhold(h.body.transfer.link.line, h.n) }

// errNoRoute means that the agent does not know the route: it is older than it.
var errNoRoute = errors.New("it does not know the route")

func asRefusal(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		// The agent's HTTP server says this by itself, as plain text.
		return refusedRange(resp)
	}
	var e guestapi.Error
	switch {
	case json.Unmarshal(raw, &e) == nil && e.Error != "":
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w: %w", hosterr.ErrGuest, errNoRoute)
	default:
		return fmt.Errorf("%w: it answered %s", hosterr.ErrGuest, resp.Status)
	}
	return &Refusal{Status: resp.StatusCode, Message: e.Error, Detail: e.Detail}
}

// refusedRange passes on what a refusal of a range says of the whole, if it is a
// length: who answers is the tenant's.
func refusedRange(resp *http.Response) *Refusal {
	says := &Refusal{Status: resp.StatusCode, Message: "invalid range", Detail: "the file is not so long"}
	raw, ok := strings.CutPrefix(resp.Header.Get("Content-Range"), "bytes */")
	if n, err := strconv.ParseInt(raw, 10, 64); ok && err == nil && n >= 0 {
		says.Detail = fmt.Sprintf("the file is %d bytes long", n)
		says.ContentRange = fmt.Sprintf("bytes */%d", n)
	}
	return says
}

// Ports returns what in the guest of a running box listens.
func (g *Guests) Ports(ctx context.Context, id string) ([]hostapi.Port, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, portsTimeout, fmt.Errorf("%w: it does not say what listens", hosterr.ErrGuest))
	defer cancel()
	resp, err := g.Relay(ctx, id, GuestRequest{Method: http.MethodGet, Path: guestapi.PathPorts})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	nonsense := func(err error) ([]hostapi.Port, error) {
		return nil, fmt.Errorf("%w: decode ports: %w", hosterr.ErrGuest, err)
	}
	// One after the other: in short entries a list takes thirty times its size.
	found := json.NewDecoder(io.LimitReader(resp.Body, maxPorts))
	if begin, err := found.Token(); err != nil || begin != json.Delim('[') {
		return nonsense(errors.Join(err, errors.New("it is no list")))
	}
	out := []hostapi.Port{}
	for len(out) < maxListening && found.More() {
		var p guestapi.ListeningPort
		if err := found.Decode(&p); err != nil {
			return nonsense(err)
		}
		if p.Port < 1 || p.Port > math.MaxUint16 || p.Port == guestapi.Port {
			continue
		}
		out = append(out, hostapi.Port{Port: p.Port, Protocol: p.Protocol, Address: p.Address, Process: p.Process, PID: p.PID})
	}
	if len(out) == maxListening {
		return out, nil
	}
	if end, err := found.Token(); err != nil || end != json.Delim(']') {
		return nonsense(errors.Join(err, errors.New("it has no end")))
	}
	return out, nil
}

// Lines is who is handed a log.
type Lines struct {
	Began func()                      // called once, before the first line
	Emit  func(hostapi.LogLine) error // an error of it ends the log
}

// StartLogs hands on the lines that the start command of a running box's
// template has written, and with follow those to come until ctx ends. stream is
// one of guestapi's. A negative tail is all of them.
func (g *Guests) StartLogs(ctx context.Context, id, stream string, tail int, follow bool, out Lines) error {
	query := url.Values{"stream": {stream}}
	if tail >= 0 {
		query.Set("tail", strconv.Itoa(tail))
	}
	if follow {
		query.Set("follow", "true")
	}
	resp, err := g.Relay(ctx, id, GuestRequest{Method: http.MethodGet, Path: guestapi.PathLogs, Query: query})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	out.Began()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 4<<10), maxLogLine)
	for lines.Scan() {
		var l guestapi.LogLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("%w: decode a line of its log: %w", hosterr.ErrGuest, err)
		}
		if l.Stream != guestapi.StreamStdout && l.Stream != guestapi.StreamStderr {
			return fmt.Errorf("%w: its log has a stream that does not exist", hosterr.ErrGuest)
		}
		if err := out.Emit(hostapi.LogLine{Stream: l.Stream, Time: l.Time, Line: l.Line, Partial: l.Partial}); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: read its log: %w", hosterr.ErrGuest, err)
	}
	return nil
}
