package controlplane

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// TestCommandsThroughAFollower uses all calls of detached commands of the Go client through
// a follower.
func TestCommandsThroughAFollower(t *testing.T) {
	s := newStack(t)
	h := s.join("h1", 8192)
	_, key := s.user("ann")
	c := s.client(key, s.follower().url)
	ctx := t.Context()
	sb, err := c.CreateSandbox(ctx, api.CreateSandbox{Template: "base"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if list, err := c.ListCommands(ctx, sb.ID); err != nil || list == nil || len(list) != 0 {
		t.Errorf("no commands yet: %v, %v", list, err)
	}
	in := api.Exec{Cmd: api.Argv("wc", "-l")}
	cmd, err := c.StartCommand(ctx, sb.ID, in, "key")
	if err != nil || cmd.Status != api.CommandRunning || cmd.ExitCode != nil || !reflect.DeepEqual(cmd.Cmd, in.Cmd) {
		t.Fatalf("started %+v, %v", cmd, err)
	}
	var text strings.Builder
	each := func(p api.CommandPiece) error { text.Write(p.Data); return nil }
	if end, err := c.CommandOutput(ctx, sb.ID, cmd.ID, 3, each); err != nil || end != nil || text.String() != "-l\n" {
		t.Errorf("since 3: %q, %+v, %v", text.String(), end, err)
	}

	// The stream breaks and goes on; nothing comes twice.
	text.Reset()
	seen := make(chan struct{}, 10)
	done := make(chan error, 1)
	go func() {
		end, err := c.FollowCommand(ctx, sb.ID, cmd.ID, 0, func(p api.CommandPiece) error {
			seen <- struct{}{}
			return each(p)
		})
		if err == nil && (end.ExitCode != 0 || end.Offset != 13) {
			err = errors.New("another end")
		}
		done <- err
	}()
	<-seen
	h.EndStreams()
	if err := c.WriteCommand(ctx, sb.ID, cmd.ID, []byte("\xff\x00two\n"), false); err != nil {
		t.Fatal(err)
	}
	<-seen
	if err := c.WriteCommand(ctx, sb.ID, cmd.ID, []byte("x"), true); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || text.String() != "wc -l\n\xff\x00two\nx" {
		t.Errorf("followed %q, %v", text.String(), err)
	}
	if now, err := c.WaitCommand(ctx, sb.ID, cmd.ID); err != nil || now.Status != api.CommandExited || *now.ExitCode != 0 || now.EndedAt == nil {
		t.Errorf("ended: %+v, %v", now, err)
	}
	again, err := c.StartCommand(ctx, sb.ID, in, "key")
	if err != nil || !reflect.DeepEqual(again, cmd) {
		t.Errorf("the same key: %+v, %v", again, err)
	}
	want := func(err error, status int, message string) {
		t.Helper()
		var e *api.Error
		if !errors.As(err, &e) || e.Status != status || e.Message != message {
			t.Errorf("got %v, want %d %s", err, status, message)
		}
	}
	_, err = c.StartCommand(ctx, sb.ID, api.Exec{Cmd: api.Argv("wc")}, "key")
	want(err, http.StatusConflict, "idempotency key reused")
	want(c.WriteCommand(ctx, sb.ID, cmd.ID, nil, true), http.StatusConflict, "command has ended")
	want(c.SignalCommand(ctx, sb.ID, cmd.ID, "NONE"), http.StatusBadRequest, "invalid signal")
	want(c.SignalCommand(ctx, sb.ID, cmd.ID, "sigterm"), http.StatusConflict, "command has ended")
	_, err = c.CommandOutput(ctx, sb.ID, cmd.ID, 99, each)
	want(err, http.StatusBadRequest, "invalid since")
	_, err = c.GetCommand(ctx, sb.ID, "Another_Id")
	want(err, http.StatusNotFound, "not found")

	// A hibernated sandbox is woken to answer.
	if _, err := c.HibernateSandbox(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	if list, err := c.ListCommands(ctx, sb.ID); err != nil || len(list) != 1 {
		t.Errorf("after a wake: %+v, %v", list, err)
	}
	if err := c.DeleteCommand(ctx, sb.ID, cmd.ID); err != nil {
		t.Error(err)
	}
	_, err = c.GetCommand(ctx, sb.ID, cmd.ID)
	want(err, http.StatusNotFound, "not found")

	// An answer that is lost: the same key gets the same command.
	lost := false
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "commands" && !lost {
			lost = true
			return fakehost.ErrDrop
		}
		return nil
	})
	_, err = c.StartCommand(ctx, sb.ID, in, "")
	want(err, http.StatusBadGateway, "agent unreachable")
	h.SetFault(nil)
	if _, err := c.StartCommand(ctx, sb.ID, in, "lost"); err != nil {
		t.Error(err)
	}

	// Who may not see the sandbox learns nothing of its commands.
	_, other := s.user("bob")
	_, err = s.client(other, s.follower().url).GetCommand(ctx, sb.ID, cmd.ID)
	want(err, http.StatusNotFound, "not found")

	// Whoever stops the sandbox does not want it woken by who only listens.
	cmd, err = c.StartCommand(ctx, sb.ID, in, "")
	if err != nil {
		t.Fatal(err)
	}
	for len(seen) > 0 {
		<-seen
	}
	go func() {
		_, err := c.FollowCommand(ctx, sb.ID, cmd.ID, 0, func(api.CommandPiece) error { seen <- struct{}{}; return nil })
		done <- err
	}()
	<-seen
	if _, err := c.HibernateSandbox(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	h.EndStreams()
	var stopped *api.StreamError
	if err := <-done; !errors.As(err, &stopped) || !strings.Contains(stopped.Message, "hibernated") {
		t.Errorf("a follower of a hibernated sandbox: %v", err)
	}
	if b := h.Boxes()[sb.ID]; b.Status != hostapi.StatusHibernated {
		t.Errorf("it is %s", b.Status)
	}
}
