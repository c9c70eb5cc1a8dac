package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/events"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

func withEvents(t *testing.T, into **events.Recorder) func(*Config) {
	return func(c *Config) {
		r, err := events.Open(events.Config{Dir: t.TempDir(), HostID: "h1", BootID: "b", Log: slog.New(slog.DiscardHandler)})
		must(t, err)
		c.Events, *into = r, r
	}
}

func TestEventsAreListedFollowedAndPosted(t *testing.T) {
	var r *events.Recorder
	l := goLive(t, withEvents(t, &r))
	ctx := t.Context()
	if _, err := l.Events(ctx, id, hostapi.EventQuery{}); !hostapi.HasCode(err, hostapi.CodeNotFound) {
		t.Errorf("events of a stranger = %v", err)
	}
	if _, err := l.FollowEvents(ctx, id, hostapi.EventQuery{}); !hostapi.HasCode(err, hostapi.CodeNotFound) {
		t.Errorf("follow a stranger = %v", err)
	}
	r.Open(id, "ws", "base")
	follower, err := l.FollowEvents(ctx, id, hostapi.EventQuery{})
	must(t, err)
	defer follower.Close()
	r.Emit(id, hostapi.EventPaused, "one", nil)
	first, err := follower.Next()
	if err != nil || first.Message != "one" {
		t.Errorf("followed %+v, %v", first, err)
	}
	for range 2 {
		must(t, l.PostEvent(ctx, id, hostapi.NewEvent{Key: "k", Type: hostapi.EventForkStaged, Message: "two"}))
	}
	if e, err := follower.Next(); err != nil || e.Message != "two" {
		t.Errorf("followed %+v, %v", e, err)
	}
	list, err := l.Events(ctx, id, hostapi.EventQuery{Since: first.Time})
	if err != nil || len(list) != 1 || list[0].Message != "two" {
		t.Errorf("since the first: %+v, %v", list, err)
	}
	if list, err = l.Events(ctx, id, hostapi.EventQuery{Tail: new(0)}); err != nil || len(list) != 0 {
		t.Errorf("tail 0: %+v, %v", list, err)
	}
	r.Close(id)
	if _, err := follower.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end of the sandbox: %v, want io.EOF", err)
	}
	for name, query := range map[string]string{"a tail in words": "tail=ten", "a negative tail": "tail=-1", "no time": "since=yesterday"} {
		status, body := serveHTTP(l.server.handler(), "GET", "/v1/boxes/"+id+"/events?"+query, "")
		if status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
}

func TestFollowersAreSentAwayWhenTheDaemonStops(t *testing.T) {
	var r *events.Recorder
	l := goLive(t, withEvents(t, &r))
	r.Open(id, "ws", "base")
	follower, err := l.FollowEvents(t.Context(), id, hostapi.EventQuery{})
	must(t, err)
	defer follower.Close()
	must(t, l.stop()) // an error if it had to wait for them
	if _, err := follower.Next(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("end of the stream = %v, want an error that is no end", err)
	}
}

func TestAFollowerEndsWithItsContext(t *testing.T) {
	var r *events.Recorder
	l := goLive(t, withEvents(t, &r))
	r.Open(id, "ws", "base")
	ctx, cancel := context.WithCancel(t.Context())
	follower, err := l.FollowEvents(ctx, id, hostapi.EventQuery{})
	must(t, err)
	defer follower.Close()
	cancel()
	if _, err := follower.Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("next = %v, want context.Canceled", err)
	}
}

