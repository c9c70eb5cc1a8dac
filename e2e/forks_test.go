package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/api"
)

// Sixteen children of one running parent, and each thing that a copy of a
// running machine can have wrong.
func TestSixteenChildren(t *testing.T) {
	const children = 16
	c := newTenant(t)
	parent := c.make(t, api.CreateSandbox{Env: api.StringMap{"KEPT": "yes"}, TTLSeconds: new(int64(3600))})
	c.exec(t, parent.ID, forkedPrograms)
	c.exec(t, parent.ID, "mkdir -p /etc/berth/identity.d && printf '#!/bin/sh\\necho $BERTH_GENERATION >> /hooked\\n' > /etc/berth/identity.d/note && chmod +x /etc/berth/identity.d/note")
	server := listenOutside(t)
	acks := &acknowledged{}
	go acks.take(server)
	c.exec(t, parent.ID, fmt.Sprintf("setsid python3 /writer.py %s %d </dev/null >/writer.log 2>&1 &", outsideAddr, server.Addr().(*net.TCPAddr).Port))
	eventually(t, 20*time.Second, "the parent writes", func(context.Context) error {
		if lines, end := acks.state(); len(lines) < 10 {
			return fmt.Errorf("%d lines, %w", len(lines), end)
		}
		return nil
	})
	identity := "cat /etc/machine-id; hostname; cat /etc/ssh/ssh_host_ed25519_key.pub"
	parentIs := c.run(t, parent.ID, identity)

	ackedBefore, _ := acks.state()
	began := time.Now()
	tree := c.forkTree(t, parent.ID, children, `{"purpose":"test","fork_index":99}`)
	if _, err := os.Stat(filepath.Join(snapshotStore(), "snapshots", tree.TreeID)); err != nil {
		t.Errorf("the parent's capture is not in the snapshot store when the call returns: %v", err)
	}
	t.Logf("%d children after %s; the parent stood still for %d ms", children, time.Since(began).Round(time.Millisecond), tree.PauseMS)
	if tree.PauseMS <= 0 || tree.PauseMS > time.Since(began).Milliseconds() {
		t.Errorf("the parent stood still for %d ms", tree.PauseMS)
	}
	ackedAfter, end := acks.state()
	if end != nil {
		t.Errorf("the parent's connection broke off: %v", end)
	}

	facts := make([]map[string]string, children)
	var g errgroup.Group
	g.SetLimit(4)
	for i, child := range tree.Children {
		wantChild(t, parent, tree, &child, i)
		g.Go(func() error {
			got, err := c.Exec(t.Context(), child.ID, api.Exec{Cmd: api.Shell(childFacts), TimeoutSeconds: new(int64(120))})
			if err != nil || got.ExitCode != 0 {
				return fmt.Errorf("child %d: %+v, %w", i, got, err)
			}
			facts[i] = map[string]string{}
			for line := range strings.Lines(got.Stdout) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
				facts[i][key] = value
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"getrandom", "urandom", "uuid", "own", "machine-id", "hostname", "ssh-key"} {
		seen := map[string]int{}
		for i, f := range facts {
			if f[key] == "" {
				t.Errorf("child %d has no %s", i, key)
			} else if other, twice := seen[f[key]]; twice {
				t.Errorf("children %d and %d have the same %s: %s", other, i, key, f[key])
			}
			if strings.Contains(parentIs, f[key]) {
				t.Errorf("child %d has the parent's %s", i, key)
			}
			seen[f[key]] = i
		}
	}
	for i, f := range facts {
		// A generator of the program's own is memory like any other.
		if f["seeded"] != facts[0]["seeded"] {
			t.Errorf("child %d draws %s from the seeded generator, child 0 %s", i, f["seeded"], facts[0]["seeded"])
		}
		if f["dns"] != outsideAddr {
			t.Errorf("child %d: DNS says %q", i, f["dns"])
		}
		// The connection was the parent's: it fails in the child, at once.
		if f["writer"] != "ConnectionResetError" && f["writer"] != "ConnectionAbortedError" && f["writer"] != "BrokenPipeError" {
			t.Errorf("child %d: the writer's connection ended with %q", i, f["writer"])
		}
		var n int
		var sum string
		if _, err := fmt.Sscan(f["written"], &n, &sum); err != nil {
			t.Errorf("child %d: written %q", i, f["written"])
			continue
		}
		// What was acknowledged before the fork is there. The child itself wrote
		// one line more at most before it noticed, which nobody was told.
		if n < len(ackedBefore) || n > len(ackedAfter)+1 {
			t.Errorf("child %d has %d lines; %d were acknowledged before the fork, %d after it", i, n, len(ackedBefore), len(ackedAfter))
		}
		if sum != digest(ackedAfter[:min(n-1, len(ackedAfter))]) {
			t.Errorf("child %d: the first %d lines are not those of the parent", i, n-1)
		}
		if f["hooked"] != "1" || f["kept"] != "yes" {
			t.Errorf("child %d: the hook ran %s times, the environment has %q", i, f["hooked"], f["kept"])
		}
	}
	for _, child := range tree.Children[:4] {
		c.clockIsRight(t, child.ID)
	}
	c.clockIsRight(t, parent.ID)

	// The parent is who it was, and goes on where it was.
	if now := c.run(t, parent.ID, identity); now != parentIs {
		t.Errorf("the parent was %q and is %q", parentIs, now)
	}
	eventually(t, 10*time.Second, "the parent's connection lives", func(context.Context) error {
		now, end := acks.state()
		if len(now) <= len(ackedAfter) || end != nil {
			return fmt.Errorf("%d lines, then %d, %w", len(ackedAfter), len(now), end)
		}
		return nil
	})
	c.exec(t, parent.ID, "pkill -f '[w]riter.py'; sleep 0.2")
	all, _ := acks.state()
	if got := c.run(t, parent.ID, fmt.Sprintf("head -n %d /written | sha256sum | cut -d' ' -f1", len(all))); got != digest(all) {
		t.Error("the parent's file is not what was acknowledged")
	}

	c.toldOfTree(t, parent.ID, tree)
	c.promotes(t, parent.ID, tree)
	c.agrees(t, 30*time.Second)
}

func TestTreeOfTrees(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	root := c.create(t)
	c.exec(t, root.ID, survivor)
	parent, asked := root.ID, 0
	for depth := range 3 {
		c.livesOn(t, parent, asked+1)
		asked++
		tree := c.forkTree(t, parent, 2, "")
		for _, child := range tree.Children {
			c.exec(t, child.ID, fmt.Sprintf("echo %d >> /dev/shm/depth", depth))
		}
		// The parent may go while its children live.
		if depth == 1 {
			if err := c.DeleteSandbox(t.Context(), parent); err != nil {
				t.Error(err)
			}
		}
		parent = tree.Children[1].ID
	}
	c.livesOn(t, parent, asked+1)
	if got := c.run(t, parent, "cat /dev/shm/depth"); got != "0\n1\n2" {
		t.Errorf("the grandchild's memory has %q", got)
	}
	// A descendant hibernates like any other: what it shares is saved with it.
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), parent))
	c.livesOn(t, parent, asked+2)
	c.livesOn(t, root.ID, 2)
}

