package proc

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/tier"
)

// testGroups makes groups below this machine's unified hierarchy, which only
// root may write to.
func testGroups(t *testing.T) Groups {
	t.Helper()
	tier.Root(t)
	root := unifiedMount(t)
	dir := ""
	if root != "" {
		var err error
		if dir, err = os.MkdirTemp(root, "berth-test-"); err != nil {
			dir = ""
		}
	}
	if dir == "" {
		t.Fatal("no cgroup v2 hierarchy that can be written to")
	}
	t.Cleanup(func() {
		// What was killed a moment ago may still be on its way out.
		await(t, "no control group is left", func() bool {
			left, _ := filepath.Glob(dir + "/*/cgroup.procs")
			for _, g := range left {
				_ = os.Remove(filepath.Dir(g))
			}
			return os.Remove(dir) == nil
		})
	})
	g, err := openGroups(dir)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func unifiedMount(t *testing.T) string {
	t.Helper()
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if w := strings.Fields(lines.Text()); len(w) > 2 && w[2] == "cgroup2" {
			return w[1]
		}
	}
	return ""
}

// escape is a command that leaves its session and process group, as daemons do,
// and says who it is.
func escape(file string) string {
	return "setsid sh -c 'echo $$ > " + file + "; exec sleep 1000' </dev/null >/dev/null 2>&1 & until [ -s " + file + " ]; do sleep 0.01; done; "
}

func TestTimeOutKillsWhatLeftTheProcessGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	p, err := Start(testGroups(t), Spec{Argv: sh(escape(file) + "sleep 1000"), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if got := finish(p); !got.exit.TimedOut {
		t.Errorf("got %+v", got.exit)
	}
	await(t, "the daemon's end", func() bool { return !alive(readPID(t, file)) })
}

func TestCommandThatEndsLeavesItsDaemonsAlone(t *testing.T) {
	g := testGroups(t)
	file := filepath.Join(t.TempDir(), "pid")
	p, err := Start(g, Spec{Argv: sh(escape(file) + "exit 0")})
	if err != nil {
		t.Fatal(err)
	}
	finish(p)
	p.Kill() // what a caller's end would do now
	pid := readPID(t, file)
	if !alive(pid) {
		t.Fatal("the daemon was killed")
	}
	groups := func() []string {
		left, err := filepath.Glob(g.dir + "/exec-*")
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	if left := groups(); len(left) != 1 {
		t.Errorf("groups while the daemon runs: %v", left)
	}
	if err := write(groups()[0], "cgroup.kill", "1"); err != nil {
		t.Fatal(err)
	}
	await(t, "the daemon's end", func() bool { return !alive(pid) })
	await(t, "the removal of its group with a later command's", func() bool {
		p, err := Start(g, Spec{Argv: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		finish(p)
		return len(groups()) == 0
	})
}
