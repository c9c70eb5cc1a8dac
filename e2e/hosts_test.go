package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
)

func TestFullHostsAreRefusedAndFreedMemoryIsUsedAgain(t *testing.T) {
	c := newTenant(t)
	for _, host := range theStack.HostProc {
		withEnv(t, host, "BERTH_MEMORY_MB=4096")
	}
	healthy(t)
	agents, _, err := admin(t).ListAgents(t.Context(), api.Page{})
	if err != nil {
		t.Fatal(err)
	}
	capacity := 0
	for _, a := range agents {
		capacity += a.Capacity.MemoryMB
	}
	const guest = 512
	var made []*api.Sandbox
	used := map[string]int{}
	for {
		s, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: stack.BaseTemplate}, "")
		if err != nil {
			var refused *api.Error
			if !errors.As(err, &refused) || refused.Status != 502 || refused.Message != "no available compute node" {
				t.Fatalf("sandbox %d: %v", len(made)+1, err)
			}
			break
		}
		c.deleteAtEnd(t, s.ID)
		made = append(made, s)
		used[s.AgentID]++
		if guest*len(made) > capacity {
			t.Fatalf("%d sandboxes of %d MB were accepted by hosts with %d MB in all", len(made), guest, capacity)
		}
	}
	// 6 a host fit; both were used before the first refusal.
	if len(used) != len(theStack.HostProc) || len(made) < 8 {
		t.Errorf("sandboxes by host when all was full: %v", used)
	}
	for _, s := range made {
		c.answers(t, s.ID)
	}
	if err := c.DeleteSandbox(t.Context(), made[0].ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the freed memory is given again", func(ctx context.Context) error {
		s, err := c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate}, "")
		if err == nil {
			c.deleteAtEnd(t, s.ID)
		}
		return err
	})
}

func TestDrainedHostGetsNothingNew(t *testing.T) {
	c, operator := newTenant(t), admin(t)
	resident := c.create(t)
	drained := resident.AgentID
	if _, err := operator.DrainAgent(t.Context(), drained); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := operator.UndrainAgent(context.Background(), drained); err != nil {
			t.Error(err)
		}
	})
	for range 3 {
		if s := c.create(t); s.AgentID == drained {
			t.Errorf("host %s is drained and was given a sandbox", drained)
		}
	}
	c.answers(t, resident.ID)
}

