package e2e

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/api"
)

// forkTree makes children that are deleted when the test ends, and wants all
// of them to live.
func (c *tenant) forkTree(t *testing.T, parent string, n int, metadata string) *api.ForkedTree {
	t.Helper()
	in := api.ForkTree{Count: &n}
	if metadata != "" {
		in.Metadata = api.Object(metadata)
	}
	tree, err := c.ForkTree(t.Context(), parent, in, rand.Text())
	if err != nil {
		t.Fatalf("fork-tree of %d: %v", n, err)
	}
	for _, child := range tree.Children {
		c.deleteAtEnd(t, child.ID)
	}
	if len(tree.Children) != n || len(tree.Failed) != 0 || tree.ParentID != parent || tree.TreeID == "" {
		t.Fatalf("fork-tree of %d: %d children, failed %v", n, len(tree.Children), tree.Failed)
	}
	return tree
}

func (c *tenant) fork(t *testing.T, parent string, in api.Fork) *api.Forked {
	t.Helper()
	forked, err := c.Fork(t.Context(), parent, in, rand.Text())
	if err != nil {
		t.Fatalf("fork %+v: %v", in, err)
	}
	for _, child := range forked.Children {
		c.deleteAtEnd(t, child.ID)
	}
	if len(forked.Failed) != 0 {
		t.Fatalf("fork: failed %v", forked.Failed)
	}
	return forked
}

// The parent's programs, which every child has: a generator that was seeded
// before the fork, one that reseeds as the documents say, and a writer that
// acknowledges each record once it is on the disk.
const forkedPrograms = `cat > /seeded.py <<'PY'
import os, random, socket
random.seed(42); own = random.Random(43); generation = open("/run/berth/generation").read()
s = socket.socket(socket.AF_UNIX); s.bind("/seeded.sock"); s.listen()
while True:
    c, _ = s.accept()
    g = open("/run/berth/generation").read()
    if g != generation: own.seed(os.urandom(32)); generation = g
    c.sendall(b"%d %d" % (random.getrandbits(64), own.getrandbits(64)))
    c.close()
PY
cat > /writer.py <<'PY'
import os, socket, sys
out = os.open("/written", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
ack = socket.create_connection((sys.argv[1], int(sys.argv[2])))
n = 0
while True:
    line = b"%d %s\n" % (n, os.urandom(100).hex().encode())
    os.write(out, line)
    os.fsync(out)
    try: ack.sendall(line)
    except OSError as e:
        with open("/writer.end", "w") as f: f.write(e.__class__.__name__)
        break
    n += 1
PY
setsid python3 /seeded.py </dev/null >/seeded.log 2>&1 &
for i in $(seq 100); do [ -S /seeded.sock ] && exit 0; sleep 0.1; done; cat /seeded.log; exit 1`

// What a child draws and is, one fact a line.
const childFacts = `python3 - <<'PY'
import ctypes, os, socket, time, uuid
def ask():
    s = socket.socket(socket.AF_UNIX); s.connect("/seeded.sock"); return s.recv(99).decode().split()
seeded, own = ask()
print("getrandom", os.getrandom(16).hex())
print("urandom", open("/dev/urandom", "rb").read(16).hex())
print("uuid", uuid.uuid4())
print("seeded", seeded)
print("own", own)
print("machine-id", open("/etc/machine-id").read().strip())
print("hostname", socket.gethostname())
print("boot-id", open("/proc/sys/kernel/random/boot_id").read().strip())
try: print("dns", socket.gethostbyname(socket.gethostname() + ".outside.test"))
except OSError as e: print("dns", e)
PY
echo ssh-key $(cat /etc/ssh/ssh_host_ed25519_key.pub)
for i in $(seq 50); do [ -f /writer.end ] && break; sleep 0.1; done
echo writer $(cat /writer.end 2>/dev/null)
echo written $(wc -l < /written) $(head -n -1 /written | sha256sum | cut -d' ' -f1)
echo hooked $(wc -l < /hooked)
echo kept $KEPT`

// acknowledged takes what the writer in the parent says is on its disk.
type acknowledged struct {
	mu    sync.Mutex
	lines []string
	end   error
}

func (a *acknowledged) take(l net.Listener) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadString('\n')
		a.mu.Lock()
		if err != nil {
			a.end = err
			a.mu.Unlock()
			return
		}
		a.lines = append(a.lines, line)
		a.mu.Unlock()
	}
}

func (a *acknowledged) state() (lines []string, end error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.lines), a.end
}

// digest is the checksum of the first lines.
func digest(lines []string) string {
	h := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(h[:])
}

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

