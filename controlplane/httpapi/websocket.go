package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// Limits of a WebSocket.
const (
	socketPingEvery = 20 * time.Second
	socketPongIn    = stallTimeout
	slowPongIn      = 5 * time.Minute  // behind output that a client reads slowly
	firstFrameIn    = 30 * time.Second // for the request of exec/ws to arrive
	maxFrame        = 1 << 20          // message from a client, in bytes
	messageTimeout  = 5 * time.Minute  // for a large message to arrive and to be passed on
	maxReason       = 120              // bytes; the protocol allows 123

	// After a message that is too large, this much more is read, so that a client
	// that is still sending sees why the socket is closed.
	maxExcess = 32 << 20
	excessIn  = 5 * time.Second
)

// Subprotocols. A browser cannot set headers on a WebSocket, so it sends its
// credential as a second subprotocol. The service selects the first one, so the
// credential is not repeated.
const (
	subprotocol       = "berth.v1"
	subprotocolBearer = "bearer."
)

// bearerOfSocket moves a credential from a subprotocol to the header. If there are
// two, it ignores both.
func bearerOfSocket(h http.Header) {
	if len(h.Values("Authorization")) > 0 {
		return
	}
	var offered, tokens []string
	for _, line := range h.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(line, ",") {
			p = strings.TrimSpace(p)
			if token, ok := strings.CutPrefix(p, subprotocolBearer); ok {
				tokens = append(tokens, token)
			} else {
				offered = append(offered, p)
			}
		}
	}
	if len(tokens) == 0 {
		return
	}
	h.Set("Sec-WebSocket-Protocol", strings.Join(offered, ", "))
	if len(tokens) == 1 {
		h.Set("Authorization", "Bearer "+tokens[0])
	}
}

func isUpgrade(h http.Header) bool {
	for token := range strings.SplitSeq(strings.Join(h.Values("Connection"), ","), ",") {
		if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
			return strings.EqualFold(h.Get("Upgrade"), "websocket")
		}
	}
	return false
}

// requireUpgrade refuses a request without an upgrade. Callers who may not see the
// sandbox get not found.
func (a *API) requireUpgrade(c *gin.Context, id string) error {
	if isUpgrade(c.Request.Header) {
		return nil
	}
	if _, err := a.cfg.Sandboxes.Get(c.Request.Context(), callerOf(c), id); err != nil {
		return err
	}
	c.Header("Upgrade", "websocket")
	return errUpgrade
}

// socket is a client's WebSocket.
type socket struct {
	ws    *websocket.Conn
	ctx   context.Context
	limit int64        // of a message from the client, in bytes
	busy  atomic.Bool  // a client's message is being passed on, so nobody reads pongs
	heard atomic.Int64 // grows with what the client sends
	sent  atomic.Int64 // messages to the client
	admit func(bytes int64) (release func(), err error)
}

// accept upgrades the request. After it, errors are frames and close codes.
func (a *API) accept(c *gin.Context) (*socket, error) {
	s := &socket{ctx: c.Request.Context(), limit: maxFrame, admit: func(bytes int64) (func(), error) {
		return a.cfg.Inputs.AdmitInput(c.Request.Context(), callerOf(c), bytes)
	}}
	ws, err := websocket.Accept(c.Writer, c.Request, &websocket.AcceptOptions{
		Subprotocols:   []string{subprotocol},
		OnPongReceived: func(context.Context, []byte) { s.heard.Add(1) }, // late ones too
		// Any origin may connect: there is no cookie that browsers would send by
		// themselves.
		InsecureSkipVerify: true,
	})
	if err != nil {
		// The library has answered: the handshake was malformed.
		return nil, errAnswered
	}
	s.ws = ws
	ws.SetReadLimit(-1) // receive enforces the limit
	return s, nil
}

// receive reads a client's message. A large one counts against the budget of inputs
// until release is called; if that takes too long, late is called. The error for one
// beyond the limit is a *closing.
func (s *socket) receive(ctx context.Context, late func()) (kind websocket.MessageType, data []byte, release func(), err error) {
	kind, r, err := s.ws.Reader(ctx)
	if err != nil {
		return kind, nil, nil, err
	}
	r = io.TeeReader(r, hearing{s})
	data, err = io.ReadAll(io.LimitReader(r, freeInput+1))
	if err != nil || len(data) <= freeInput {
		return kind, data, func() {}, err
	}
	if release, err = s.hold(inputCopies*s.limit, late); err != nil {
		return kind, nil, nil, err
	}
	data, err = io.ReadAll(io.LimitReader(io.MultiReader(bytes.NewReader(data), r), s.limit+1))
	release()
	switch {
	case err != nil:
	case int64(len(data)) > s.limit:
		s.discard(r)
		err = refuse(websocket.StatusMessageTooBig, fmt.Sprintf("a message may have %d bytes", s.limit))
	default: // now its size is known
		release, err = s.hold(inputCopies*int64(len(data)), late)
	}
	return kind, data, release, err
}