// onlyOn drains every other host for the rest of the test.
func onlyOn(t *testing.T, id string) {
	t.Helper()
	operator := admin(t)
	for _, p := range theStack.HostProc {
		if p.ID == id {
			continue
		}
		if _, err := operator.DrainAgent(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := operator.UndrainAgent(context.Background(), p.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// endless is a process that runs until its guest ends.
const endless = "setsid sh -c 'while :; do sleep 1; done' </dev/null >/dev/null 2>&1 & echo $! > /pid"

func TestKilledHostdLeavesItsSandboxesRunning(t *testing.T) {
	c := newTenant(t)
	s := c.create(t)
	host := theStack.Process(s.AgentID)
	c.exec(t, s.ID, endless)
	before := boxOf(t, s)
	restartAtEnd(t, host)
	if err := host.Kill9(); err != nil {
		t.Fatal(err)
	}
	_, err := c.Exec(t.Context(), s.ID, api.Exec{Cmd: api.Argv("true")})
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Status != 502 || refused.Message != "agent unreachable" {
		t.Errorf("exec while the daemon is dead: %v, want 502 agent unreachable", err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	healthy(t)
	if after := boxOf(t, s); after.VMMPID != before.VMMPID || after.Slot != before.Slot || after.Status != hostapi.StatusRunning {
		t.Errorf("before the kill %+v, after it %+v", before, after)
	}
	// The same guest, not a new one: its process lives.
	c.exec(t, s.ID, "kill -0 $(cat /pid)")
	if got, err := c.GetSandbox(t.Context(), s.ID); err != nil || got.Status != api.SandboxRunning {
		t.Errorf("the sandbox is %+v, %v", got, err)
	}
}

func TestHangingHostIsUnreachableNotForEver(t *testing.T) {
	c := newTenant(t)
	s := c.create(t)
	host := theStack.Process(s.AgentID)
	restartAtEnd(t, host)
	if err := host.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timescale.Limit(30*time.Second))
	defer cancel()
	_, err := c.Exec(ctx, s.ID, api.Exec{Cmd: api.Argv("true"), TimeoutSeconds: new(int64(5))})
	if api.StatusOf(err) != http.StatusBadGateway {
		t.Errorf("exec on a host that hangs: %v, want 502", err)
	}
}

// A host that is silent for longer than its lease is lost, and its sandbox failed
// for all that anybody can tell. It runs on there, and is what it was once the host
// is heard again.
func TestSandboxOutlivesASilenceLongerThanTheLease(t *testing.T) {
	dir := stack.Cache(theStack.Root, "e2e", "silence")
	host := []string{"BERTH_SNAPSHOT_STORE="} // into which each would put its templates
	standOn(t, stack.Options{
		Root: theStack.Root, Dir: filepath.Join(dir, "run"), Logs: filepath.Join(dir, "log"),
		PortBase: stack.DefaultPortBase + 400, HostPrefix: "q", HostRange: 4, HostMemoryMB: 1536,
		Replicas: 1, Machines: true, ReplicaEnv: []string{"BERTH_HOST_LEASE=8s"},
		HostEnv: map[string][]string{"q1": host, "q2": host},
	})
	c := newTenant(t)
	one := c.create(t)
	for _, host := range theStack.HostProc {
		if host.ID != one.AgentID {
			onlyOn(t, host.ID)
		}
	}
	two := c.create(t)
	frozen, severed := theStack.Process(one.AgentID), theStack.Process(two.AgentID)
	for _, tc := range []struct {
		name         string
		s            *api.Sandbox
		silence, end func() error
	}{
		{"its daemon stands still", one, frozen.Pause, frozen.Continue},
		{"its network is cut", two, func() error { return theStack.Cut(severed.ID) }, func() error { return theStack.Join(severed.ID) }},
	} {
		c.exec(t, tc.s.ID, endless)
		before := boxOf(t, tc.s)
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel() // on a host of its own
			t.Cleanup(func() {
				if err := tc.end(); err != nil {
					t.Error(err)
				}
			})
			if err := tc.silence(); err != nil {
				t.Fatal(err)
			}
			c.becomes(t, tc.s.ID, api.SandboxFailed, 60*time.Second)
			if got, err := c.GetSandbox(t.Context(), tc.s.ID); err != nil || got.Error == nil || *got.Error != "its host is unreachable" {
				t.Errorf("while its host is silent: %+v, %v", got, err)
			}
			if err := tc.end(); err != nil {
				t.Fatal(err)
			}
			c.becomes(t, tc.s.ID, api.SandboxRunning, 60*time.Second)
			if after := boxOf(t, tc.s); after.VMMPID != before.VMMPID || after.Generation != before.Generation || after.Status != hostapi.StatusRunning {
				t.Errorf("before the silence %+v, after it %+v", before, after)
			}
			c.exec(t, tc.s.ID, "kill -0 $(cat /pid)")
		})
	}
}

func TestKilledVMMIsReported(t *testing.T) {
	c := newTenant(t)
	s := c.create(t)
	box := boxOf(t, s)
	if err := unix.Kill(box.VMMPID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the sandbox is failed and says why", func(ctx context.Context) error {
		got, err := c.GetSandbox(ctx, s.ID)
		if err == nil && (got.Status != api.SandboxFailed || got.Error == nil || *got.Error == "") {
			err = fmt.Errorf("it is %s, error %v", got.Status, got.Error)
		}
		return err
	})
	if _, err := c.Exec(t.Context(), s.ID, api.Exec{Cmd: api.Argv("true")}); api.StatusOf(err) != http.StatusConflict && api.StatusOf(err) != http.StatusNotFound {
		t.Errorf("exec in a failed sandbox: %v", err)
	}
	if err := c.DeleteSandbox(t.Context(), s.ID); err != nil {
		t.Errorf("delete of a failed sandbox: %v", err)
	}
	boxes, err := theStack.Boxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for host, list := range boxes {
		for _, b := range list {
			if b.ID == s.ID {
				t.Errorf("host %s still has the deleted box: %+v", host, b)
			}
		}
	}
}

// withEnv restarts a host with more environment, and puts it back at the end.
// The host must have no sandboxes.
func withEnv(t *testing.T, host *stack.Process, env ...string) {
	t.Helper()
	before := host.Env
	t.Cleanup(func() {
		host.Env = before
		if err := host.Restart(context.Background()); err != nil {
			t.Error(err)
		}
		healthy(t)
	})
	host.Env = append(append([]string(nil), before...), env...)
	if err := host.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "host "+host.ID+" is ready", func(ctx context.Context) error {
		return theStack.AskHost(ctx, host.ID)
	})
}

// reports waits until the leader shows the host's state of the base template.
func reports(t *testing.T, host, status string, words ...string) {
	t.Helper()
	operator := admin(t)
	eventually(t, 30*time.Second, "host "+host+" reports the template as "+status, func(ctx context.Context) error {
		agents, _, err := operator.ListAgents(ctx, api.Page{})
		if err != nil {
			return err
		}
		for _, a := range agents {
			if a.ID != host {
				continue
			}
			if !a.Ready || a.Draining {
				return errors.New("the leader has not heard of the host since its restart")
			}
			for _, tpl := range a.Templates {
				if tpl.Name != stack.BaseTemplate {
					continue
				}
				why := ""
				if tpl.Error != nil {
					why = *tpl.Error
				}
				if tpl.Status != status {
					return fmt.Errorf("it is %s: %s", tpl.Status, why)
				}
				for _, word := range words {
					if !strings.Contains(why, word) {
						return fmt.Errorf("its error %q does not name %q", why, word)
					}
				}
				return nil
			}
		}
		return errors.New("it is not there")
	})
}
