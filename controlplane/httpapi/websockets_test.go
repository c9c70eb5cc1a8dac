package httpapi

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// dial opens a WebSocket to the rig.
func (r *rig) dial(t *testing.T, path string) *websocket.Conn {
	t.Helper()
	ws, resp, err := websocket.Dial(t.Context(), r.server().URL+"/v1/sandboxes/"+testID+path, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer tenant"}, "Origin": {"https://elsewhere.example"}},
	})
	if err != nil {
		t.Fatalf("%v, %+v", err, resp)
	}
	t.Cleanup(func() { ws.CloseNow() })
	ws.SetReadLimit(-1)
	return ws
}

// TestGarbageOnWebSockets: each kind of garbage has its close code and ends the
// process.
func TestGarbageOnWebSockets(t *testing.T) {
	text, binary := websocket.MessageText, websocket.MessageBinary
	request := []byte(`{"cmd":"cat"}`)
	type message struct {
		kind websocket.MessageType
		data []byte
	}
	for name, c := range map[string]struct {
		path string
		in   []message
		code websocket.StatusCode
	}{
		"ws: a binary request":        {"/exec/ws", []message{{binary, request}}, 1003},
		"ws: no JSON":                 {"/exec/ws", []message{{text, []byte("ls")}}, 1008},
		"ws: no command":              {"/exec/ws", []message{{text, []byte("{}")}}, 1008},
		"ws: a request too long":      {"/exec/ws", []message{{text, make([]byte, maxExecBody+1)}}, 1009},
		"ws: a binary frame":          {"/exec/ws", []message{{text, request}, {binary, []byte("x")}}, 1003},
		"ws: a frame that is none":    {"/exec/ws", []message{{text, request}, {text, []byte("x")}}, 1008},
		"ws: an array":                {"/exec/ws", []message{{text, request}, {text, []byte("[]")}}, 1008},
		"ws: an unknown type":         {"/exec/ws", []message{{text, request}, {text, []byte(`{"type":"reboot"}`)}}, 1008},
		"ws: a resize":                {"/exec/ws", []message{{text, request}, {text, []byte(`{"type":"resize","cols":1,"rows":1}`)}}, 1008},
		"ws: an unknown signal":       {"/exec/ws", []message{{text, request}, {text, []byte(`{"type":"signal","signal":"9"}`)}}, 1008},
		"ws: no base64":               {"/exec/ws", []message{{text, request}, {text, []byte(`{"type":"stdin","data":"!","encoding":"base64"}`)}}, 1008},
		"ws: another encoding":        {"/exec/ws", []message{{text, request}, {text, []byte(`{"type":"stdin","data":"!","encoding":"hex"}`)}}, 1008},
		"ws: a number for a text":     {"/exec/ws", []message{{text, request}, {text, []byte(`{"type":"stdin","data":1}`)}}, 1008},
		"ws: a frame too long":        {"/exec/ws", []message{{text, request}, {text, make([]byte, maxFrame+1)}}, 1009},
		"pty: a frame that is none":   {"/exec/pty", []message{{text, []byte("x")}}, 1008},
		"pty: stdin as a frame":       {"/exec/pty", []message{{text, []byte(`{"type":"stdin","data":"x"}`)}}, 1008},
		"pty: no columns":             {"/exec/pty", []message{{text, []byte(`{"type":"resize","cols":0,"rows":1}`)}}, 1008},
		"pty: too many rows":          {"/exec/pty", []message{{text, []byte(`{"type":"resize","cols":1,"rows":1001}`)}}, 1008},
		"pty: a negative size":        {"/exec/pty", []message{{text, []byte(`{"type":"resize","cols":-1,"rows":1}`)}}, 1008},
		"pty: too much at once":       {"/exec/pty", []message{{binary, make([]byte, maxFrame+1)}}, 1009},
		"lsp: a binary message":       {"/lsp/python", []message{{binary, []byte("{}")}}, 1003},
		"lsp: no JSON":                {"/lsp/python", []message{{text, []byte("Content-Length: 2\r\n\r\n{}")}}, 1008},
		"lsp: a message without end ": {"/lsp/python", []message{{text, make([]byte, maxRPCMessage+1)}}, 1009},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := newRig(t), newProcess()
			started := false
			start := func() (sandbox.Process, error) { started = true; return p, nil }
			r.streams.stream = func(_ context.Context, in api.Exec, _ bool) (sandbox.Process, error) {
				if in.Cmd.IsZero() {
					return nil, invalid("cmd required", "")
				}
				return start()
			}
			r.streams.terminal = func(sandbox.Terminal) (sandbox.Process, error) { return start() }
			r.streams.lsp = func(string) (sandbox.Process, error) { return start() }
			ws := r.dial(t, c.path)
			for _, m := range c.in {
				_ = ws.Write(t.Context(), m.kind, m.data) // it may be closed half way
			}
			var err error
			for err == nil {
				_, _, err = ws.Read(t.Context())
			}
			if got := websocket.CloseStatus(err); got != c.code {
				t.Errorf("closed with %d, want %d: %v", got, c.code, err)
			}
			if started {
				<-p.closed
			}
		})
	}
}

