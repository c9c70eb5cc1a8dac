package server

import (
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// written reads a command's output to the end of the stream.
func written(t *testing.T, f *hostapi.Follower[hostapi.CommandOutput]) (text string, last hostapi.CommandOutput) {
	t.Helper()
	defer f.Close()
	for {
		o, err := f.Next()
		if errors.Is(err, io.EOF) {
			return text, last
		}
		must(t, err)
		text += string(o.Data)
		last = o
	}
}

func TestCommandsOfAGuest(t *testing.T) {
	l := goLive(t)
	ctx := t.Context()
	req := hostapi.StartCommand{
		Argv: []string{"sh", "-c", "echo one; read line; echo $line >&2; exit 5"}, OpenStdin: true, Text: []byte(`["sh"]`), Key: "k", Digest: "d",
	}
	c, err := l.StartCommand(ctx, id, req)
	must(t, err)
	if c.Exited || string(c.Text) != `["sh"]` || c.StartedAt.IsZero() {
		t.Errorf("started: %+v", c)
	}
	if again, err := l.StartCommand(ctx, id, req); err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("the same key: %+v, %v", again, err)
	}
	follower, err := l.CommandOutput(ctx, id, c.ID, 0, true)
	must(t, err)
	first, err := follower.Next()
	if err != nil || string(first.Data) != "one\n" || first.Stream != "stdout" || first.Offset != 0 {
		t.Errorf("first piece: %+v, %v", first, err)
	}
	must(t, l.WriteCommand(ctx, id, c.ID, hostapi.CommandInput{Data: []byte("two\n"), EOF: true}))
	text, last := written(t, follower)
	if text != "two\n" || last.Exit == nil || last.Exit.ExitCode != 5 || last.Offset != 8 {
		t.Errorf("then %q and %+v", text, last)
	}
	rest, err := l.CommandOutput(ctx, id, c.ID, 2, false)
	must(t, err)
	if text, last := written(t, rest); text != "e\ntwo\n" || last.Exit == nil {
		t.Errorf("since 2: %q and %+v", text, last)
	}
	c, err = l.Command(ctx, id, c.ID)
	if err != nil || !c.Exited || c.ExitCode != 5 || c.EndedAt.IsZero() || c.OutputBytes != 8 {
		t.Errorf("ended: %+v, %v", c, err)
	}
	if list, err := l.Commands(ctx, id); err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], c) {
		t.Errorf("list: %+v, %v", list, err)
	}

	says := func(err error, status int, message string) {
		t.Helper()
		var refusal *hostapi.Error
		if !errors.As(err, &refusal) || refusal.Code != hostapi.CodeGuestSays || refusal.HTTPStatus != status || refusal.Message != message {
			t.Errorf("got %v, want %d %s", err, status, message)
		}
	}
	other := req
	other.Digest = "e"
	_, err = l.StartCommand(ctx, id, other)
	says(err, http.StatusConflict, "idempotency key reused")
	says(l.SignalCommand(ctx, id, c.ID, hostapi.CommandSignal{Signal: "TERM"}), http.StatusConflict, "command has ended")
	says(l.WriteCommand(ctx, id, c.ID, hostapi.CommandInput{Data: []byte("x")}), http.StatusConflict, "command has ended")
	_, err = l.CommandOutput(ctx, id, c.ID, 9, true)
	says(err, http.StatusBadRequest, "invalid since")
	must(t, l.DeleteCommand(ctx, id, c.ID))
	says(l.DeleteCommand(ctx, id, c.ID), http.StatusNotFound, "not found")
	_, err = l.StartCommand(ctx, id, hostapi.StartCommand{Argv: []string{"true"}, Cwd: "/no/such/directory"})
	says(err, http.StatusBadRequest, "invalid cwd")
	for _, bad := range []string{"a/b", "A", strings.Repeat("a", hostapi.MaxCommandID+1)} {
		if _, err := l.Command(ctx, id, bad); !hostapi.HasCode(err, hostapi.CodeInvalid) {
			t.Errorf("id %q: %v", bad, err)
		}
	}
	if _, err := l.StartCommand(ctx, id, hostapi.StartCommand{}); !hostapi.HasCode(err, hostapi.CodeInvalid) {
		t.Errorf("no command: %v", err)
	}
}

func TestCommandOutlivesTheDaemon(t *testing.T) {
	l := goLive(t)
	c, err := l.StartCommand(t.Context(), id, hostapi.StartCommand{Argv: []string{"cat"}, OpenStdin: true})
	must(t, err)
	follower, err := l.CommandOutput(t.Context(), id, c.ID, 0, true)
	must(t, err)
	defer follower.Close()
	must(t, l.stop()) // an error if it had to wait for the follower
	if _, err := follower.Next(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("end of the stream = %v, want an error that is no end", err)
	}
	guests := l.host.Guests()
	if got, err := guests.Command(t.Context(), id, c.ID); err != nil || got.Exited {
		t.Errorf("after it: %+v, %v", got, err)
	}
	must(t, guests.DeleteCommand(t.Context(), id, c.ID))
}
