package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
)

// verbs are the moves, by the name of their route.
func (c *tenant) verbs() map[string]func(context.Context, string) (*api.Sandbox, error) {
	return map[string]func(context.Context, string) (*api.Sandbox, error){
		"pause": c.PauseSandbox, "resume": c.ResumeSandbox, "hibernate": c.HibernateSandbox, "wake": c.WakeSandbox,
	}
}

// The table of docs/api.md, row by row: what each status lets one do.
func TestEveryMoveOfTheStateTable(t *testing.T) {
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.make(t, api.CreateSandbox{Metadata: api.Object(`{"a":{"b":[1,"ü"]}}`), Env: api.StringMap{"KEPT": "yes"}})
	refused := func(status api.SandboxStatus, detail map[string]string) {
		t.Helper()
		for verb, words := range detail {
			_, err := c.through(t, followerIndex(t)).verbs()[verb](t.Context(), s.ID)
			e := refusal(t, err, 409, "sandbox is "+string(status))
			if !strings.Contains(e.Detail, words) {
				t.Errorf("%s while %s: detail %q lacks %q", verb, status, e.Detail, words)
			}
		}
		if got, err := c.GetSandbox(t.Context(), s.ID); err != nil || got.Status != status {
			t.Errorf("after the refusals it is %+v, %v", got, err)
		}
	}
	asleep := func(ask func() error) {
		t.Helper()
		refusal(t, ask(), 409, asleepText)
	}

	// running
	refused(api.SandboxRunning, map[string]string{"resume": ""})
	moved(t, api.SandboxRunning)(c.WakeSandbox(t.Context(), s.ID))

	// paused
	c.exec(t, s.ID, "echo 1 > /dev/shm/kept")
	moved(t, api.SandboxPaused)(c.PauseSandbox(t.Context(), s.ID))
	refused(api.SandboxPaused, map[string]string{"pause": "", "hibernate": "resume it first", "wake": "resume it first"})
	asleep(func() error {
		_, err := c.Exec(t.Context(), s.ID, api.Exec{Cmd: api.Argv("true")})
		return err
	})
	asleep(func() error {
		_, err := c.ExecStream(t.Context(), s.ID, api.Exec{Cmd: api.Argv("true")}, nil, nil)
		return err
	})
	asleep(func() error { _, err := c.OpenTerminal(t.Context(), s.ID, api.OpenTerminal{}); return err })
	asleep(func() error { _, err := c.StatFile(t.Context(), s.ID, "/etc"); return err })
	asleep(func() error { _, err := c.ListPorts(t.Context(), s.ID); return err })
	asleep(func() error { _, err := c.Fork(t.Context(), s.ID, api.Fork{}, ""); return err })
	asleep(func() error { _, err := c.ForkTree(t.Context(), s.ID, api.ForkTree{}, ""); return err })
	asleep(func() error { _, err := c.CreateSnapshot(t.Context(), s.ID, api.CreateSnapshot{}, ""); return err })
	moved(t, api.SandboxRunning)(c.ResumeSandbox(t.Context(), s.ID))
	if got := c.run(t, s.ID, "cat /dev/shm/kept; echo $KEPT"); got != "1\nyes" {
		t.Errorf("after the pause: %q", got)
	}

	// hibernated
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	refused(api.SandboxHibernated, map[string]string{"pause": "wake it first", "resume": "wake it first", "hibernate": ""})
	asleep(func() error { _, err := c.ForkTree(t.Context(), s.ID, api.ForkTree{}, ""); return err })
	asleep(func() error { _, err := c.CreateSnapshot(t.Context(), s.ID, api.CreateSnapshot{}, ""); return err })
	// To look at it wakes nothing.
	c.events(t, s.ID)
	if _, err := c.GetLifecycle(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	if logs, err := c.Logs(t.Context(), s.ID, api.LogQuery{Stream: "console"}); err != nil {
		t.Error(err)
	} else {
		logs.Close()
	}
	if box := boxOf(t, s); box.VMMPID != 0 {
		t.Errorf("it hibernates with the VMM %d", box.VMMPID)
	}
	c.becomes(t, s.ID, api.SandboxHibernated, 5*time.Second)
	moved(t, api.SandboxRunning)(c.WakeSandbox(t.Context(), s.ID))
	got, err := c.GetSandbox(t.Context(), s.ID)
	if err != nil || string(got.Metadata) != `{"a":{"b":[1,"ü"]}}` {
		t.Errorf("its metadata is %s, %v", got.Metadata, err)
	}
	if got := c.run(t, s.ID, "cat /dev/shm/kept; echo $KEPT"); got != "1\nyes" {
		t.Errorf("after the hibernation: %q", got)
	}

	// failed
	killed := time.Now()
	if err := unix.Kill(boxOf(t, s).VMMPID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.becomes(t, s.ID, api.SandboxFailed, 10*time.Second)
	refused(api.SandboxFailed, map[string]string{"pause": "", "resume": "", "hibernate": "", "wake": ""})
	_, err = c.Exec(t.Context(), s.ID, api.Exec{Cmd: api.Argv("true")})
	refusal(t, err, 404, "sandbox not found or not running")

	// and all of it was told.
	events := c.told(t, s.ID, "sandbox.running", "sandbox.paused", "sandbox.resumed", "sandbox.hibernated", "sandbox.woken", "vm.died")
	for i, keys := range map[int][]string{0: {"boot_ms", "boot_mode", "from_snapshot", "warm"}, 3: {"snap_ms", "mem_mib"}, 4: {"wake_ms"}, 5: {"signal"}} {
		for _, key := range keys {
			if _, ok := metadataOf(t, events[i])[key]; !ok {
				t.Errorf("%s has no %s: %s", events[i].Type, key, events[i].Metadata)
			}
		}
		if e := events[i]; e.SandboxID != s.ID || e.AgentID != s.AgentID || e.Message == "" {
			t.Errorf("%+v", e)
		}
	}
	died := events[5]
	if died.Code != api.EventError || metadataOf(t, died)["signal"] != "KILL" || died.TS.Before(killed.Truncate(time.Millisecond)) {
		t.Errorf("killed at %s: %+v, %s", killed, died, died.Metadata)
	}
}

func TestConcurrentWakesAreOne(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	for round := range 2 {
		moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
		var g errgroup.Group
		for i := range 8 {
			via := c.through(t, i%len(theStack.URLs))
			g.Go(func() error {
				switch i % 4 {
				case 0:
					_, err := via.WakeSandbox(t.Context(), s.ID)
					return err
				case 1:
					_, err := via.StatFile(t.Context(), s.ID, "/etc")
					return err
				case 2:
					exit, err := via.ExecStream(t.Context(), s.ID, api.Exec{Cmd: api.Argv("true")}, nil, nil)
					if err == nil && exit.ExitCode != 0 {
						err = fmt.Errorf("exit %+v", exit)
					}
					return err
				}
				got, err := via.Exec(t.Context(), s.ID, api.Exec{Cmd: api.Argv("true")})
				if err == nil && got.ExitCode != 0 {
					err = fmt.Errorf("exit code %d", got.ExitCode)
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		if n := count(c.events(t, s.ID), "sandbox.woken"); n != round+1 {
			t.Errorf("after %d hibernations it was woken %d times", round+1, n)
		}
	}
}

// Moves that come at once are made one after the other, and each is judged by
// what it finds.
func TestConcurrentMovesAreOneAfterTheOther(t *testing.T) {
	c := newTenant(t)
	s := c.create(t)
	var g errgroup.Group
	ok := make(chan string, 12)
	for range 4 {
		for _, verb := range []string{"pause", "resume", "hibernate"} {
			g.Go(func() error {
				_, err := c.verbs()[verb](t.Context(), s.ID)
				if err == nil {
					ok <- verb
				} else if api.StatusOf(err) != 409 {
					return fmt.Errorf("%s: %w", verb, err)
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	close(ok)
	made := map[string]int{}
	for verb := range ok {
		made[verb]++
	}
	events := c.events(t, s.ID)
	for verb, kind := range map[string]string{"pause": "sandbox.paused", "resume": "sandbox.resumed", "hibernate": "sandbox.hibernated"} {
		if n := count(events, kind); n != made[verb] {
			t.Errorf("%d %ss were answered with 200, and there are %d events: %v", made[verb], verb, n, typesOf(events))
		}
	}
	last := map[string]api.SandboxStatus{"sandbox.paused": api.SandboxPaused, "sandbox.hibernated": api.SandboxHibernated}[events[len(events)-1].Type]
	if last == "" {
		last = api.SandboxRunning
	}
	c.becomes(t, s.ID, last, 5*time.Second)
}

func TestTimeToLive(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	const hour, ttl = 3600, 8
	brief := c.make(t, api.CreateSandbox{TTLSeconds: new(int64(hour))})
	if brief.ExpiresAt == nil || brief.StartedAt == nil || brief.ExpiresAt.Sub(brief.StartedAt.Time) != hour*time.Second {
		t.Errorf("it came to life at %v and ends at %v", brief.StartedAt, brief.ExpiresAt)
	}
	kept := c.make(t, api.CreateSandbox{TTLSeconds: new(int64(hour)), Persistent: true})
	c.exec(t, kept.ID, "echo 1 > /dev/shm/kept")
	paused := c.make(t, api.CreateSandbox{TTLSeconds: new(int64(hour))})
	moved(t, api.SandboxPaused)(c.PauseSandbox(t.Context(), paused.ID))
	spared := c.make(t, api.CreateSandbox{TTLSeconds: new(int64(hour))})
	// Their time begins when all is ready, however long that took.
	begin := func(s *api.Sandbox) time.Time {
		l, err := c.PatchLifecycle(t.Context(), s.ID, api.PatchLifecycle{TTLSeconds: api.SetTo(int64(ttl))})
		if err != nil || l.ExpiresAt == nil || l.TTLSeconds == nil || *l.TTLSeconds != ttl {
			t.Fatalf("with an end: %+v, %v", l, err)
		}
		return l.ExpiresAt.Time
	}
	begin(spared)
	l, err := c.PatchLifecycle(t.Context(), spared.ID, api.PatchLifecycle{TTLSeconds: api.SetNull[int64]()})
	if err != nil || l.ExpiresAt != nil || l.TTLSeconds != nil {
		t.Fatalf("without an end: %+v, %v", l, err)
	}
	begin(kept)
	begin(paused)
	end := begin(brief)

	c.gone(t, brief.ID, 20*time.Second)
	if early := time.Until(end); early > 0 {
		t.Errorf("it was gone %s before its end", early)
	}
	c.gone(t, paused.ID, 20*time.Second)
	c.becomes(t, kept.ID, api.SandboxHibernated, 20*time.Second)
	l, err = c.GetLifecycle(t.Context(), kept.ID)
	if err != nil || l.ExpiresAt != nil || !l.Persistent || l.TTLSeconds == nil || *l.TTLSeconds != ttl {
		t.Errorf("while it hibernates: %+v, %v", l, err)
	}
	// Woken, it has its whole time again.
	if got := c.run(t, kept.ID, "cat /dev/shm/kept"); got != "1" {
		t.Errorf("it reads %q", got)
	}
	eventually(t, 5*time.Second, "it has an end again", func(ctx context.Context) error {
		l, err := c.GetLifecycle(ctx, kept.ID)
		if err == nil && (l.ExpiresAt == nil || time.Until(l.ExpiresAt.Time) <= 0 || time.Until(l.ExpiresAt.Time) > ttl*time.Second) {
			err = fmt.Errorf("it is %+v", l)
		}
		return err
	})
	c.becomes(t, kept.ID, api.SandboxHibernated, 20*time.Second)
	c.becomes(t, spared.ID, api.SandboxRunning, 5*time.Second)

	// Another end, and another way to end, from now on.
	l, err = c.PatchLifecycle(t.Context(), spared.ID, api.PatchLifecycle{TTLSeconds: api.SetTo(int64(2)), Persistent: api.SetTo(true)})
	if err != nil || l.ExpiresAt == nil || !l.Persistent {
		t.Fatalf("with an end: %+v, %v", l, err)
	}
	c.becomes(t, spared.ID, api.SandboxHibernated, 20*time.Second)
	if l, err = c.PatchLifecycle(t.Context(), spared.ID, api.PatchLifecycle{Persistent: api.SetTo(false)}); err != nil || l.Persistent {
		t.Errorf("persistent no longer: %+v, %v", l, err)
	}
}

// survivor is a process with memory, an open file that has no name any more, a
// tmpfs and a count that it keeps; it answers on a socket.
const survivor = `mkdir -p /mnt/mem && mount -t tmpfs none /mnt/mem && echo in-a-tmpfs > /mnt/mem/f
cat > /survivor.py <<'PY'
import os, socket
f = open("/unlinked", "w+"); f.write("in-an-open-file"); f.flush(); os.unlink("/unlinked")
memory = bytes(range(256)) * 4096
s = socket.socket(socket.AF_UNIX); s.bind("/survivor.sock"); s.listen()
count = 0
while True:
    c, _ = s.accept()
    count += 1
    f.seek(0)
    c.sendall(b"%d %d %d %s" % (os.getpid(), count, sum(memory) % 65521, f.read().encode()))
    c.close()
PY
rm -f /survivor.sock; setsid python3 /survivor.py </dev/null >/survivor.log 2>&1 & echo $! > /survivor.pid
for i in $(seq 100); do [ -S /survivor.sock ] && exit 0; sleep 0.1; done; cat /survivor.log; exit 1`

const askSurvivor = `python3 -c 'import socket
s = socket.socket(socket.AF_UNIX); s.connect("/survivor.sock"); print(s.recv(999).decode())'; cat /mnt/mem/f`

// livesOn wants the survivor to have been asked so often.
func (c *tenant) livesOn(t *testing.T, id string, asked int) {
	t.Helper()
	want := fmt.Sprintf("%s %d %d in-an-open-file\nin-a-tmpfs", c.run(t, id, "cat /survivor.pid"), asked, 4096*255*128%65521)
	if got := c.run(t, id, askSurvivor); got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

func TestMemorySurvivesHibernationAndTheDaemonsDeath(t *testing.T) {
	c := newTenant(t)
	s := c.create(t)
	host := theStack.Process(s.AgentID)
	restartAtEnd(t, host)
	c.exec(t, s.ID, survivor)
	c.livesOn(t, s.ID, 1)
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	moved(t, api.SandboxRunning)(c.WakeSandbox(t.Context(), s.ID))
	c.livesOn(t, s.ID, 2)

	// The daemon is killed while the sandbox hibernates, and while it is paused.
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	if err := errors.Join(host.Kill9(), host.Start()); err != nil {
		t.Fatal(err)
	}
	healthy(t)
	c.becomes(t, s.ID, api.SandboxHibernated, 10*time.Second)
	c.livesOn(t, s.ID, 3) // woken by the question
	moved(t, api.SandboxPaused)(c.PauseSandbox(t.Context(), s.ID))
	if err := errors.Join(host.Kill9(), host.Start()); err != nil {
		t.Fatal(err)
	}
	healthy(t)
	c.becomes(t, s.ID, api.SandboxPaused, 10*time.Second)
	moved(t, api.SandboxRunning)(c.ResumeSandbox(t.Context(), s.ID))
	c.livesOn(t, s.ID, 4)

	// Its clock stood still while it slept.
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	c.clockIsRight(t, s.ID)
	c.told(t, s.ID, "sandbox.running", "sandbox.hibernated", "sandbox.woken", "sandbox.hibernated", "sandbox.woken",
		"sandbox.paused", "sandbox.resumed", "sandbox.hibernated", "sandbox.woken")
	c.agrees(t, 20*time.Second)
}

// clockIsRight compares the guest's clock with this machine's. What the guest
// says lies between the two readings here, if both are the same clock; the time
// of a question's way, which a busy machine makes long, is no error of it.
func (c *tenant) clockIsRight(t *testing.T, id string) {
	t.Helper()
	const most = 50 * time.Millisecond
	var off time.Duration
	for range 5 {
		before := time.Now()
		said := c.run(t, id, "date +%s%N")
		after := time.Now()
		var ns int64
		if _, err := fmt.Sscan(said, &ns); err != nil {
			t.Fatalf("date says %q", said)
		}
		guest := time.Unix(0, ns)
		off = max(before.Sub(guest), guest.Sub(after))
		if off <= most {
			return
		}
	}
	t.Errorf("the guest's clock is off by %s or more", off)
}