// A client that is still sending when its message is found too large can still read
// the close code.
func TestTooLargeAMessageIsReadToItsEnd(t *testing.T) {
	r, p := newRig(t), newProcess()
	r.streams.terminal = func(sandbox.Terminal) (sandbox.Process, error) { return p, nil }
	ws := r.dial(t, "/exec/pty")
	w, err := ws.Writer(t.Context(), websocket.MessageBinary)
	if err != nil {
		t.Fatal(err)
	}
	network := time.NewTicker(10 * time.Millisecond)
	defer network.Stop()
	for sent := 0; sent < 2*maxFrame; sent += 64 << 10 {
		<-network.C
		if _, err := w.Write(make([]byte, 64<<10)); err != nil {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ws.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("closed with %v", err)
	}
	<-p.closed
}

// TestWebSocketEnds: what the client sees for each way in which a process ends.
func TestWebSocketEnds(t *testing.T) {
	r, p := newRig(t), newProcess()
	r.streams.terminal = func(in sandbox.Terminal) (sandbox.Process, error) {
		if in != (sandbox.Terminal{Cmd: "top", Cwd: "/", User: "me", Cols: 100, Rows: defaultRows}) {
			t.Errorf("%+v", in)
		}
		return p, nil
	}
	ws := r.dial(t, "/exec/pty?cmd=top&cwd=/&user=me&cols=100")
	go func() {
		p.write("stdout", []byte{0x1b, 0xff})
		p.exit(130)
	}()
	kind, data, err := ws.Read(t.Context())
	if err != nil || kind != websocket.MessageBinary || string(data) != "\x1b\xff" {
		t.Fatalf("%v %q, %v", kind, data, err)
	}
	if _, data, err = ws.Read(t.Context()); err != nil || string(data) != `{"type":"exit","exit_code":130,"duration_ms":0,"timed_out":false}` {
		t.Fatalf("%q, %v", data, err)
	}
	if _, _, err = ws.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Fatal(err)
	}
	<-p.closed

	// The client's own end.
	p = newProcess()
	ws = r.dial(t, "/exec/pty?cmd=top&cwd=/&user=me&cols=100")
	ws.CloseNow()
	<-p.closed

	// A language server that exits.
	p = newProcess()
	r.streams.lsp = func(string) (sandbox.Process, error) { return p, nil }
	ws = r.dial(t, "/lsp/python")
	go func() {
		p.write("stderr", []byte("Traceback"))
		p.exit(1)
	}()
	_, _, err = ws.Read(t.Context())
	var closed websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != websocket.StatusInternalError || closed.Reason != "the language server ended with code 1" {
		t.Fatal(err)
	}
	// A language server that does not speak the protocol.
	p = newProcess()
	ws = r.dial(t, "/lsp/python")
	go p.write("stdout", []byte("hello\r\n\r\n"))
	if _, _, err = ws.Read(t.Context()); !errors.As(err, &closed) || closed.Reason != "the language server does not speak its protocol" {
		t.Fatal(err)
	}
}

