package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// asleepText is what a command in a paused sandbox is refused with.
const asleepText = "sandbox not running (paused or hibernated) — resume/wake it first"

// make creates a sandbox as asked for, and deletes it when the test ends.
func (c *tenant) make(t *testing.T, in api.CreateSandbox) *api.Sandbox {
	t.Helper()
	if in.Template == "" {
		in.Template = stack.BaseTemplate
	}
	s, err := c.CreateSandbox(t.Context(), in, "")
	if err != nil {
		t.Fatalf("create %+v: %v", in, err)
	}
	c.deleteAtEnd(t, s.ID)
	return s
}

// run is exec without the end of the last line.
func (c *tenant) run(t *testing.T, id, script string) string {
	t.Helper()
	return strings.TrimRight(c.exec(t, id, script), "\n")
}

// moved wants a move to succeed with a status.
func moved(t *testing.T, want api.SandboxStatus) func(*api.Sandbox, error) *api.Sandbox {
	t.Helper()
	return func(s *api.Sandbox, err error) *api.Sandbox {
		t.Helper()
		if err != nil {
			t.Fatalf("it should be %s now: %v", want, err)
		}
		if s.Status != want {
			t.Fatalf("it is %s, want %s", s.Status, want)
		}
		return s
	}
}

// refusal wants an error of the service, with a status and its exact text; text
// "" is any.
func refusal(t *testing.T, err error, status int, text string) *api.Error {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) {
		t.Errorf("got %v, want %d %q", err, status, text)
		return &api.Error{}
	}
	if e.Status != status || text != "" && e.Message != text {
		t.Errorf("got %v, want %d %q", e, status, text)
	}
	return e
}

// becomes waits for a sandbox's status.
func (c *tenant) becomes(t *testing.T, id string, want api.SandboxStatus, most time.Duration) {
	t.Helper()
	eventually(t, most, "the sandbox is "+string(want), func(ctx context.Context) error {
		s, err := c.GetSandbox(ctx, id)
		if err == nil && s.Status != want {
			err = fmt.Errorf("it is %s", s.Status)
		}
		return err
	})
}

// gone waits until nobody knows the sandbox.
func (c *tenant) gone(t *testing.T, id string, most time.Duration) {
	t.Helper()
	eventually(t, most, "the sandbox is gone", func(ctx context.Context) error {
		s, err := c.GetSandbox(ctx, id)
		switch {
		case api.StatusOf(err) == 404:
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("it is %s", s.Status)
	})
}

// events are all that a sandbox's host remembers of it, oldest first, but for
// the probe of its SSH server, which comes when it comes.
func (c *tenant) events(t *testing.T, id string) []api.Event {
	t.Helper()
	all, err := c.Events(t.Context(), id, api.EventQuery{Tail: new(512)})
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	return slices.DeleteFunc(all, func(e api.Event) bool { return e.Type == "sandbox.ssh_ready" })
}

func typesOf(events []api.Event) []string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = e.Type
	}
	return out
}

// told waits until the sandbox's events are of these types, in this order.
func (c *tenant) told(t *testing.T, id string, want ...string) []api.Event {
	t.Helper()
	var got []api.Event
	eventually(t, 10*time.Second, "the events are "+strings.Join(want, ", "), func(context.Context) error {
		got = c.events(t, id)
		if types := typesOf(got); !slices.Equal(types, want) {
			return fmt.Errorf("they are %s", strings.Join(types, ", "))
		}
		return nil
	})
	return got
}

// count is how many events are of a type.
func count(events []api.Event, kind string) int {
	n := 0
	for _, e := range events {
		if e.Type == kind {
			n++
		}
	}
	return n
}

// noSuchProcess waits until nothing in the sandbox has the words on its command
// line. The first letter is in brackets, so that the search does not find itself.
func (c *tenant) noSuchProcess(t *testing.T, id, words string) {
	t.Helper()
	pattern := "[" + words[:1] + "]" + words[1:]
	eventually(t, 20*time.Second, "no process is left of "+words, func(ctx context.Context) error {
		got, err := c.Exec(ctx, id, api.Exec{Cmd: api.Argv("pgrep", "-af", pattern)})
		if err == nil && got.ExitCode != 1 {
			err = fmt.Errorf("there is %q", got.Stdout)
		}
		return err
	})
}

// procValue reads a number of kB out of /proc/<pid>/status.
func procValue(t *testing.T, pid int, name string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	return statusValue(t, string(b), name)
}

func statusValue(t *testing.T, status, name string) int {
	t.Helper()
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %q", name, clip(status))
	return 0
}

// memoryOf watches the most memory that the stack's own processes take.
type memoryOf struct {
	before map[*stack.Process]int
}

func watchMemory(t *testing.T) memoryOf {
	t.Helper()
	m := memoryOf{before: map[*stack.Process]int{}}
	for _, p := range slices.Concat(theStack.Replicas, theStack.HostProc) {
		// 5 forgets the highest value so far.
		if err := os.WriteFile("/proc/"+strconv.Itoa(p.PID())+"/clear_refs", []byte("5"), 0o200); err != nil {
			t.Fatal(err)
		}
		m.before[p] = procValue(t, p.PID(), "VmRSS")
	}
	return m
}

// grewAtMost wants no process to have grown by more at any time since.
func (m memoryOf) grewAtMost(t *testing.T, mostKB int) {
	t.Helper()
	for p, before := range m.before {
		if peak := procValue(t, p.PID(), "VmHWM"); peak-before > mostKB {
			t.Errorf("%s grew from %d kB to %d kB, by more than %d kB", p.ID, before, peak, mostKB)
		}
	}
}

// metadataOf is what an event tells beside its message.
func metadataOf(t *testing.T, e api.Event) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(e.Metadata, &m); err != nil {
		t.Fatalf("%s: metadata %q: %v", e.Type, e.Metadata, err)
	}
	return m
}

// goneOrZombie is content when a process has ended, waited for or not.
func goneOrZombie(pid int) func(context.Context) error {
	return func(context.Context) error {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return nil
		}
		if rest := string(b[strings.LastIndexByte(string(b), ')')+1:]); strings.HasPrefix(rest, " Z") {
			return nil
		}
		return fmt.Errorf("process %d is there", pid)
	}
}

func hexSum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
