package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// reboot takes from a host what a reboot of its machine would: every process,
// the namespaces with their links, the packet filter and what is on tmpfs. Its
// disk stays as it is at this moment.
func reboot(t *testing.T, host *stack.Process) {
	t.Helper()
	if err := host.Kill9(); err != nil {
		t.Fatal(err)
	}
	losesItsMachine(t, host)
}

// losesItsMachine is reboot of a host whose daemon has ended.
func losesItsMachine(t *testing.T, host *stack.Process) {
	t.Helper()
	run := filepath.Join("/run/berth", host.ID)
	// A VMM's command line does not say whose it is, and what it started ends
	// with it.
	records, err := filepath.Glob(filepath.Join(run, "*", "vmm.json"))
	if err != nil || len(records) == 0 {
		t.Fatalf("no VMM runs on %s: %v", host.ID, err)
	}
	var killed []int
	for _, path := range records {
		var vmm struct{ PID int }
		raw, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(raw, &vmm)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(vmm.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
		killed = append(killed, vmm.PID)
	}
	for _, pid := range killed {
		if err := stack.Await(t.Context(), 10*time.Second, 10*time.Millisecond, "a process ends", goneOrZombie(pid)); err != nil {
			t.Fatal(err)
		}
	}
	spaces, err := filepath.Glob("/run/netns/berth-" + host.ID + "-*")
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range spaces {
		if out, err := exec.Command("ip", "netns", "del", filepath.Base(ns)).CombinedOutput(); err != nil {
			t.Fatalf("ip netns del %s: %v: %s", ns, err, out)
		}
	}
	tables, err := exec.Command("nft", "list", "tables").CombinedOutput()
	if err != nil {
		t.Fatalf("nft list tables: %v: %s", err, tables)
	}
	for line := range strings.Lines(string(tables)) {
		fields := strings.Fields(line) // table inet berth_e1
		if len(fields) == 3 && fields[2] == "berth_"+host.ID {
			if out, err := exec.Command("nft", append([]string{"delete"}, fields...)...).CombinedOutput(); err != nil {
				t.Fatalf("nft delete %s: %v: %s", line, err, out)
			}
		}
	}
	if err := os.RemoveAll(run); err != nil {
		t.Fatal(err)
	}
}

func TestPersistentSandboxesSurviveTheHostsReboot(t *testing.T) {
	c := newTenant(t)
	host := theStack.HostProc[0]
	restartAtEnd(t, host)
	onlyOn(t, host.ID)
	running := c.make(t, api.CreateSandbox{Persistent: true, Env: api.StringMap{"KEPT": "yes"}})
	asleep := c.make(t, api.CreateSandbox{Persistent: true})
	paused := c.make(t, api.CreateSandbox{Persistent: true})
	mortal := c.make(t, api.CreateSandbox{})
	mortalAsleep := c.make(t, api.CreateSandbox{})

	c.exec(t, running.ID, "echo on-disk > /root/f; sync; echo in-memory > /dev/shm/f")
	before := c.run(t, running.ID, "hostname; cat /etc/machine-id")
	for _, s := range []*api.Sandbox{asleep, mortalAsleep} {
		c.exec(t, s.ID, survivor)
		c.livesOn(t, s.ID, 1)
		moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	}
	c.exec(t, paused.ID, "echo on-disk > /root/f; sync")
	moved(t, api.SandboxPaused)(c.PauseSandbox(t.Context(), paused.ID))

	reboot(t, host)
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	healthy(t)

	// What ran was booted from its disk; its memory is gone, as it would be of
	// any machine.
	c.becomes(t, running.ID, api.SandboxRunning, 60*time.Second)
	c.answers(t, running.ID)
	if got := c.run(t, running.ID, "cat /root/f; ls /dev/shm; echo $KEPT"); got != "on-disk\nyes" {
		t.Errorf("after the reboot: %q", got)
	}
	if after := c.run(t, running.ID, "hostname; cat /etc/machine-id"); after != before {
		t.Errorf("it was %q and is %q", before, after)
	}
	events := c.events(t, running.ID)
	last := events[len(events)-1]
	if m := metadataOf(t, last); last.Type != "sandbox.running" || m["boot_mode"] != "cold" || m["recovered"] != true {
		t.Errorf("the last event is %s %s", last.Type, last.Metadata)
	}
	c.becomes(t, paused.ID, api.SandboxRunning, 60*time.Second)
	if got := c.run(t, paused.ID, "cat /root/f"); got != "on-disk" {
		t.Errorf("the one that was paused reads %q", got)
	}
	// What hibernated has its memory on disk.
	for _, s := range []*api.Sandbox{asleep, mortalAsleep} {
		c.becomes(t, s.ID, api.SandboxHibernated, 10*time.Second)
		c.livesOn(t, s.ID, 2)
	}
	// The one that was not to be kept is failed, and says why.
	c.becomes(t, mortal.ID, api.SandboxFailed, 20*time.Second)
	if events := c.events(t, mortal.ID); count(events, "recover.orphaned") != 1 {
		t.Errorf("its events are %v", typesOf(events))
	}
	c.agrees(t, 20*time.Second)
}