func TestColdFork(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	parent := c.make(t, api.CreateSandbox{Metadata: api.Object(`{"mine":1}`), Env: api.StringMap{"KEPT": "yes"}})
	// What was written and not synced is the parent's own, and in the child.
	c.exec(t, parent.ID, "echo on-disk > /root/f; echo in-memory > /dev/shm/f; setsid sleep 9001 </dev/null >/dev/null 2>&1 &")
	forked := c.fork(t, parent.ID, api.Fork{Count: new(2)})
	if forked.Mode != api.ForkCold || forked.ParentID != parent.ID || len(forked.Children) != 2 {
		t.Fatalf("got %+v", forked)
	}
	ids := map[string]bool{c.run(t, parent.ID, "cat /etc/machine-id"): true}
	for _, child := range forked.Children {
		if string(child.Metadata) != `{"forked_from":"`+parent.ID+`"}` || child.ForkedFrom == nil || *child.ForkedFrom != parent.ID {
			t.Errorf("child: %s, %v", child.Metadata, child.ForkedFrom)
		}
		got := c.run(t, child.ID, "cat /root/f; ls /dev/shm; pgrep -f '[s]leep 9001'; echo $KEPT")
		if got != "on-disk\nyes" {
			t.Errorf("the child has %q", got)
		}
		id := c.run(t, child.ID, "cat /etc/machine-id")
		if ids[id] {
			t.Errorf("machine id %s is not the child's own", id)
		}
		ids[id] = true
		events := c.events(t, child.ID)
		if m := metadataOf(t, events[0]); m["boot_mode"] != "cold" || count(events, "sandbox.forked") != 1 {
			t.Errorf("the child's events: %v, %v", typesOf(events), m)
		}
	}
	c.exec(t, parent.ID, "grep -q in-memory /dev/shm/f && pgrep -f '[s]leep 9001'")
	if events := c.events(t, parent.ID); count(events, "fork.staged") != 1 || count(events, "fork.completed") != 2 {
		t.Errorf("the parent's events: %v", typesOf(events))
	}
}

