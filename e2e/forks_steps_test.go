package e2e

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
