package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestCommandLine runs the program berth as a user does, with real guests: see
// testdata/berth. Each script has a workspace of its own.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("testdata/berth/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	tenants := map[string]*tenant{}
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".txtar")
		c := newTenant(t, name)
		c.knownEverywhere(t)
		t.Cleanup(func() { c.clear(t) })
		tenants[name] = c
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/berth",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			c := tenants[strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")]
			env.Setenv("PATH", filepath.Join(theStack.Root, "bin")+":"+os.Getenv("PATH"))
			env.Setenv("BERTH_URL", theStack.URLs[0])
			env.Setenv("BERTH_URLS", strings.Join(theStack.URLs, ","))
			env.Setenv("BERTH_TOKEN", c.token)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"keep": keep, "await": await},
	})
}

// keep names the words of the last command's output.
func keep(ts *testscript.TestScript, neg bool, args []string) {
	words := strings.Fields(ts.ReadFile("stdout"))
	if neg || len(words) != len(args) {
		ts.Fatalf("keep: %d words for %d names: %q", len(words), len(args), words)
	}
	for i, name := range args {
		ts.Setenv(name, words[i])
	}
}

// await waits until a file that a command in the background writes holds a text.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await FILE PATTERN")
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		text, _ := os.ReadFile(ts.MkAbs(args[0])) // it may not be there yet
		if pattern.Match(text) {
			return
		}
		select {
		case <-deadline.C:
			ts.Fatalf("%s does not hold %q:\n%s", args[0], args[1], text)
		case <-tick.C:
		}
	}
}
