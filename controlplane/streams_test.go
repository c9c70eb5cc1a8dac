package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// shout is a process that returns its input in capitals, each signal by its name,
// and each size as columns × rows, until its input ends.
func shout(req hostapi.ExecStream, rw io.ReadWriter) {
	out := func(s string) { _ = guestapi.WriteFrame(rw, guestapi.FrameStdout, []byte(s)) }
	if len(req.Argv) == 3 && req.Argv[2] == "euro" { // in two halves
		_ = guestapi.WriteFrame(rw, guestapi.FrameStdout, []byte("€")[:1])
		_ = guestapi.WriteFrame(rw, guestapi.FrameStdout, []byte("€")[1:])
		_ = guestapi.WriteFrame(rw, guestapi.FrameStderr, []byte{0xff, 0})
		_ = fakehost.WriteExit(rw, guestapi.ExecExit{ExitCode: 7, DurationMS: 3})
		return
	}
	out(strings.ToUpper(string(req.Stdin)))
	for {
		kind, data, err := guestapi.ReadFrame(rw, nil)
		if err != nil {
			return
		}
		switch kind {
		case guestapi.FrameStdin:
			out(strings.ToUpper(string(data)))
		case guestapi.FrameSignal:
			out("<" + string(data) + ">")
		case guestapi.FrameResize:
			var size guestapi.TTY
			_ = json.Unmarshal(data, &size)
			out(fmt.Sprintf("%dx%d", size.Cols, size.Rows))
		case guestapi.FrameEOF:
			_ = fakehost.WriteExit(rw, guestapi.ExecExit{ExitCode: 0, DurationMS: 3})
			return
		}
	}
}