// The warm fork's child stands where the parent stood: same address, same
// connections. The parent waits, and goes on in a place of its own.
func TestWarmFork(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	parent := c.create(t)
	server := listenOutside(t)
	type caller struct {
		from string
		conn net.Conn
	}
	callers := make(chan caller, 4)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			callers <- caller{conn.RemoteAddr().String(), conn}
		}
	}()
	c.exec(t, parent.ID, survivor)
	c.exec(t, parent.ID, fmt.Sprintf(`cat > /talk.py <<'PY'
import socket, time
s = socket.create_connection(("%s", %d)); n = 0
try:
    while True: n += 1; s.sendall(b"%%d\n" %% n); s.recv(1)
except OSError as e: open("/talk.end", "w").write(e.__class__.__name__)
PY
setsid python3 /talk.py </dev/null >/dev/null 2>&1 &`, outsideAddr, server.Addr().(*net.TCPAddr).Port))
	talk := <-callers
	defer talk.conn.Close()
	lines := bufio.NewReader(talk.conn)
	last := 0
	goesOn := func() {
		t.Helper()
		for range 3 {
			_ = talk.conn.SetDeadline(time.Now().Add(20 * time.Second))
			var n int
			if line, err := lines.ReadString('\n'); err != nil {
				t.Fatalf("the connection broke off: %v", err)
			} else if _, err := fmt.Sscan(line, &n); err != nil || n != last+1 {
				t.Fatalf("after %d came %q", last, line)
			}
			last++
			if _, err := io.WriteString(talk.conn, "x"); err != nil {
				t.Fatal(err)
			}
		}
	}
	goesOn()
	c.livesOn(t, parent.ID, 1)
	before := boxOf(t, parent)

	forked := c.fork(t, parent.ID, api.Fork{Mode: new(api.ForkWarm)})
	child := &forked.Children[0]
	goesOn() // by the child, which has the parent's place
	if got := boxOf(t, child); got.Slot != before.Slot || child.AgentID != parent.AgentID {
		t.Errorf("the child is in slot %d of %s, the parent was in %d of %s", got.Slot, child.AgentID, before.Slot, parent.AgentID)
	}
	if box := boxOf(t, parent); box.VMMPID != 0 || box.Status != "paused" {
		t.Errorf("the parent's box is %+v", box)
	}
	c.becomes(t, parent.ID, api.SandboxPaused, 5*time.Second)
	_, err := c.Exec(t.Context(), parent.ID, api.Exec{Cmd: api.Argv("true")})
	refusal(t, err, 409, asleepText)
	c.livesOn(t, child.ID, 2)
	if m := string(child.Metadata); m != `{"forked_from":"`+parent.ID+`"}` {
		t.Errorf("the child's metadata is %s", m)
	}

	moved(t, api.SandboxRunning)(c.ResumeSandbox(t.Context(), parent.ID))
	c.livesOn(t, parent.ID, 2)
	goesOn() // the child's still
	if got := boxOf(t, parent); got.Slot == before.Slot {
		t.Error("the parent is in the slot that it gave away")
	}
	eventually(t, 10*time.Second, "the parent's end of the connection failed", func(ctx context.Context) error {
		got, err := c.Exec(ctx, parent.ID, api.Exec{Cmd: api.Argv("cat", "/talk.end")})
		if err == nil && got.Stdout == "" {
			err = fmt.Errorf("it did not: %+v", got)
		}
		return err
	})
	one, two := c.run(t, parent.ID, "cat /etc/machine-id; hostname"), c.run(t, child.ID, "cat /etc/machine-id; hostname")
	if one == two {
		t.Errorf("both are %q", one)
	}
	if events := c.events(t, child.ID); count(events, "sandbox.warmforked") != 1 {
		t.Errorf("the child's events: %v", typesOf(events))
	}
	events := c.events(t, parent.ID)
	if count(events, "warmfork.staged") != 1 || count(events, "sandbox.paused") != 1 || count(events, "sandbox.resumed") != 1 {
		t.Errorf("the parent's events: %v", typesOf(events))
	}
}
