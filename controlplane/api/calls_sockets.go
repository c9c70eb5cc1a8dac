package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// maxMessage limits the size of a message. The largest are pieces of output, as
// JSON, and messages of language servers.
const maxMessage = 16 << 20

// socketSilence is how long nothing may come, not even one of the pings that the service
// sends every 20 seconds: the other end may be gone without a word.
const socketSilence = 5 * time.Minute

// maxWaiting limits the messages that wait for a slow caller. Behind more, the service's
// pings are not answered, and it takes the client for gone.
const maxWaiting = 256

// socket is a WebSocket to the service. It is read also while its caller is busy: pings
// are answered by who reads.
type socket struct {
	*websocket.Conn
	silence *time.Timer // while listen waits
	in      chan message
	err     error         // why in was closed
	gone    chan struct{} // closed by CloseNow
	leave   sync.Once
}

type message struct {
	kind websocket.MessageType
	data []byte
}

// listen reads until the socket or ctx ends, which then ends the socket.
func (s *socket) listen(ctx context.Context) {
	defer close(s.in)
	defer s.Conn.CloseNow()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.silence = time.AfterFunc(socketSilence, func() { cancel(errSilent) })
	defer s.silence.Stop()
	for {
		s.silence.Reset(socketSilence)
		kind, data, err := s.Conn.Read(ctx)
		s.silence.Stop() // the caller may be slow
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSilent) {
			err = cause
		}
		if err != nil {
			s.err = err
			return
		}
		select {
		case s.in <- message{kind, data}:
		case <-s.gone:
			s.err = net.ErrClosed
			return
		case <-ctx.Done():
			s.err = ctx.Err()
			return
		}
	}
}

// Read waits for the next message. If ctx ends, so does the socket.
func (s *socket) Read(ctx context.Context) (websocket.MessageType, []byte, error) {
	select {
	case m, ok := <-s.in:
		if !ok {
			return 0, nil, s.err
		}
		return m.kind, m.data, nil
	case <-ctx.Done():
		_ = s.CloseNow()
		return 0, nil, ctx.Err()
	}
}

// CloseNow ends the socket.
func (s *socket) CloseNow() error {
	s.leave.Do(func() { close(s.gone) })
	return s.Conn.CloseNow()
}

// dial opens a WebSocket to the first replica that answers.
func (c *Client) dial(ctx context.Context, query url.Values, segments ...string) (*socket, error) {
	first := int(c.last.Load())
	header := http.Header{}
	if c.Token != "" {
		header.Set("Authorization", "Bearer "+c.Token)
	}
	if c.UserAgent != "" {
		header.Set("User-Agent", c.UserAgent)
	}
	if c.RequestID != nil {
		header.Set(HeaderRequestID, c.RequestID())
	}
	var failure error
	for i := range c.urls {
		at := (first + i) % len(c.urls)
		target := c.urls[at].String() + join(segments)
		if len(query) > 0 {
			target += "?" + query.Encode()
		}
		s := &socket{in: make(chan message, maxWaiting), gone: make(chan struct{})}
		attempt, answered, end := c.attended(ctx, c.urls[at])
		ws, resp, err := websocket.Dial(attempt, target, &websocket.DialOptions{
			HTTPClient: c.http, HTTPHeader: header,
			OnPingReceived: func(context.Context, []byte) bool {
				s.silence.Reset(socketSilence) // pings are read by listen
				return true
			},
		})
		frozen := answered()
		end(nil) // the socket has its connection by now
		if err == nil {
			s.Conn = ws
			ws.SetReadLimit(maxMessage)
			go s.listen(ctx)
			c.last.Store(uint32(at))
			return s, nil
		}
		failure = cmp.Or(frozen, withoutPath(err, c.urls[at]))
		if resp != nil && resp.StatusCode >= http.StatusBadRequest {
			failure = errorFrom(resp)
		}
		if StatusOf(failure) == 0 {
			c.away(ctx, at)
		}
		// Nothing starts before the upgrade, so the next replica may be asked.
		if ctx.Err() != nil || StatusOf(failure) != 0 && StatusOf(failure) != http.StatusServiceUnavailable {
			break
		}
	}
	return nil, failure
}