// hearing notes that the client sends.
type hearing struct{ s *socket }

// Write implements io.Writer.
func (h hearing) Write(p []byte) (int, error) {
	h.s.heard.Add(1)
	return len(p), nil
}

// discard reads the rest of a message. If a connection is closed with unread data,
// it is reset, and what was sent on it is lost.
func (s *socket) discard(r io.Reader) {
	late := time.AfterFunc(excessIn, func() { _ = s.ws.CloseNow() })
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, r, maxExcess)
}

// hold takes bytes from the budget of inputs until release is called. If that takes
// longer than messageTimeout, it calls late.
func (s *socket) hold(bytes int64, late func()) (release func(), err error) {
	free, err := s.admit(bytes)
	if err != nil {
		return nil, err
	}
	watch := time.AfterFunc(messageTimeout, late)
	return func() { watch.Stop(); free() }, nil
}

// errAnswered means that the request was answered already.
var errAnswered = errors.New("answered already")

// closing is a close code and the reason that the client gets.
type closing struct {
	code   websocket.StatusCode
	reason string
}

// Error implements error.
func (e *closing) Error() string { return e.reason }

func refuse(code websocket.StatusCode, reason string) error {
	return &closing{code, reason[:min(len(reason), maxReason)]}
}

// bridge connects a socket with a process until either ends, and returns when both
// have. in passes on a client's message. out passes on the process's output and
// returns how it ended.
func (s *socket) bridge(p sandbox.Process, in func(kind websocket.MessageType, data []byte) error, out func() error) {
	ctx, cancel := context.WithCancel(s.ctx)
	var work sync.WaitGroup
	work.Go(func() {
		late := func() {
			s.close(refuse(websocket.StatusPolicyViolation, "a large message was not taken in time"))
			_ = p.Close()
		}
		if err := s.read(ctx, in, late); err != nil {
			s.close(err)
		}
		_ = p.Close() // this also ends out
	})
	work.Go(func() { s.keepAlive(ctx) })
	err := out()
	_ = p.Close()
	s.close(err)
	cancel()
	_ = s.ws.CloseNow()
	work.Wait()
}

// read passes on the client's messages until the client is gone, which is not an
// error.
func (s *socket) read(ctx context.Context, in func(kind websocket.MessageType, data []byte) error, late func()) error {
	for {
		kind, data, release, err := s.receive(ctx, late)
		var own *apierror.Error
		var beyond *closing
		switch {
		case errors.As(err, &own), errors.As(err, &beyond):
			return err
		case err != nil:
			return nil //nolint:nilerr // the library has closed it, with the right code
		}
		s.busy.Store(true)
		err = in(kind, data)
		s.busy.Store(false)
		release()
		if err != nil {
			return err
		}
	}
}

// keepAlive closes the connection of a client that is gone without closing it. One that
// sends is there: its pong comes after its message, which takes long over a slow line.
// One that is sent output may have yet to read what came before the ping; if it reads
// nothing, write fails.
func (s *socket) keepAlive(ctx context.Context) {
	tick := time.NewTicker(socketPingEvery)
	defer tick.Stop()
	alive := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		busy, heard, sent := s.busy.Load(), s.heard.Load(), s.sent.Load()
		pctx, cancel := context.WithTimeout(ctx, socketPongIn)
		err := s.ws.Ping(pctx) // also of a busy one, whose client waits for pings
		cancel()
		switch {
		case err == nil, busy, s.busy.Load(), s.heard.Load() != heard:
			alive = time.Now()
		case s.sent.Load() == sent, time.Since(alive) > slowPongIn:
			_ = s.ws.CloseNow()
			return
		}
	}
}

// write sends a message. It fails if the client does not read it in time.
func (s *socket) write(kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(s.ctx, stallTimeout)
	defer cancel()
	err := s.ws.Write(ctx, kind, data)
	if err == nil {
		s.sent.Add(1)
	}
	return err
}

func (s *socket) send(f api.Frame) error {
	raw, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return s.write(websocket.MessageText, raw)
}

// close closes the socket: normally for nil, with the code of a *closing, and for
// other errors after a frame that describes them.
func (s *socket) close(err error) {
	var c *closing
	var own *apierror.Error
	switch {
	case err == nil:
		_ = s.ws.Close(websocket.StatusNormalClosure, "")
	case errors.As(err, &c):
		_ = s.ws.Close(c.code, c.reason)
	case errors.As(err, &own):
		code := websocket.StatusInternalError
		switch own.Code {
		case apierror.EInvalid:
			code = websocket.StatusPolicyViolation
		case apierror.ERateLimited:
			code = websocket.StatusTryAgainLater
		}
		if s.send(api.Frame{Type: "error", Error: own.Message, Detail: own.Detail}) == nil {
			_ = s.ws.Close(code, own.Message[:min(len(own.Message), maxReason)])
		}
	}
	// Any other error means that the client is gone.
	_ = s.ws.CloseNow()
}
