package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
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

// room is an input budget.
type room struct {
	mu   sync.Mutex
	held int64
	most int64
	full bool
}

func (r *room) admit(bytes int64) (func(), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.full {
		return nil, &apierror.Error{Code: apierror.ERateLimited, Message: "too much input at once"}
	}
	r.held += bytes
	r.most = max(r.most, r.held)
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.held -= bytes
	}), nil
}

func (r *room) now() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// A command's input counts against the budget from before it is read until nothing
// holds it any more.
func TestLargeInputCounts(t *testing.T) {
	const large = 1 << 20
	body := func(stdin int) string { return `{"cmd":"cat","stdin":"` + strings.Repeat("x", stdin) + `"}` }
	r, in := newRig(t), &room{}
	r.streams.admit = in.admit
	during := int64(-1)
	r.streams.exec = func(context.Context, string, api.Exec) (api.ExecResult, error) {
		during = in.now()
		return api.ExecResult{}, nil
	}
	r.streams.stream = func(context.Context, api.Exec, bool) (sandbox.Process, error) {
		during = in.now()
		p := newProcess()
		go p.exit(0)
		return p, nil
	}
	for _, path := range []string{"/exec", "/exec/stream"} {
		path = "/v1/sandboxes/" + testID + path
		for stdin, want := range map[int]int64{1 << 10: 0, large: inputCopies * int64(len(body(large)))} {
			if w := r.call(http.MethodPost, path, "tenant", body(stdin)); w.Code != http.StatusOK || during != want {
				t.Errorf("%s with %d bytes: %d, %d were held, want %d", path, stdin, w.Code, during, want)
			}
			if in.now() != 0 {
				t.Errorf("%s: %d are held afterwards", path, in.now())
			}
		}
		if w := r.call(http.MethodPost, path, "tenant", body(large)+"x"); w.Code != http.StatusBadRequest || in.now() != 0 {
			t.Errorf("%s with a bad body: %d, and %d are held afterwards", path, w.Code, in.now())
		}
		in.full, during = true, -1
		if w := r.call(http.MethodPost, path, "tenant", body(large)); w.Code != http.StatusTooManyRequests || during != -1 {
			t.Errorf("%s without room: %d %s", path, w.Code, w.Body)
		}
		in.full = false
	}
}

// The body of a create counts until it is answered.
func TestLargeEnvironmentsCount(t *testing.T) {
	r, in := newRig(t), &room{}
	r.streams.admit = in.admit
	during := int64(-1)
	r.sandboxes.create = func(context.Context, core.Caller, api.CreateSandbox, core.Idempotency) (api.Sandbox, error) {
		during = in.now()
		return testSandbox(), nil
	}
	for size, copies := range map[int]int64{1 << 10: 0, 1 << 20: inputCopies} {
		body := `{"template":"base","env":{"A":"` + strings.Repeat("x", size) + `"}}`
		if w := r.call(http.MethodPost, "/v1/sandboxes", "tenant", body); w.Code != http.StatusCreated || during != copies*int64(len(body)) || in.now() != 0 {
			t.Errorf("%d bytes: %d, %d were held and %d are", size, w.Code, during, in.now())
		}
	}
	in.full, during = true, -1
	if w := r.call(http.MethodPost, "/v1/sandboxes", "tenant", `{"env":{"A":"`+strings.Repeat("x", 1<<20)+`"}}`); w.Code != http.StatusTooManyRequests || during != -1 {
		t.Errorf("without room: %d %s", w.Code, w.Body)
	}
}

// A large WebSocket message counts too, in either direction, until it has been
// passed on.
func TestLargeMessagesCount(t *testing.T) {
	const size = 200 << 10
	message := `"` + strings.Repeat("x", size-2) + `"`
	start := func(t *testing.T) (*rig, *fakeProcess, *room) {
		r, p, in := newRig(t), newProcess(), &room{}
		r.streams.admit = in.admit
		r.streams.stream = func(context.Context, api.Exec, bool) (sandbox.Process, error) {
			if want := int64(inputCopies * len(`{"cmd":"cat","stdin":}`+message)); in.now() != want {
				t.Errorf("%d bytes are held, want %d", in.now(), want)
			}
			return p, nil
		}
		r.streams.lsp = func(string) (sandbox.Process, error) { return p, nil }
		return r, p, in
	}
	told := fmt.Sprintf("Content-Length: %d\r\n\r\n%s", size, message)
	for name, c := range map[string]struct {
		path, in, out string
		most          int64 // held at once
	}{
		"a request":                   {"/exec/ws", `{"cmd":"cat","stdin":` + message + `}`, "", inputCopies * maxExecBody},
		"to a language server":        {"/lsp/python", message, "", inputCopies * maxRPCMessage},
		"small, to a language server": {"/lsp/python", "{}", "", 0},
		"from a language server":      {"/lsp/python", "", told, inputCopies * size},
	} {
		t.Run(name, func(t *testing.T) {
			r, p, in := start(t)
			ws := r.dial(t, c.path)
			if c.in != "" {
				if err := ws.Write(t.Context(), websocket.MessageText, []byte(c.in)); err != nil {
					t.Fatal(err)
				}
			}
			go func() {
				if c.out != "" {
					p.write("stdout", []byte(c.out))
				} else if c.path == "/lsp/python" {
					<-p.input
				}
				p.exit(0)
			}()
			for err := error(nil); err == nil; {
				_, _, err = ws.Read(t.Context())
			}
			<-p.closed
			for late := time.After(20 * time.Second); in.now() != 0; {
				select {
				case <-late:
					t.Fatalf("%d bytes are held still", in.now())
				case <-time.After(time.Millisecond):
				}
			}
			if in.most != c.most {
				t.Errorf("%d bytes were held, want %d", in.most, c.most)
			}
		})
		t.Run(name+", without room", func(t *testing.T) {
			if c.most == 0 {
				return
			}
			r, p, in := start(t)
			in.full = true
			ws := r.dial(t, c.path)
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			if c.in != "" {
				_ = ws.Write(t.Context(), websocket.MessageText, []byte(c.in)) // it may be closed half way
			}
			if c.out != "" {
				go p.write("stdout", []byte(c.out))
			}
			var err error
			for err == nil {
				_, _, err = ws.Read(ctx)
			}
			if got := websocket.CloseStatus(err); got != websocket.StatusTryAgainLater {
				t.Errorf("closed with %d: %v", got, err)
			}
		})
	}
}

// Room held for a message that is not taken is given up after a while.
func TestALargeMessageIsNotHeldForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, late := &room{}, make(chan struct{})
		s := &socket{admit: in.admit}
		release, err := s.hold(1, func() { t.Error("it was released before") })
		if err != nil {
			t.Fatal(err)
		}
		release()
		if release, err = s.hold(1, func() { close(late) }); err != nil {
			t.Fatal(err)
		}
		<-late
		release()
		if in.now() != 0 {
			t.Errorf("%d bytes are held", in.now())
		}
	})
}
