package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/guest/startlog"
)

// startWithLog runs an agent that has the log of what is written to the two ends.
func startWithLog(t *testing.T) (w *world, stdout, stderr *os.File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "start.log")
	log := startlog.NewWriter(path)
	stdout, err := log.Pipe(guestapi.StreamStdout)
	must(t, err)
	stderr, err = log.Pipe(guestapi.StreamStderr)
	must(t, err)
	t.Cleanup(func() { stdout.Close(); stderr.Close() })
	return start(t, func(cfg *Config) { cfg.StartLog = path }), stdout, stderr
}

func TestLogsAreSent(t *testing.T) {
	w, stdout, stderr := startWithLog(t)
	q := guestclient.LogQuery{Stream: "both", Tail: 2}
	lines := func(q guestclient.LogQuery) (got []string) {
		must(t, w.client.Logs(t.Context(), q, func(l guestapi.LogLine) error {
			got = append(got, l.Stream+" "+l.Line)
			return nil
		}))
		return got
	}
	if got := lines(q); len(got) != 0 {
		t.Errorf("before the first line: %q", got)
	}
	for i := range 3 {
		fmt.Fprintf(stdout, "out <%d>\n", i)
		await(t, "the line", func() bool { return strings.Contains(fmt.Sprint(lines(q)), fmt.Sprintf("<%d>", i)) })
	}
	fmt.Fprintln(stderr, strings.Repeat("\x01", 2*guestapi.MaxLine)) // each byte is six in JSON
	await(t, "the long line", func() bool { return len(lines(guestclient.LogQuery{Stream: "stderr", Tail: 10})) == 2 })
	if got := lines(guestclient.LogQuery{Stream: "stdout", Tail: 2}); fmt.Sprint(got) != "[stdout out <1> stdout out <2>]" {
		t.Errorf("got %q", got)
	}
	// More lines than were ever written, and no number at all: all of them.
	for _, query := range []string{"tail=20000", ""} {
		resp, raw := w.do(t, http.MethodGet, guestapi.PathLogs, "", "&"+query, nil)
		if resp.StatusCode != 200 || strings.Count(string(raw), "\n") != 5 {
			t.Errorf("%q: %d, %d lines", query, resp.StatusCode, strings.Count(string(raw), "\n"))
		}
	}
	for query, want := range map[string]string{
		"stream=console": "invalid stream", "tail=-1": "invalid tail", "tail=x": "invalid tail", "follow=maybe": "invalid follow",
	} {
		resp, raw := w.do(t, http.MethodGet, guestapi.PathLogs, "", "&"+query, nil)
		if resp.StatusCode != 400 || !strings.Contains(string(raw), want) {
			t.Errorf("%s: %d %s", query, resp.StatusCode, raw)
		}
	}
}

func TestLogsAreFollowed(t *testing.T) {
	w, stdout, stderr := startWithLog(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got, done := make(chan string, 10), make(chan error, 1)
	follow := func(ctx context.Context) {
		done <- w.client.Logs(ctx, guestclient.LogQuery{Tail: 10, Follow: true}, func(l guestapi.LogLine) error {
			got <- l.Stream + " " + l.Line
			return nil
		})
	}
	go follow(ctx)
	for i := range 3 {
		fmt.Fprintf(stdout, "out %d\n", i)
		if line := <-got; line != fmt.Sprintf("stdout out %d", i) {
			t.Errorf("got %q", line)
		}
		fmt.Fprintf(stderr, "err %d\n", i)
		if line := <-got; line != fmt.Sprintf("stderr err %d", i) {
			t.Errorf("got %q", line)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	none := func() bool { return w.followers() == 0 }
	await(t, "the end of the request", none)

	// A follower of the guest that this one was restored from hears nothing.
	go follow(t.Context())
	for range 6 {
		<-got
	}
	await(t, "the request", func() bool { return w.followers() == 1 })
	_, err := w.client.Identity(t.Context(), testIdentity(7))
	must(t, err)
	if err := <-done; err == nil {
		t.Error("the follower was told that this is the end of the log")
	}
	await(t, "the end of the request", none)
}

// Those who follow output and those who transfer files have limits of their own.
func TestTooManyTransfersAreRefused(t *testing.T) {
	w, _, _ := startWithLog(t)
	dir := t.TempDir()
	follow := func(ctx context.Context) error {
		return w.client.Logs(ctx, guestclient.LogQuery{Follow: true}, func(guestapi.LogLine) error { return nil })
	}
	stat := func(ctx context.Context) error {
		_, err := w.client.Stat(ctx, "/")
		return err
	}
	refused := func(what string, err error) {
		t.Helper()
		var e *guestclient.Error
		if !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, c := range []struct {
		what    string
		begin   func(ctx context.Context) error
		count   func() int
		most    int
		refused func(ctx context.Context) error
		others  func(ctx context.Context) error
	}{
		{"followers", follow, w.followers, maxFollowers, follow, stat},
		{"uploads", func(ctx context.Context) error {
			body, end := io.Pipe()
			defer context.AfterFunc(ctx, func() { _ = end.Close() })()
			_, err := w.client.WriteFile(ctx, filepath.Join(dir, "file"), 0o600, body, 1)
			return err
		}, w.transfers, maxTransfers, stat, nil},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, c.most)
		for range c.most {
			go func() { ended <- c.begin(ctx) }()
		}
		await(t, c.what, func() bool { return c.count() == c.most })
		refused("one more than the "+c.what, c.refused(ctx))
		if c.others != nil {
			if err := c.others(ctx); err != nil {
				t.Errorf("beside %s: %v", c.what, err)
			}
		}
		cancel()
		for range c.most {
			<-ended
		}
		await(t, "room", func() bool { return c.count() == 0 && stat(t.Context()) == nil })
	}
}
