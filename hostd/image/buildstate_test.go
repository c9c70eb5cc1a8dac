package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
)

// A command that crashes in a loop is running most of the time.
func TestAStartCommandThatFailed(t *testing.T) {
	b := &buildVM{guest: guestclient.New(func(context.Context) (net.Conn, error) { return nil, errors.New("no guest") })}
	for name, c := range map[string]struct {
		start  *guestapi.StartState
		failed bool
	}{
		"there is none":             {nil, false},
		"it runs":                   {&guestapi.StartState{Running: true}, false},
		"it ended well":             {&guestapi.StartState{}, false},
		"it ended badly":            {&guestapi.StartState{ExitCode: 3}, true},
		"it runs after a failure":   {&guestapi.StartState{Running: true, ExitCode: 3, Restarts: 1}, true},
		"it ended well after a try": {&guestapi.StartState{Restarts: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			err := b.startFailed(t.Context(), guestapi.Health{Start: c.start})
			if errors.Is(err, errNotReady) != c.failed {
				t.Errorf("got %v", err)
			}
			if c.failed && c.start.ExitCode == 3 && !strings.Contains(err.Error(), "exit code 3") {
				t.Errorf("%v does not say with what it ended", err)
			}
		})
	}
}

// agent is a VM under build whose agent answers with serve.
func agent(t *testing.T, serve http.HandlerFunc) *buildVM {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	return &buildVM{guest: guestclient.New(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})}
}

// The programs that the warm-up runs come from the template, so their output is not
// trusted.
func TestWhatTheWarmUpPrintsIsNotKept(t *testing.T) {
	const printed = 32 << 20
	piece := make([]byte, guestapi.FrameHeader+32<<10)
	guestapi.PutFrameHeader(piece, guestapi.FrameStdout)
	raw, err := json.Marshal(guestapi.ExecExit{})
	must(t, err)
	b := agent(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+guestapi.Upgrade+"\r\n\r\n")
		for n := 0; n < printed; n += len(piece) {
			if _, err := conn.Write(piece); err != nil {
				return
			}
		}
		_ = guestapi.WriteFrame(conn, guestapi.FrameExit, raw)
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	must(t, b.warmUp(t.Context()))
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken >= printed {
		t.Errorf("%d MB were taken for what it printed", taken>>20)
	}
}

// The template may also have replaced the agent.
func TestALogOfTheStartCommandWithoutEndIsGivenUp(t *testing.T) {
	const enough = 16 << 20
	line, err := json.Marshal(guestapi.LogLine{Stream: guestapi.StreamStdout, Line: strings.Repeat("x", guestapi.MaxLine)})
	must(t, err)
	line = append(line, '\n')
	sent := make(chan int, 1)
	b := agent(t, func(w http.ResponseWriter, _ *http.Request) {
		n := 0
		for n < enough {
			if _, err := w.Write(line); err != nil {
				break
			}
			n += len(line)
		}
		sent <- n
	})
	if out := b.startOutput(t.Context()); out != "" {
		t.Errorf("%d bytes are told", len(out))
	}
	if n := <-sent; n >= enough {
		t.Error("it was read to the end")
	}
	few := agent(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte(`{"line":"a"}`+"\n"), startLines))
	})
	if out := few.startOutput(t.Context()); out != strings.TrimSpace(strings.Repeat("a\n", startLines)) {
		t.Errorf("as many as were asked for: %q", out)
	}
}