func TestWebSocketIsRefusedByAStatus(t *testing.T) {
	r := newRig(t)
	r.sandboxes.get = func(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
		if id != testID {
			return api.Sandbox{}, apierror.NotFound()
		}
		return testSandbox(), nil
	}
	for _, path := range []string{"/exec/pty", "/exec/ws", "/lsp/python"} {
		w := r.call(http.MethodGet, "/v1/sandboxes/"+testID+path, "tenant", "")
		if w.Code != 426 || errorOf(t, w).Error != "upgrade required" || w.Header().Get("Upgrade") != "websocket" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if w := r.call(http.MethodGet, "/v1/sandboxes/"+testID[1:]+path, "tenant", ""); w.Code != 404 {
			t.Errorf("%s of nobody's: %d", path, w.Code)
		}
	}
	up := []string{"Connection", "keep-alive, Upgrade", "Upgrade", "websocket"}
	for query, message := range map[string]string{
		"cols=0": "invalid cols", "rows=1001": "invalid rows", "cols=x": "invalid cols", "rows=": "invalid rows", "cols=-1": "invalid cols",
		"cols=1&cols=2": "invalid cols", "cmd=a;b%": "invalid query",
	} {
		if w := r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/exec/pty?"+query, "tenant", "", up...); w.Code != 400 || errorOf(t, w).Error != message {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	r.streams.lsp = func(lang string) (sandbox.Process, error) {
		return nil, &apierror.Error{Code: apierror.ENotFound, Message: "no language server for " + lang}
	}
	if w := r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/lsp/cobol", "tenant", "", up...); w.Code != 404 || errorOf(t, w).Error != "no language server for cobol" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	r.streams.wake = func(string) error {
		return &apierror.Error{Code: apierror.EConflict, Message: "sandbox not running (paused or hibernated) — resume/wake it first"}
	}
	if w := r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/exec/ws", "tenant", "", up...); w.Code != 409 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestCredentialAsSubprotocol(t *testing.T) {
	for name, c := range map[string]struct {
		header http.Header
		want   string
	}{
		"one":               {http.Header{"Sec-Websocket-Protocol": {"berth.v1, bearer.tenant"}}, "Bearer tenant"},
		"on a line each":    {http.Header{"Sec-Websocket-Protocol": {"bearer.tenant", "berth.v1"}}, "Bearer tenant"},
		"two":               {http.Header{"Sec-Websocket-Protocol": {"bearer.tenant,bearer.other"}}, ""},
		"none":              {http.Header{"Sec-Websocket-Protocol": {"berth.v1"}}, ""},
		"beside the header": {http.Header{"Sec-Websocket-Protocol": {"bearer.other"}, "Authorization": {"Bearer tenant"}}, "Bearer tenant"},
	} {
		bearerOfSocket(c.header)
		if got := c.header.Get("Authorization"); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

const handshake = "GET /v1/sandboxes/" + testID + "/exec/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tenant\r\nConnection: Upgrade\r\n" +
	"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// serverFrame reads one short frame from a server.
func serverFrame(t *testing.T, r *bufio.Reader) (opcode byte, payload []byte) {
	t.Helper()
	head := make([]byte, 2)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	payload = make([]byte, head[1]&0x7f)
	if _, err := io.ReadFull(r, payload); err != nil {
		t.Fatal(err)
	}
	return head[0] & 0x0f, payload
}

// skipFrame reads a frame of any length up to 64 KiB.
func skipFrame(r *bufio.Reader) (opcode byte, err error) {
	head := make([]byte, 2)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, err
	}
	n := int(head[1] & 0x7f)
	if n == 126 {
		long := make([]byte, 2)
		if _, err := io.ReadFull(r, long); err != nil {
			return 0, err
		}
		n = int(binary.BigEndian.Uint16(long))
	}
	_, err = r.Discard(n)
	return head[0] & 0x0f, err
}

