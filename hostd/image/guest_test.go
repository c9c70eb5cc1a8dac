package image

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// TestTemplatesAndTheirGuests builds templates and tests their guests. A boot under
// emulation takes seconds, so the cases share the guests.
func TestTemplatesAndTheirGuests(t *testing.T) {
	w := newWorld(t)
	began := time.Now()
	base := w.ensure(tiny)
	t.Logf("built in %s: RAM takes %d MB, the disk %d KB", time.Since(began).Round(time.Millisecond), blocksOf(t, base.RAM)>>20, blocksOf(t, base.OverlaySeed)>>10)
	if left := w.left(); len(left) > 0 {
		t.Errorf("a build left %v", left)
	}
	if base.OpenConnections != 0 {
		t.Errorf("the stored guest has %d connections", base.OpenConnections)
	}

	t.Run("a second build does nothing", func(t *testing.T) {
		guests := w.leased.Load()
		if again := w.ensure(tiny); again.BuildID != base.BuildID || !again.CreatedAt.Equal(base.CreatedAt) {
			t.Errorf("got %+v", again)
		}
		if more := w.leased.Load() - guests; more != 0 {
			t.Errorf("%d guests were booted for it", more)
		}
		must(t, w.store.Verify(t.Context(), "tiny"))
	})
	t.Run("two guests of one state", func(t *testing.T) { twoGuests(t, w, base) })
	t.Run("a hostile guest", func(t *testing.T) { hostileGuest(t, w, base) })
	t.Run("services", func(t *testing.T) { services(t, w) })
	t.Run("steps", func(t *testing.T) { steps(t, w) })
	t.Run("a step that fails", func(t *testing.T) {
		bad := Definition{Name: "web", From: "tiny", Run: []string{"echo about to fail; exit 7"}, MemoryMB: 256, DiskMB: 256}
		_, err := w.store.Ensure(t.Context(), bad, nil)
		for _, want := range []string{"run[0]", "exit code 7", "about to fail"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not say %q", err, want)
			}
		}
		if _, err := w.store.Get("web"); err != nil {
			t.Errorf("the old build is gone: %v", err)
		}
		if left := w.left(); len(left) > 0 {
			t.Errorf("it left %v", left)
		}
	})
	t.Run("an image of a registry", func(t *testing.T) { ociGuest(t, w) })
	t.Run("a start command that ends without anything to be ready", func(t *testing.T) {
		bad := Definition{Name: "bad", From: "tiny", Start: "echo cannot serve >&2; exit 3", MemoryMB: 256, DiskMB: 256}
		_, err := w.store.Ensure(t.Context(), bad, nil)
		if !errors.Is(err, errNotReady) || !strings.Contains(err.Error(), "exit code 3") || !strings.Contains(err.Error(), "cannot serve") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a start command that ends", func(t *testing.T) {
		bad := Definition{
			Name: "bad", From: "tiny", Start: "echo cannot serve >&2; exit 3", MemoryMB: 256, DiskMB: 256,
			Ready: &Ready{Port: 8080, TimeoutSeconds: 60},
		}
		_, err := w.store.Ensure(t.Context(), bad, nil)
		if !errors.Is(err, errNotReady) || !strings.Contains(err.Error(), "exit code 3") || !strings.Contains(err.Error(), "cannot serve") {
			t.Errorf("got %v", err)
		}
	})
}

