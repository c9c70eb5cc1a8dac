package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// A guest's programs may do their worst: the caller gets a clear answer, and
// the neighbour on the same host notices nothing.
func TestGuestsThatMisbehave(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	neighbours := map[string]*api.Sandbox{} // by host
	// Each goes where there is more room, which other tests take and give back.
	for n := 0; len(neighbours) < len(theStack.HostProc); n++ {
		s := c.create(t)
		if neighbours[s.AgentID] == nil {
			neighbours[s.AgentID] = s
		}
		if n == 20 {
			t.Fatalf("%d sandboxes, and a host without one: %v", n, neighbours)
		}
	}
	// victim makes a sandbox beside a neighbour, and returns both.
	victim := func(t *testing.T) (*api.Sandbox, *api.Sandbox) {
		s := c.create(t)
		n := neighbours[s.AgentID]
		if n == nil {
			t.Fatalf("no neighbour on %s", s.AgentID)
		}
		return s, n
	}

	t.Run("output of 256 MiB", func(t *testing.T) {
		s, n := victim(t)
		got, err := c.Exec(t.Context(), s.ID, api.Exec{
			Cmd: api.Shell(`python3 -c 'import os
for _ in range(4096): os.write(1, b"x" * 65536)'; echo the end >&2`),
			TimeoutSeconds: new(int64(300)),
		})
		if err != nil {
			t.Fatal(err)
		}
		const kept = 8 << 20
		if !got.Truncated || len(got.Stdout) != kept || got.ExitCode != 0 || got.Stderr != "the end\n" {
			t.Errorf("truncated %t, %d bytes kept, code %d, stderr %q; want the first %d bytes and the whole of stderr",
				got.Truncated, len(got.Stdout), got.ExitCode, clip(got.Stderr), kept)
		}
		c.answers(t, n.ID)
	})

	t.Run("a fork bomb", func(t *testing.T) {
		s, n := victim(t)
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		got, err := c.Exec(ctx, s.ID, api.Exec{Cmd: api.Shell("b() { b | b & }; b; sleep 100"), TimeoutSeconds: new(int64(5))})
		// The group is killed at the time-out, or the guest is too busy to say so.
		switch {
		case err == nil && !got.TimedOut && got.ExitCode == 0:
			t.Errorf("it ended well: %+v", got)
		case errors.Is(err, context.DeadlineExceeded):
			t.Error("no answer within 90 s")
		case err != nil && api.StatusOf(err) != 502 && api.StatusOf(err) != 409:
			t.Errorf("got %v", err)
		}
		c.answers(t, n.ID)
	})

	t.Run("a full disk", func(t *testing.T) {
		s, n := victim(t)
		got, err := c.Exec(t.Context(), s.ID, api.Exec{TimeoutSeconds: new(int64(120)), Cmd: api.Shell(
			// Reserving takes no time and no disk of the host's; the rest is written.
			`free=$(df --output=avail -B1 / | tail -n 1); fallocate -l $((free - 33554432)) /reserved
cat /dev/zero > /fill; echo "cat: $?"; rm -f /reserved; rm /fill && echo more > /more && cat /more`)})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(got.Stderr, "No space left on device") || !strings.HasSuffix(got.Stdout, "cat: 1\nmore\n") {
			t.Errorf("got %+v", got)
		}
		c.answers(t, s.ID)
		c.answers(t, n.ID)
	})

	t.Run("full memory", func(t *testing.T) {
		s, n := victim(t)
		got, err := c.Exec(t.Context(), s.ID, api.Exec{TimeoutSeconds: new(int64(120)),
			Cmd: api.Shell(`python3 -c 'a = []
while True: a.append(bytearray(1 << 20))'; echo "python: $?"`)})
		if err != nil {
			t.Fatal(err)
		}
		if got.TimedOut || strings.Contains(got.Stdout, "python: 0") {
			t.Errorf("got %+v", got)
		}
		c.answers(t, s.ID)
		c.answers(t, n.ID)
	})

	for name, end := range map[string]struct{ key, why string }{
		"a guest that powers itself off": {"o", ""},
		"a guest that reboots":           {"b", "rebooted"},
		"a guest whose kernel crashes":   {"c", "rebooted"},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := victim(t)
			_, err := c.Exec(t.Context(), s.ID, api.Exec{Cmd: api.Shell("echo " + end.key + " > /proc/sysrq-trigger; sleep 60"), TimeoutSeconds: new(int64(30))})
			if status := api.StatusOf(err); status != 502 && status != 404 && status != 409 {
				t.Errorf("exec into a guest that is gone: %v", err)
			}
			eventually(t, 20*time.Second, "the sandbox is failed", func(ctx context.Context) error {
				got, err := c.GetSandbox(ctx, s.ID)
				if err == nil && (got.Status != api.SandboxFailed || got.Error == nil || !strings.Contains(*got.Error, end.why)) {
					err = fmt.Errorf("it is %s, error %v", got.Status, got.Error)
				}
				return err
			})
			c.told(t, s.ID, "sandbox.running", "vm.died")
			c.answers(t, n.ID)
		})
	}
}