// Terminal is a program on a pseudo-terminal of a sandbox. Read returns its output,
// and io.EOF after it has ended.
type Terminal struct {
	ws   *socket
	ctx  context.Context
	stop context.CancelFunc
	left []byte
	exit *Exit
}

// OpenTerminal says what to run, and the size of the terminal. The zero value is a
// login shell with 80 columns and 24 rows.
type OpenTerminal struct {
	Cmd        string // run by sh -c
	Cwd        string
	User       string
	Cols, Rows uint16
}

// OpenTerminal starts a program on a pseudo-terminal. It ends when the caller closes
// the Terminal or ctx ends.
func (c *Client) OpenTerminal(ctx context.Context, id string, in OpenTerminal) (*Terminal, error) {
	q := url.Values{}
	for name, v := range map[string]string{"cmd": in.Cmd, "cwd": in.Cwd, "user": in.User} {
		if v != "" {
			q.Set(name, v)
		}
	}
	for name, v := range map[string]uint16{"cols": in.Cols, "rows": in.Rows} {
		if v != 0 {
			q.Set(name, strconv.Itoa(int(v)))
		}
	}
	ws, err := c.dial(ctx, q, Version, "sandboxes", id, "exec", "pty")
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	return &Terminal{ws: ws, ctx: ctx, stop: stop}, nil
}

// Read implements io.Reader.
func (t *Terminal) Read(p []byte) (int, error) {
	for len(t.left) == 0 {
		if t.exit != nil {
			return 0, io.EOF
		}
		kind, data, err := t.ws.Read(t.ctx)
		if err != nil {
			return 0, socketError(err)
		}
		if kind == websocket.MessageBinary {
			t.left = data
			continue
		}
		f, err := decodeFrame(data)
		if err != nil {
			return 0, err
		}
		if exit := f.exit(); exit != nil {
			t.exit = exit
		}
	}
	n := copy(p, t.left)
	t.left = t.left[n:]
	return n, nil
}

// Exit returns how the program ended, or nil before Read has returned io.EOF.
func (t *Terminal) Exit() *Exit { return t.exit }

// Write implements io.Writer.
func (t *Terminal) Write(p []byte) (int, error) {
	const most = 256 << 10 // well below the service's limit for a message
	for done := 0; done < len(p); {
		n := min(len(p)-done, most)
		if err := t.ws.Write(t.ctx, websocket.MessageBinary, p[done:done+n]); err != nil {
			return done, socketError(err)
		}
		done += n
	}
	return len(p), nil
}

// Resize changes the terminal's size.
func (t *Terminal) Resize(cols, rows uint16) error {
	return sendFrame(t.ctx, t.ws, Frame{Type: "resize", Cols: cols, Rows: rows})
}

// Signal sends a signal to the program's process group: "INT", "TERM", …
func (t *Terminal) Signal(name string) error {
	return sendFrame(t.ctx, t.ws, Frame{Type: "signal", Signal: name})
}

// Close ends the program.
func (t *Terminal) Close() error {
	t.stop()
	_ = t.ws.CloseNow() // it may be closed already
	return nil
}

// Session is a command in a sandbox whose input is open. Only one goroutine may call
// Next at a time; it is safe to call the other methods meanwhile.
type Session struct {
	ws    *socket
	ctx   context.Context
	stop  context.CancelFunc
	write sync.Mutex
}

// OpenExec starts a command whose input stays open after the input that in contains.
// The command ends when the caller closes the Session or ctx ends.
func (c *Client) OpenExec(ctx context.Context, id string, in Exec) (*Session, error) {
	raw, err := encode(in)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	ws, err := c.dial(ctx, nil, Version, "sandboxes", id, "exec", "ws")
	if err != nil {
		return nil, err
	}
	if err := ws.Write(ctx, websocket.MessageText, raw); err != nil {
		_ = ws.CloseNow()
		return nil, socketError(err)
	}
	ctx, stop := context.WithCancel(ctx)
	return &Session{ws: ws, ctx: ctx, stop: stop}, nil
}

