package hostd_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// The python template's `python` in sandboxes that were restored with it.
func TestRealWarmPython(t *testing.T) {
	h := newHost(t)
	h.run("template", "build", filepath.Join("..", "templates", "base", "template.yaml"), filepath.Join("..", "templates", "python", "template.yaml"))
	h.start()
	made := func(letter string) string {
		id := strings.Repeat(letter, 26)
		h.make(id, hostapi.BoxSpec{Generation: 1, WorkspaceID: "ws", Template: "python"})
		return id
	}
	took := func(id string, argv ...string) time.Duration {
		began := time.Now()
		res, err := h.client.Exec(t.Context(), call, id, hostapi.ExecRequest{Argv: argv, Timeout: 30 * time.Second})
		must(t, err)
		if res.ExitCode != 0 {
			t.Errorf("%q: exit code %d: %s", argv, res.ExitCode, res.Stderr)
		}
		return time.Since(began).Round(time.Millisecond)
	}
	x, y := made("x"), made("y")
	t.Logf("first command: python %s, python3 %s", took(x, "python", "-c", "pass"), took(y, "python3", "-c", "pass"))
	t.Logf("second command: python %s, python3 %s", took(x, "python", "-c", "pass"), took(y, "python3", "-c", "pass"))

	const draw = `python -c 'import random, secrets; print(random.random(), secrets.token_hex())'`
	if a, b := h.sh(x, draw), h.sh(y, draw); a == b || a == h.sh(x, draw) {
		t.Errorf("%s was drawn twice", a)
	}
	for script, want := range map[string]string{
		// The resident is the parent, and the control group is the command's own.
		`python -c 'import os; print(open(f"/proc/{os.getppid()}/cmdline").read().split("\0")[1])'`:              "/opt/berth/python/resident.py",
		`[ "$(cat /proc/self/cgroup)" = "$(python -c 'print(open("/proc/self/cgroup").read())')" ] && echo same`: "same",
		`cd /tmp && echo 'import sys, os; print(sys.argv, sys.path[0], os.getcwd())' > t.py && python t.py a -b`: "['t.py', 'a', '-b'] /tmp /tmp",
		`echo '{"a": 1}' | python -m json.tool --compact`:                                                        `{"a":1}`,
		`echo 'print(6 * 7)' | python`:                             "42",
		`python -c 'import sys; sys.exit(7)'; echo $?`:             "7",
		`python -c '1/0' 2>&1; echo $?`:                            "Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\nZeroDivisionError: division by zero\n1",
		`python -c 'raise KeyboardInterrupt' 2>/dev/null; echo $?`: "130",
		`python -c 'import time; print(1, flush=True); time.sleep(100)' > /tmp/o & p=$!; until [ -s /tmp/o ]; do :; done; kill $p; wait $p; echo $?`:                          "143",
		`[ "$(python -c 'import sys; print(sys.path, sys.executable, sys.flags)')" = "$(python3 -c 'import sys; print(sys.path, sys.executable, sys.flags)')" ] && echo same`: "same",
		`python -m venv --without-pip /tmp/v && /tmp/v/bin/python -c 'import sys; print(sys.prefix)'`:                                                                         "/tmp/v",
		`python -c 'import os; print(os.environ["A"])' 2>/dev/null; A=b python -c 'import os; print(os.environ["A"])'`:                                                        "b",
	} {
		if got := h.sh(x, script); got != want {
			t.Errorf("%s\n= %q, want %q", script, got, want)
		}
	}

	// A time-out ends the command, not only its client.
	res, err := h.client.Exec(t.Context(), call, x, hostapi.ExecRequest{
		Argv: []string{"python", "-c", "import time, os; open('/tmp/pid', 'w').write(str(os.getpid())); time.sleep(1000)"}, Timeout: 3 * time.Second,
	})
	if err != nil || !res.TimedOut {
		t.Errorf("after 3 s: %+v, %v", res, err)
	}
	if got := h.sh(x, `kill -0 "$(cat /tmp/pid)" 2>/dev/null || echo gone`); got != "gone" {
		t.Errorf("after the time-out: %q", got)
	}
	// Without the resident python3 runs it; guestd starts the resident again.
	h.sh(x, `kill -KILL "$(python -c 'import os; print(os.getppid())')"; test "$(python -c 'print(5)')" = 5`)
	await(t, "the resident is back", 60*time.Second, func() error {
		res, err := h.client.Exec(t.Context(), call, x, hostapi.ExecRequest{
			Argv: []string{"python", "-c", "import sys; sys.exit('runpy' not in sys.modules)"}, Timeout: 30 * time.Second,
		})
		if err == nil && res.ExitCode != 0 {
			err = errors.New("python3 ran the command")
		}
		return err
	})
}
