package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// follower reads a command's output from an offset to its end.
type follower struct {
	mu   sync.Mutex
	text strings.Builder
	end  *api.CommandExit
	err  error
	done chan struct{}
}

func (c *tenant) followCommand(t *testing.T, id, command string, since int64) *follower {
	t.Helper()
	f := &follower{done: make(chan struct{})}
	go func() {
		defer close(f.done)
		f.end, f.err = c.FollowCommand(t.Context(), id, command, since, func(p api.CommandPiece) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if p.Gap {
				return fmt.Errorf("a gap to %d", p.Offset)
			}
			f.text.Write(p.Data)
			return nil
		})
	}()
	return f
}

func (f *follower) so() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.String()
}

// counted is how far the counter in a text has come. It fails if a number is missing or
// comes twice.
func counted(t *testing.T, text string) int {
	t.Helper()
	n := 0
	for _, line := range strings.Split(text, "\n") {
		got, err := strconv.Atoi(line)
		if err != nil {
			continue // what is read from the input, or a line that is not whole
		}
		if n++; got != n {
			t.Fatalf("%d where %d should be, in %q", got, n, clip(text))
		}
	}
	return n
}

// readCommand returns what a command has written.
func (c *tenant) readCommand(t *testing.T, id, command string) string {
	t.Helper()
	var b strings.Builder
	if _, err := c.CommandOutput(t.Context(), id, command, 0, func(p api.CommandPiece) error { b.Write(p.Data); return nil }); err != nil {
		t.Fatalf("output: %v", err)
	}
	return b.String()
}

// goesOn waits until a command's counter has passed a number.
func (c *tenant) goesOn(t *testing.T, id, command string, past int) int {
	t.Helper()
	n := 0
	eventually(t, time.Minute, fmt.Sprintf("the counter passes %d", past), func(context.Context) error {
		if n = counted(t, c.readCommand(t, id, command)); n <= past {
			return fmt.Errorf("it is at %d", n)
		}
		return nil
	})
	return n
}

// A command outlives its caller, the host's daemon, hibernation and forks, and whoever
// reads it misses nothing and sees nothing twice.
func TestDetachedCommands(t *testing.T) {
	c := newTenant(t)
	s := c.create(t)
	ctx := t.Context()
	in := api.Exec{Cmd: api.Shell(`echo begin >&2
		exec 3<&0
		(while read line; do echo "read $line"; done; echo closed) <&3 &
		trap 'echo caught; exit 7' TERM
		i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done`)}
	command, err := c.StartCommand(ctx, s.ID, in, "detached")
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.StartCommand(ctx, s.ID, in, "detached")
	if err != nil || again.ID != command.ID || again.Status != api.CommandRunning {
		t.Errorf("the same key: %+v, %v", again, err)
	}
	if _, err := c.StartCommand(ctx, s.ID, api.Exec{Cmd: api.Shell("true")}, "detached"); api.StatusOf(err) != http.StatusConflict {
		t.Errorf("the key with another body: %v", err)
	}
	live := c.followCommand(t, s.ID, command.ID, 0)
	eventually(t, time.Minute, "output comes live", func(context.Context) error {
		if counted(t, live.so()) < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err := c.WriteCommand(ctx, s.ID, command.ID, []byte("one\n"), false); err != nil {
		t.Error(err)
	}
	eventually(t, time.Minute, "the input is read", func(context.Context) error {
		if !strings.Contains(live.so(), "read one\n") {
			return errors.New("not yet")
		}
		return nil
	})

	// The host's daemon dies: the command goes on, and the reader where it was.
	before := counted(t, live.so())
	for _, host := range theStack.HostProc {
		if err := errors.Join(host.Kill9(), host.Start()); err != nil {
			t.Fatal(err)
		}
	}
	healthy(t)
	eventually(t, time.Minute, "the reader goes on after the daemon's death", func(context.Context) error {
		if counted(t, live.so()) <= before+3 {
			return errors.New("not yet")
		}
		return nil
	})

	// It hibernates: who only listens does not wake it, and the command goes on after.
	if _, err := c.HibernateSandbox(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	<-live.done
	var stopped *api.StreamError
	if !errors.As(live.err, &stopped) {
		t.Errorf("a reader of a hibernated sandbox: %+v, %v", live.end, live.err)
	}
	if now, err := c.GetSandbox(ctx, s.ID); err != nil || now.Status != api.SandboxHibernated {
		t.Errorf("after its reader left it is %+v, %v", now, err)
	}
	before = counted(t, live.so())
	at := c.goesOn(t, s.ID, command.ID, before+2) // which wakes it
	again, err = c.StartCommand(ctx, s.ID, in, "detached")
	if err != nil || again.ID != command.ID {
		t.Errorf("the same key after a wake: %+v, %v", again, err)
	}

	// In the children of a fork it goes on, too, each for itself.
	child := c.forkTree(t, s.ID, 1, "").Children[0].ID
	if err := c.WriteCommand(ctx, child, command.ID, []byte("child\n"), true); err != nil {
		t.Error(err)
	}
	c.goesOn(t, s.ID, command.ID, at+2)
	at = c.goesOn(t, child, command.ID, at+2)
	eventually(t, time.Minute, "the child's input ends", func(context.Context) error {
		if !strings.Contains(c.readCommand(t, child, command.ID), "read child\nclosed\n") {
			return errors.New("not yet")
		}
		return nil
	})
	if strings.Contains(c.readCommand(t, s.ID, command.ID), "child") {
		t.Error("the parent has read its child's input")
	}
	if err := c.SignalCommand(ctx, child, command.ID, "TERM"); err != nil {
		t.Error(err)
	}
	ended, err := c.WaitCommand(ctx, child, command.ID)
	if err != nil || ended.Status != api.CommandExited || *ended.ExitCode != 7 || !strings.Contains(c.readCommand(t, child, command.ID), "caught\n") {
		t.Errorf("signalled: %+v, %v", ended, err)
	}
	if now, err := c.GetCommand(ctx, s.ID, command.ID); err != nil || now.Status != api.CommandRunning {
		t.Errorf("the parent's: %+v, %v", now, err)
	}
	c.goesOn(t, s.ID, command.ID, at)

	// A flood takes no memory of the guest, and its end is kept.
	flood, err := c.StartCommand(ctx, s.ID, api.Exec{Cmd: api.Shell("seq 3000000")}, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitCommand(ctx, s.ID, flood.ID); err != nil {
		t.Fatal(err)
	}
	if text := c.readCommand(t, s.ID, flood.ID); len(text) != 8<<20 || !strings.HasSuffix(text, "\n2999999\n3000000\n") {
		t.Errorf("of a flood %d bytes are kept", len(text))
	}

	// Deleted, it is dead and forgotten.
	if err := c.DeleteCommand(ctx, s.ID, command.ID); err != nil {
		t.Error(err)
	}
	if _, err := c.GetCommand(ctx, s.ID, command.ID); api.StatusOf(err) != http.StatusNotFound {
		t.Errorf("deleted: %v", err)
	}
	if got := c.exec(t, s.ID, "pgrep -c sleep || true"); strings.TrimSpace(got) != "0" {
		t.Errorf("%s of its processes run", got)
	}
}