// wantChild compares a child's record with what a fork-tree promises.
func wantChild(t *testing.T, parent *api.Sandbox, tree *api.ForkedTree, child *api.Sandbox, index int) {
	t.Helper()
	var m struct {
		Tree    string `json:"fork_tree_id"`
		Role    string `json:"fork_tree_role"`
		Parent  string `json:"fork_parent_id"`
		Index   *int   `json:"fork_index"`
		Purpose string `json:"purpose"`
	}
	if err := json.Unmarshal(child.Metadata, &m); err != nil {
		t.Fatal(err)
	}
	if m.Tree != tree.TreeID || m.Role != "child" || m.Parent != parent.ID || m.Index == nil || *m.Index != index || m.Purpose != "test" {
		t.Errorf("child %d: metadata %s", index, child.Metadata)
	}
	if child.Status != api.SandboxRunning || child.ForkedFrom == nil || *child.ForkedFrom != parent.ID ||
		child.Template != parent.Template || child.Persistent || child.TTLSeconds == nil || *child.TTLSeconds != *parent.TTLSeconds {
		t.Errorf("child %d: %+v", index, child)
	}
}

// toldOfTree wants the events of a fork-tree whose children all live.
func (c *tenant) toldOfTree(t *testing.T, parent string, tree *api.ForkedTree) {
	t.Helper()
	n := len(tree.Children)
	eventually(t, 10*time.Second, "the parent's events tell of the tree", func(context.Context) error {
		events := c.events(t, parent)
		if count(events, "fork.staged") != 1 || count(events, "fork.completed") != n || count(events, "fork_tree.completed") != 1 {
			return fmt.Errorf("they are %v", typesOf(events))
		}
		return nil
	})
	seen := map[string]bool{}
	for _, e := range c.events(t, parent) {
		m := metadataOf(t, e)
		switch e.Type {
		case "fork.staged":
			if m["tree_id"] != tree.TreeID || m["count"] != float64(n) || m["pause_ms"] == nil || m["mem_mib"] == nil {
				t.Errorf("fork.staged: %s", e.Metadata)
			}
		case "fork.completed":
			id, _ := m["child_id"].(string)
			seen[id] = true
		case "fork_tree.completed":
			if m["tree_id"] != tree.TreeID || m["total"] != float64(n) || m["running"] != float64(n) || m["failed"] != 0.0 {
				t.Errorf("fork_tree.completed: %s", e.Metadata)
			}
		}
	}
	for _, child := range tree.Children {
		if !seen[child.ID] {
			t.Errorf("no fork.completed names child %s", child.ID)
		}
		if events := c.events(t, child.ID); count(events, "sandbox.forked") != 1 || count(events, "sandbox.running") != 1 {
			t.Errorf("a child's events are %v", typesOf(events))
		}
	}
}

// promotes chooses the third child and has the others deleted.
func (c *tenant) promotes(t *testing.T, parent string, tree *api.ForkedTree) {
	t.Helper()
	chosen := tree.Children[2].ID
	other := c.forkTree(t, parent, 1, "")
	for _, in := range []api.Promote{{TreeID: "tree-aaaaaaaaaaaaaaaaaaaa", CleanupSiblings: true}, {TreeID: other.TreeID, CleanupSiblings: true}} {
		_, err := c.Promote(t.Context(), chosen, in)
		refusal(t, err, 404, "not found")
	}
	_, err := c.Promote(t.Context(), parent, api.Promote{TreeID: tree.TreeID})
	refusal(t, err, 404, "not found")
	got, err := c.Promote(t.Context(), chosen, api.Promote{TreeID: tree.TreeID, CleanupSiblings: true})
	if err != nil {
		t.Fatalf("promote: %v", err)
	}
	if got.Promoted.ID != chosen || len(got.Deleted) != len(tree.Children)-1 || slices.Contains(got.Deleted, chosen) ||
		!strings.Contains(string(got.Promoted.Metadata), `"promoted"`) {
		t.Errorf("promoted %+v, deleted %d", got.Promoted, len(got.Deleted))
	}
	left := map[string]bool{}
	for s, err := range c.Sandboxes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		left[s.ID] = true
	}
	if len(left) != 3 || !left[chosen] || !left[parent] || !left[other.Children[0].ID] {
		t.Errorf("%d sandboxes are left: %v", len(left), left)
	}
	c.answers(t, chosen)
	for _, id := range []string{chosen, parent} {
		if n := count(c.events(t, id), "fork_tree.promoted"); n != 1 {
			t.Errorf("%d events tell of the promotion", n)
		}
	}
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