// twoGuests tests what guests restored from one state must not share, and what each
// must have.
func twoGuests(t *testing.T, w *world, base Template) {
	before, err := identify(t.Context(), base.RAM, true)
	must(t, err)
	a, b := w.restore(t, base, 1), w.restore(t, base, 2)
	for _, line := range []string{
		"cat /proc/sys/kernel/random/uuid", "head -c 16 /dev/urandom | wc -c; dd if=/dev/urandom bs=16 count=1 2>/dev/null | sort", "hostname",
		"cat /etc/machine-id",
	} {
		if one, two := a.out(line), b.out(line); one == two {
			t.Errorf("%s: both say %q", line, one)
		}
	}
	for line, want := range map[string]string{
		"hostname; cat /etc/hostname":                        "box-1\nbox-1",
		"cat /etc/hosts":                                     "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tbox-1",
		"cat /etc/resolv.conf":                               "nameserver 198.18.0.1",
		"cat /etc/ssh/ssh_host_ed25519_key":                  "PRIVATE",
		"stat -L -c %a /etc/ssh/*_key":                       "600",
		"cat /run/berth/generation":                          "1",
		"echo $SANDBOX $HOME $LANG":                          "yes /root C.UTF-8",
		"nproc":                                              "1",
		"stat -c %a /tmp /dev/shm":                           "1777\n1777",
		"readlink /dev/fd":                                   "/proc/self/fd",
		"id":                                                 "uid=0(root) gid=0(root) groups=0(root)",
		"cat /proc/self/oom_score_adj":                       "0",
		"cat /proc/1/oom_score_adj":                          "0",
		"head -n 3 /proc/1/comm":                             "guestd",
		"cat /proc/sys/net/ipv4/ip_forward":                  "0",
		"test -d /layers && echo seen || true":               "",
		"cat /sys/fs/cgroup/berth/cpu.weight":                "10000",
		"uname -r":                                           base.KernelVersion,
		"stty size 2>/dev/null || echo no tty":               "no tty",
		"sh -c 'sleep 0.01 & exec cat /dev/fd/0' </dev/null": "",
	} {
		if got := a.out(line); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
	res, err := a.Run(t.Context(), guestapi.ExecRequest{Argv: []string{"/bin/sh", "-c", "id; pwd"}, User: "app", Timeout: time.Minute})
	if err != nil || string(res.Stdout) != "uid=1000(app) gid=1000(app) groups=1000(app),44(extra)\n/home/app\n" {
		t.Errorf("as another user: %q, %v", res.Stdout, err)
	}
	sent := time.Now()
	nanos, err := strconv.ParseInt(a.out("date +%s%N"), 10, 64)
	must(t, err)
	if now := time.Unix(0, nanos); now.Before(sent.Add(-time.Second)) || now.After(time.Now().Add(time.Second)) {
		t.Errorf("the guest's clock says %s, here it was %s to %s", now, sent, time.Now())
	}
	if a.out("df -P / | tail -n 1"); a.run("test -w /", time.Minute).ExitCode != 0 {
		t.Error("the root cannot be written to")
	}
	a.out("echo mine > /etc/mine")
	if res := b.run("test -e /etc/mine", time.Minute); res.ExitCode == 0 {
		t.Error("a guest's disk is another's")
	}
	after, err := identify(t.Context(), base.RAM, true)
	must(t, err)
	if before != after {
		t.Error("a guest wrote to the template's RAM")
	}
	t.Run("power off", func(t *testing.T) {
		must(t, b.Shutdown(t.Context()))
		select {
		case <-b.process.Done():
		case <-time.After(30 * time.Second):
			t.Fatal("it still runs")
		}
		if out, err := exec.Command("/sbin/e2fsck", "-fn", b.overlay).CombinedOutput(); err != nil {
			t.Errorf("its disk is not clean: %v\n%s", err, out)
		}
	})
}

// hostileGuest does what tenants do, by mistake or on purpose. After each attempt a
// command must run as if nothing had happened.
func hostileGuest(t *testing.T, w *world, base Template) {
	b := w.restore(t, base, 3)
	for _, c := range []struct {
		name, line string
		timeout    time.Duration
		check      func(t *testing.T, exit guestapi.ExecExit)
	}{
		{"a fork bomb", "f() { f | f & }; f; sleep 1000", 8 * time.Second, func(t *testing.T, exit guestapi.ExecExit) {
			if !exit.TimedOut {
				t.Errorf("got %+v", exit)
			}
		}},
		{"all memory", "head -c 2000000000 /dev/zero | tail", 5 * time.Minute, func(t *testing.T, exit guestapi.ExecExit) {
			if exit.TimedOut {
				t.Errorf("got %+v", exit)
			}
		}},
		{"all shared memory", "head -c 2000000000 /dev/zero > /dev/shm/x; rm /dev/shm/x", time.Minute, nil},
		{"a full disk", "head -c 2000000000 /dev/zero > /fill; df -P /; true", time.Minute, nil},
		{"kill of everything", "kill -9 -1", time.Minute, nil},
		{"kill of process 1", "for s in TERM INT HUP QUIT SEGV USR1 USR2 ALRM; do kill -$s 1; done; kill -9 1", time.Minute, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, err := b.Run(t.Context(), guestapi.ExecRequest{Argv: []string{"/bin/sh", "-c", c.line}, Timeout: c.timeout, OutputLimitBytes: 1 << 16})
			switch {
			case strings.HasPrefix(c.name, "kill of everything"):
				// The agent is killed too, and is restarted.
			case err != nil:
				t.Fatal(err)
			case c.check != nil:
				c.check(t, res.ExecExit)
			}
			if _, err := b.Await(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := b.out("echo alive; cat /etc/hostname; echo $SANDBOX"); got != "alive\nbox-3\nyes" {
				t.Errorf("afterwards: %q", got)
			}
		})
	}
	t.Run("a new identity on the full disk", func(t *testing.T) {
		_, err := b.Identity(t.Context(), guestapi.Identity{
			Generation: 4, Entropy: make([]byte, 64), Hostname: "again", MachineID: strings.Repeat("cd", 16),
			SSHHostKeys: []guestapi.SSHHostKey{{Type: "ed25519", Private: "P", Public: "P"}},
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// steps builds a template from another one.
func steps(t *testing.T, w *world) {
	var told []string
	web, err := w.store.Ensure(t.Context(), Definition{
		Name: "web", From: "tiny", MemoryMB: 256, DiskMB: 256,
		Files: map[string]string{"/srv/hello": "hello\n", "/etc/berth/identity.d/mark": "#!/bin/sh\necho $BERTH_GENERATION > /run/hook\n"},
		// A program may be larger than a definition. It is looked up beside guestd,
		// where this test has chvemu.
		Programs: map[string]string{"/srv/bin/program": "chvemu"},
		Run:      []string{"echo step one; cat /srv/hello > /srv/copy; echo $COLOUR >> /srv/copy; rm /bin/yes", "chmod 755 /etc/berth/identity.d/mark"},
		Env:      map[string]string{"COLOUR": "green"},
		Start:    "echo started $COLOUR; touch /run/ready; exec sleep 100000",
		Ready:    &Ready{Cmd: "test -e /run/ready", TimeoutSeconds: 60},
	}, func(p Progress) { told = append(told, p.Detail) })
	must(t, err)
	if !strings.Contains(strings.Join(told, "\n"), "step one") {
		t.Errorf("the output of the steps was not told: %q", told)
	}
	b := w.restore(t, web, 9)
	program, err := os.Stat(filepath.Join(w.dir, "chvemu"))
	must(t, err)
	for line, want := range map[string]string{
		"stat -c '%a %u %s' /srv/bin/program": fmt.Sprintf("755 0 %d", program.Size()),
		"cat /srv/copy":                       "hello\ngreen",
		"test -e /bin/yes || echo gone":       "gone",
		"while read -r _ stream _ line; do echo $stream $line; done < " + guestapi.StartLogPath: "stdout started green",
		"echo $COLOUR":  "green",
		"cat /run/hook": "9",
	} {
		if got := b.out(line); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
	h, err := b.Health(t.Context())
	if err != nil || h.Start == nil || !h.Start.Running || h.Start.Restarts != 0 {
		t.Errorf("the start command: %+v, %v", h.Start, err)
	}
	if len(web.Layers) != 2 {
		t.Errorf("layers: %v", web.Layers)
	}
	if _, err := os.Stat(web.Layers[1]); err != nil {
		t.Error(err)
	}
}