// serial is a box's console as its VMM writes it.
func serial(t *testing.T, l *live) *os.File {
	path := l.world.Paths.Serial(id)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestTheConsoleIsReadAndFollowed(t *testing.T) {
	l := goLive(t)
	f := serial(t, l)
	write := func(text string) {
		t.Helper()
		_, err := f.WriteString(text)
		must(t, err)
	}
	write("one\r\ntwo\r\nthree\xff\r\nhalf")
	read := func(q hostapi.LogQuery) string {
		t.Helper()
		body, err := l.Logs(t.Context(), id, q)
		must(t, err)
		defer body.Close()
		raw, err := io.ReadAll(body)
		must(t, err)
		return string(raw)
	}
	if got := read(hostapi.LogQuery{Stream: "console"}); got != "one\ntwo\nthree\uFFFD\nhalf\n" {
		t.Errorf("console = %q", got)
	}
	if got := read(hostapi.LogQuery{Stream: "console", Tail: 2}); got != "three\uFFFD\nhalf\n" {
		t.Errorf("its last two lines = %q", got)
	}
	follower, err := l.FollowLogs(t.Context(), id, hostapi.LogQuery{Stream: "console", Tail: 1})
	must(t, err)
	defer follower.Close()
	next := func(want string) {
		t.Helper()
		if line, err := follower.Next(); err != nil || line.Line != want || line.Stream != "console" {
			t.Errorf("followed %+v, %v, want %q", line, err, want)
		}
	}
	next("three\uFFFD")
	write(" a line\r\n")
	next("half a line")
	// The VMM empties the file when it is restored.
	must(t, f.Truncate(0))
	_, err = f.Seek(0, io.SeekStart)
	must(t, err)
	write("1\r\n")
	next("1")
	// Its beginning is given back while it grows.
	write(strings.Repeat("x", 8191) + "\n")
	next(strings.Repeat("x", 8191))
	must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 8000))
	write("after the hole\r\n")
	next("after the hole")
	// A wake makes another file.
	must(t, os.Rename(f.Name(), f.Name()+".old"))
	f = serial(t, l)
	write("another life\r\n")
	next("another life")
	// What lies there is not believed to be a log.
	must(t, os.Remove(f.Name()))
	must(t, os.Symlink("/etc/passwd", f.Name()))
	if got := read(hostapi.LogQuery{Stream: "console"}); got != "" {
		t.Errorf("through a link: %q", got)
	}
	if _, err := l.Logs(t.Context(), id, hostapi.LogQuery{Stream: "neither"}); !hostapi.HasCode(err, hostapi.CodeInvalid) {
		t.Errorf("an odd stream = %v", err)
	}
}

func TestAHoleInTheConsoleIsNoText(t *testing.T) {
	l := goLive(t)
	f := serial(t, l)
	_, err := f.WriteAt([]byte("the end\r\n"), 3<<20)
	must(t, err)
	body, err := l.Logs(t.Context(), id, hostapi.LogQuery{Stream: "console"})
	must(t, err)
	defer body.Close()
	if raw, err := io.ReadAll(body); err != nil || string(raw) != "the end\n" {
		t.Errorf("console = %q, %v", raw, err)
	}
}

func TestPartsThatAreNotThereSaySo(t *testing.T) {
	f := serve(t, &boxes{}, "replica:r1")
	ctx := t.Context()
	for name, err := range map[string]error{
		"captures": second(f.Captures(ctx)), "volumes": second(f.Volumes(ctx)), "a build": second(f.Build(ctx, "b")),
		"a template": f.DeleteTemplate(ctx, "t"), "events": second(f.Events(ctx, id, hostapi.EventQuery{})),
		"files": second(f.FS(ctx, "GET", id, hostapi.FSStat, at("/"), nil, nil)), "ports": second(f.Ports(ctx, id)),
		"a stream":      second(f.ExecStream(ctx, id, hostapi.ExecStream{Argv: []string{"x"}})),
		"a command":     second(f.Bind(hostapi.Binding{}).Exec(ctx, id, hostapi.ExecRequest{Argv: []string{"x"}})),
		"a build's log": second(f.BuildLogs(ctx, "b")),
	} {
		var e *hostapi.Error
		if !errors.As(err, &e) || e.Code != hostapi.CodeInvalid || e.HTTPStatus != http.StatusNotImplemented {
			t.Errorf("%s: %v, want 501", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