// TestStreamsThroughAFollower uses all streaming calls of the Go client through a
// follower.
func TestStreamsThroughAFollower(t *testing.T) {
	s := newStack(t)
	h := s.join("h1", 8192)
	_, key := s.user("ann")
	follower := s.follower()
	c := s.client(key, follower.url)
	sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "")
	if err != nil {
		t.Fatal(err)
	}
	h.SetProcess(shout)
	none := func(t *testing.T) {
		t.Helper()
		testcluster.Await(t, "the end of every stream on the host", func() bool { return h.Streams() == 0 })
	}

	t.Run("exec/stream", func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		exit, err := c.ExecStream(t.Context(), sb.ID, api.Exec{Cmd: api.Shell("euro")}, &stdout, &stderr)
		if err != nil || *exit != (api.Exit{ExitCode: 7, DurationMS: 3}) || stdout.String() != "€" || stderr.String() != "\xff\x00" {
			t.Fatalf("%+v, %v, %q, %q", exit, err, stdout.String(), stderr.String())
		}
		// A client that disconnects ends the command.
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := c.ExecStream(ctx, sb.ID, api.Exec{Cmd: api.Shell("x"), Stdin: "hello"}, w, nil)
			done <- err
		}()
		got := make([]byte, 5)
		if _, err := io.ReadFull(r, got); err != nil || string(got) != "HELLO" {
			t.Fatalf("%q, %v", got, err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		none(t)
	})
	t.Run("a preview of a path that replicas answer themselves", func(t *testing.T) {
		// It must be forwarded to the leader once, and not in circles.
		for _, path := range []string{"/healthz", "/metrics", "/version", "/v1/admin/raft-status"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, follower.url+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = "80-" + strings.Repeat("a", 26) + ".preview.test"
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusNotFound || len(resp.Header.Values("X-Request-Id")) != 1 {
				t.Errorf("%s: %s %v", path, resp.Status, resp.Header)
			}
		}
	})
	t.Run("a command that is cut off", func(t *testing.T) {
		var begun atomic.Int64
		h.SetExec(func(ctx context.Context, id string, _ hostapi.ExecRequest) (hostapi.ExecResult, error) {
			begun.Add(1)
			if _, err := c.HibernateSandbox(ctx, id); err != nil {
				t.Error(err)
			}
			return hostapi.ExecResult{}, &hostapi.Error{Code: hostapi.CodeCutOff, Message: "sandbox stopped while this was under way", Detail: "sandbox stopped while this was under way: it is hibernated"}
		})
		defer h.SetExec(nil)
		_, err := c.Exec(t.Context(), sb.ID, api.Exec{Cmd: api.Shell("x")})
		var refused *api.Error
		if !errors.As(err, &refused) || refused.Status != http.StatusConflict || refused.Message != "sandbox stopped while this was under way" ||
			refused.Detail != "it is hibernated; what had begun is not done again" {
			t.Errorf("%+v", err)
		}
		if b := h.Boxes()[sb.ID]; begun.Load() != 1 || b.Status != hostapi.StatusHibernated {
			t.Errorf("it was begun %d times, the sandbox is %s", begun.Load(), b.Status)
		}
		if _, err := c.WakeSandbox(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("exec/pty", func(t *testing.T) {
		term, err := c.OpenTerminal(t.Context(), sb.ID, api.OpenTerminal{Cols: 100, Rows: 30})
		if err != nil {
			t.Fatal(err)
		}
		defer term.Close()
		lines := bufio.NewReader(term)
		expect := func(want string) {
			t.Helper()
			got := make([]byte, len(want))
			if _, err := io.ReadFull(lines, got); err != nil || string(got) != want {
				t.Fatalf("%q, %v; want %q", got, err, want)
			}
		}
		if _, err := io.WriteString(term, "vim"); err != nil {
			t.Fatal(err)
		}
		expect("VIM")
		if err := term.Resize(120, 40); err != nil {
			t.Fatal(err)
		}
		expect("120x40")
		if err := term.Signal("INT"); err != nil {
			t.Fatal(err)
		}
		expect("<INT>")
		term.Close()
		none(t)
	})
	t.Run("exec/ws", func(t *testing.T) {
		sess, err := c.OpenExec(t.Context(), sb.ID, api.Exec{Cmd: api.Argv("shout"), Stdin: "a"})
		if err != nil {
			t.Fatal(err)
		}
		defer sess.Close()
		for _, step := range []struct {
			do   func() error
			want string
		}{
			{func() error { return nil }, "A"},
			{func() error { _, err := sess.Write([]byte("b\x00\xff")); return err }, "B\x00\xff"},
			{func() error { return sess.Signal("SIGTERM") }, "<TERM>"},
		} {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			stream, data, _, err := sess.Next()
			if want := strings.ToUpper(step.want); err != nil || stream != "stdout" || string(data) != want {
				t.Fatalf("%q %q, %v; want %q", stream, data, err, want)
			}
		}
		if err := sess.CloseInput(); err != nil {
			t.Fatal(err)
		}
		_, _, exit, err := sess.Next()
		if err != nil || exit == nil || exit.ExitCode != 0 {
			t.Fatalf("%+v, %v", exit, err)
		}
		if _, _, _, err := sess.Next(); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		none(t)
	})
	t.Run("lsp", func(t *testing.T) {
		_, err := c.OpenLanguageServer(t.Context(), sb.ID, "python")
		var refusal *api.Error
		if !errors.As(err, &refusal) || refusal.Status != 404 || refusal.Message != "no language server for python" {
			t.Fatal(err)
		}
		if _, err := c.WriteFile(t.Context(), sb.ID, "/etc/berth/lsp/python", "0755", strings.NewReader("#!"), 2); err != nil {
			t.Fatal(err)
		}
		h.SetProcess(func(_ hostapi.ExecStream, rw io.ReadWriter) { // gives back every message, in odd pieces
			for {
				kind, data, err := guestapi.ReadFrame(rw, nil)
				if err != nil || kind != guestapi.FrameStdin {
					return
				}
				for len(data) > 0 {
					n := min(7, len(data))
					if guestapi.WriteFrame(rw, guestapi.FrameStdout, data[:n]) != nil {
						return
					}
					data = data[n:]
				}
			}
		})
		defer h.SetProcess(shout)
		ls, err := c.OpenLanguageServer(t.Context(), sb.ID, "python")
		if err != nil {
			t.Fatal(err)
		}
		defer ls.Close()
		for _, m := range []string{`{"jsonrpc":"2.0","id":1}`, `{"text":"€"}`} {
			if err := ls.Send(json.RawMessage(m)); err != nil {
				t.Fatal(err)
			}
			if got, err := ls.Receive(); err != nil || string(got) != m {
				t.Fatalf("%s, %v", got, err)
			}
		}
	})
	t.Run("a credential as a subprotocol", func(t *testing.T) {
		ws, _, err := websocket.Dial(t.Context(), follower.url+"/v1/sandboxes/"+sb.ID+"/exec/pty", &websocket.DialOptions{
			Subprotocols: []string{"berth.v1", "bearer." + key},
		})
		if err != nil {
			t.Fatal(err)
		}
		if ws.Subprotocol() != "berth.v1" {
			t.Errorf("selected %q", ws.Subprotocol())
		}
		ws.CloseNow()
		// Nowhere else.
		req, _ := http.NewRequestWithContext(t.Context(), "GET", follower.url+"/v1/sandboxes", nil)
		req.Header.Set("Sec-WebSocket-Protocol", "bearer."+key)
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 401 {
			t.Errorf("status %d", resp.StatusCode)
		}
		for _, p := range s.replicas {
			if bytes.Contains(tail(p.log.Name()), []byte(key)) {
				t.Error("the credential is in a log")
			}
		}
		none(t)
	})
	t.Run("files", func(t *testing.T) {
		content := make([]byte, 32<<20)
		rand.Read(content)
		for i, want := range []bool{true, false} {
			isNew, err := c.WriteFile(t.Context(), sb.ID, "/root/a b", "", bytes.NewReader(content), []int64{int64(len(content)), -1}[i])
			if err != nil || isNew != want {
				t.Fatalf("%v, %v", isNew, err)
			}
		}
		f, err := c.ReadFile(t.Context(), sb.ID, "/root/a b")
		if err != nil || f.Size != int64(len(content)) || f.ModifiedAt.Unix() != 1700000000 {
			t.Fatalf("%+v, %v", f, err)
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		f.Close()
		if want := sha256.Sum256(content); err != nil || !bytes.Equal(sum.Sum(nil), want[:]) {
			t.Fatalf("the file came back different, %v", err)
		}
		// An interrupted upload changes nothing.
		broken := io.MultiReader(bytes.NewReader(content[:1<<20]), failing{})
		if _, err := c.WriteFile(t.Context(), sb.ID, "/root/a b", "", broken, int64(len(content))); err == nil {
			t.Fatal("no error")
		}
		if got, _ := h.File("/root/a b"); !bytes.Equal(got, content) {
			t.Fatal("the file was changed")
		}
		if st, err := c.StatFile(t.Context(), sb.ID, "/root/a b"); err != nil || st.SizeBytes != int64(len(content)) || st.Type != "file" {
			t.Fatalf("%+v, %v", st, err)
		}
		past, err := http.NewRequestWithContext(t.Context(), http.MethodGet, follower.url+"/v1/sandboxes/"+sb.ID+"/fs?path=/root/a%20b", nil)
		if err != nil {
			t.Fatal(err)
		}
		past.Header = http.Header{"Authorization": {"Bearer " + key}, "Range": {fmt.Sprintf("bytes=%d-", len(content))}}
		resp, err := http.DefaultClient.Do(past)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if size := resp.Header.Get("Content-Range"); resp.StatusCode != 416 || size != fmt.Sprintf("bytes */%d", len(content)) {
			t.Fatalf("a range past the end: %d, the size is %q", resp.StatusCode, size)
		}
		if dir, err := c.ListDir(t.Context(), sb.ID, "/root"); err != nil || len(dir.Entries) != 1 {
			t.Fatalf("%+v, %v", dir, err)
		}
		if err := errors.Join(c.MakeDir(t.Context(), sb.ID, "/root/d"), c.RemoveFile(t.Context(), sb.ID, "/root/a b", false)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ReadFile(t.Context(), sb.ID, "/root/a b"); api.StatusOf(err) != 404 || !strings.Contains(err.Error(), "no such file or directory") {
			t.Fatal(err)
		}
		if _, err := c.ReadFile(t.Context(), sb.ID, "/"); api.StatusOf(err) != 400 || !strings.Contains(err.Error(), "is a directory") {
			t.Fatal(err)
		}
		for _, bad := range []string{"", "relative", "/a/../b", "/a\x00", "/" + strings.Repeat("x", 4095), ".."} {
			if _, err := c.StatFile(t.Context(), sb.ID, bad); api.StatusOf(err) != 400 {
				t.Errorf("%.20q: %v", bad, err)
			}
		}
		none(t)
	})
	t.Run("logs", func(t *testing.T) {
		h.AddLines(hostapi.LogLine{Stream: "stdout", Line: "one"}, hostapi.LogLine{Stream: "stderr", Line: "two"}, hostapi.LogLine{Stream: "console", Line: "boot"})
		text, err := c.Logs(t.Context(), sb.ID, api.LogQuery{Tail: 5})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(text)
		text.Close()
		if err != nil || string(got) != "one\ntwo\n" {
			t.Fatalf("%q, %v", got, err)
		}
		var lines []string
		enough := errors.New("enough")
		err = c.FollowLogs(t.Context(), sb.ID, api.LogQuery{Stream: "both"}, func(stream string, l api.LogLine) error {
			lines = append(lines, stream+" "+l.Line)
			switch len(lines) {
			case 2:
				h.AddLines(hostapi.LogLine{Stream: "stdout", Line: "three", Time: time.Now()})
			case 3:
				if l.TS == nil {
					t.Error("no time")
				}
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) || strings.Join(lines, ",") != "stdout one,stderr two,stdout three" {
			t.Fatalf("%q, %v", lines, err)
		}
		none(t)
	})
	t.Run("ports", func(t *testing.T) {
		h.SetPorts(hostapi.Port{Port: 22, Protocol: "tcp", Process: "sshd"}, hostapi.Port{Port: 22, Protocol: "tcp", Address: "::"}, hostapi.Port{Port: 53, Protocol: "udp"},
			hostapi.Port{Port: 5432, Protocol: "tcp", Address: "127.0.0.1"}, hostapi.Port{Port: 5432, Protocol: "tcp", Address: "::1"},
			hostapi.Port{Port: 8080, Protocol: "tcp", Address: "::ffff:127.0.0.1"}, hostapi.Port{Port: 8080, Protocol: "tcp", Address: "0.0.0.0"},
			hostapi.Port{Port: 9090, Protocol: "tcp", Address: "127.0.0.53"})
		if p, err := c.AddPort(t.Context(), sb.ID, api.AddPort{Port: 3000, Label: "web"}); err != nil || p.URL != "https://3000-"+sb.ID+".preview.test" {
			t.Fatalf("%+v, %v", p, err)
		}
		ports, err := c.ListPorts(t.Context(), sb.ID)
		if err != nil || len(ports) != 6 || ports[0].Process != "sshd" || ports[0].URL == "" || ports[1].URL != "" || ports[2].Label != "web" {
			t.Fatalf("%+v, %v", ports, err)
		}
		// Previews reach the usual addresses of loopback.
		if ports[2].URL == "" || ports[3].Port != 5432 || ports[3].URL == "" || ports[4].URL == "" || ports[5].Port != 9090 || ports[5].URL != "" {
			t.Errorf("%+v", ports)
		}
		for _, bad := range []api.AddPort{{Port: 0}, {Port: 65536}, {Port: -1}, {Port: 80, Label: strings.Repeat("x", 64)}} {
			if _, err := c.AddPort(t.Context(), sb.ID, bad); api.StatusOf(err) != 400 {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		if err := c.RemovePort(t.Context(), sb.ID, 3000); err != nil {
			t.Fatal(err)
		}
		if err := c.RemovePort(t.Context(), sb.ID, 3000); api.StatusOf(err) != 404 {
			t.Fatal(err)
		}
	})
}

// failing is a body that fails.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the source has gone") }

// TestEventsAreFollowedAcrossALeadersEnd follows a sandbox's events while the
// replica that sends them is killed: without gaps or duplicates.
func TestEventsAreFollowedAcrossALeadersEnd(t *testing.T) {
	s := newStack(t)
	h := s.join("h1", 8192)
	_, key := s.user("ann")
	c := s.client(key)
	sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now().UTC().Truncate(time.Millisecond)
	add := func(n int) {
		h.AddEvents(hostapi.Event{
			Seq: uint64(n), Time: start.Add(time.Duration(n) * time.Millisecond), SandboxID: sb.ID, HostID: "h1",
			Type: hostapi.EventPaused, Code: hostapi.EventOK, Message: fmt.Sprint(n), Metadata: json.RawMessage(`{"n":1}`),
		})
	}
	for n := range 5 {
		add(n)
	}
	if found, err := c.Events(t.Context(), sb.ID, api.EventQuery{}); err != nil || len(found) != 5 || string(found[0].Metadata) != `{"n":1}` {
		t.Fatalf("%+v, %v", found, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tail := 3
	next := 2
	for e, err := range c.FollowEvents(ctx, sb.ID, api.EventQuery{Tail: &tail}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Message != fmt.Sprint(next) {
			t.Fatalf("got event %s, want %d", e.Message, next)
		}
		next++
		switch next {
		case 5:
			s.leader().kill()
			add(5)
			add(6)
		case 7:
			add(7)
		}
		if next == 8 {
			break
		}
	}
	if next != 8 {
		t.Fatalf("it ended before event %d", next)
	}
	// The deletion of a sandbox ends the stream; for an unknown one there is an
	// error.
	done := make(chan error, 1)
	followed := make(chan struct{}, 1)
	go func() {
		var last error
		for _, err := range c.FollowEvents(ctx, sb.ID, api.EventQuery{}) {
			last = err
			select {
			case followed <- struct{}{}:
			default:
			}
		}
		done <- last
	}()
	<-followed
	if err := c.DeleteSandbox(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	h.EndStreams()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, err := range c.FollowEvents(ctx, sb.ID, api.EventQuery{}) {
		if api.StatusOf(err) != 404 {
			t.Fatal(err)
		}
	}
}