// TestSilentWebSockets: a client that sends no request, one that answers no
// ping or late, one whose input is not taken, and one that takes nothing.
func TestSilentWebSockets(t *testing.T) {
	open := func(t *testing.T, path string) (*fakeProcess, net.Conn, *bufio.Reader) {
		r, p := newRig(t), newProcess()
		r.streams.terminal = func(sandbox.Terminal) (sandbox.Process, error) { return p, nil }
		conn := r.onPipe(t)
		fmt.Fprintf(conn, handshake, path)
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != 101 {
			t.Fatalf("%+v, %v", resp, err)
		}
		return p, conn, in
	}
	t.Run("no request", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, conn, in := open(t, "ws")
			start := time.Now()
			op, payload := serverFrame(t, in)
			if op != 8 || binary.BigEndian.Uint16(payload) != 1008 || time.Since(start) != firstFrameIn {
				t.Errorf("opcode %d %q after %s", op, payload, time.Since(start))
			}
			conn.Close()
		})
	})
	t.Run("no pong", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, conn, in := open(t, "pty")
			start := time.Now()
			if op, _ := serverFrame(t, in); op != 9 || time.Since(start) != socketPingEvery {
				t.Errorf("opcode %d after %s", op, time.Since(start))
			}
			<-p.closed
			if took := time.Since(start); took != socketPingEvery+socketPongIn {
				t.Errorf("ended after %s", took)
			}
			conn.Close()
		})
	})
	t.Run("no pong before the end of a message", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, conn, in := open(t, "pty")
			go func() {
				for {
					if _, err := in.ReadByte(); err != nil { // pings
						return
					}
				}
			}()
			const parts = 10
			head := []byte{0x82, 0xfe, 0, 0, 0, 0, 0, 0} // a binary frame, masked by zeros
			binary.BigEndian.PutUint16(head[2:], parts*1000)
			if _, err := conn.Write(head); err != nil {
				t.Fatal(err)
			}
			for range parts {
				time.Sleep(socketPongIn / 2)
				if _, err := conn.Write(make([]byte, 1000)); err != nil {
					t.Fatalf("a client that sends was taken for gone: %v", err)
				}
			}
			if got := <-p.input; len(got) != len("stdin ")+parts*1000 {
				t.Errorf("%d bytes came", len(got))
			}
			conn.Close()
		})
	})
	t.Run("pongs behind what is read slowly", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, conn, in := open(t, "pty")
			buffered := make(chan byte, 100) // opcodes of what the network holds
			var client sync.WaitGroup
			client.Go(func() {
				defer close(buffered)
				for {
					op, err := skipFrame(in)
					if err != nil {
						return
					}
					buffered <- op
				}
			})
			client.Go(func() {
				for op := range buffered {
					if op == 9 {
						_, _ = conn.Write([]byte{0x8a, 0x80, 0, 0, 0, 0})
						continue
					}
					time.Sleep(time.Second)
				}
			})
			for start := time.Now(); time.Since(start) < 2*slowPongIn; {
				if !p.write("stdout", make([]byte, 1000)) {
					t.Errorf("a client that reads was taken for gone after %s", time.Since(start))
					break
				}
			}
			conn.Close()
			client.Wait()
		})
	})
	t.Run("no pong, but output", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, conn, in := open(t, "pty")
			go io.Copy(io.Discard, in) // the network takes all of it
			for start := time.Now(); p.write("stdout", []byte("x")); time.Sleep(time.Second) {
				if time.Since(start) > slowPongIn+socketPingEvery+socketPongIn {
					t.Fatal("a client that is gone was not found")
				}
			}
			conn.Close()
		})
	})
	t.Run("pings while input is not taken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, conn, in := open(t, "pty")
			for range cap(p.input) + 1 { // the last one waits
				if _, err := conn.Write([]byte{0x82, 0x81, 0, 0, 0, 0, 'x'}); err != nil {
					t.Fatal(err)
				}
			}
			_ = conn.SetReadDeadline(time.Now().Add(time.Hour))
			for range 20 {
				if op, err := skipFrame(in); op != 9 || err != nil {
					t.Fatalf("opcode %d, %v", op, err)
				}
			}
			conn.Close()
			for range cap(p.input) + 1 {
				<-p.input
			}
		})
	})
	t.Run("nothing is taken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, conn, _ := open(t, "pty")
			start := time.Now()
			taken := 0
			for p.write("stdout", make([]byte, 64<<10)) {
				taken++
			}
			if took := time.Since(start); took > stallTimeout || taken > 2 {
				t.Errorf("%d pieces were taken, in %s", taken, took)
			}
			conn.Close()
		})
	})
}