// Next waits for the next output on stream "stdout" or "stderr", or for the end of
// the command, which is an Exit and the last result.
func (s *Session) Next() (stream string, data []byte, exit *Exit, err error) {
	_, raw, err := s.ws.Read(s.ctx)
	if err != nil {
		return "", nil, nil, socketError(err)
	}
	f, err := decodeFrame(raw)
	if err != nil {
		return "", nil, nil, err
	}
	if exit := f.exit(); exit != nil {
		return "", nil, exit, nil
	}
	data, err = decodeData(f.Data, f.Encoding)
	return f.Type, data, nil, err
}

// Write gives the command input. It implements io.Writer.
func (s *Session) Write(p []byte) (int, error) {
	s.write.Lock()
	defer s.write.Unlock()
	const most = 128 << 10 // as base64 well below the service's limit for a message
	for done := 0; done < len(p); {
		n := min(len(p)-done, most)
		o := encodeData(p[done : done+n])
		if err := sendFrame(s.ctx, s.ws, Frame{Type: "stdin", Data: o.Data, Encoding: o.Encoding}); err != nil {
			return done, err
		}
		done += n
	}
	return len(p), nil
}

// CloseInput says that there is no more input.
func (s *Session) CloseInput() error { return sendFrame(s.ctx, s.ws, Frame{Type: "eof"}) }

// Signal sends a signal to the command's process group: "INT", "TERM", …
func (s *Session) Signal(name string) error {
	return sendFrame(s.ctx, s.ws, Frame{Type: "signal", Signal: name})
}

// Close ends the command.
func (s *Session) Close() error {
	s.stop()
	_ = s.ws.CloseNow() // it may be closed already
	return nil
}

// LanguageServer is a language server of a sandbox.
type LanguageServer struct {
	ws   *socket
	ctx  context.Context
	stop context.CancelFunc
}

// OpenLanguageServer starts a sandbox's language server for lang; a 404 where
// its template has none. The caller closes it, which ends the server.
func (c *Client) OpenLanguageServer(ctx context.Context, id, lang string) (*LanguageServer, error) {
	ws, err := c.dial(ctx, nil, Version, "sandboxes", id, "lsp", lang)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	return &LanguageServer{ws: ws, ctx: ctx, stop: stop}, nil
}

// Receive waits for the server's next JSON-RPC message.
func (l *LanguageServer) Receive() (json.RawMessage, error) {
	_, data, err := l.ws.Read(l.ctx)
	if err != nil {
		return nil, socketError(err)
	}
	return data, nil
}

// Send sends a JSON-RPC message to the server.
func (l *LanguageServer) Send(message json.RawMessage) error {
	if err := l.ws.Write(l.ctx, websocket.MessageText, message); err != nil {
		return socketError(err)
	}
	return nil
}

// Close ends the server.
func (l *LanguageServer) Close() error {
	l.stop()
	_ = l.ws.CloseNow() // it may be closed already
	return nil
}

func sendFrame(ctx context.Context, ws *socket, f Frame) error {
	raw, err := encode(f)
	if err != nil {
		return fmt.Errorf("encode frame: %w", err)
	}
	if err := ws.Write(ctx, websocket.MessageText, raw); err != nil {
		return socketError(err)
	}
	return nil
}

func decodeFrame(data []byte) (Frame, error) {
	var f Frame
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("decode frame: %w", err)
	}
	if f.Type == "error" {
		return f, &StreamError{Message: f.Error, Detail: f.Detail}
	}
	return f, nil
}

// socketError converts a close into io.EOF, or into an error with the service's
// reason.
func socketError(err error) error {
	var closed websocket.CloseError
	switch {
	case errors.As(err, &closed) && closed.Code == websocket.StatusNormalClosure:
		return io.EOF
	case errors.As(err, &closed) && closed.Reason != "":
		return &StreamError{Message: closed.Reason}
	}
	return fmt.Errorf("websocket: %w", err)
}
