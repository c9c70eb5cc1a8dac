package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// The clients' own checks and tests: those against a small server of their own, and
// those against this stack, which end with the example of the client's README. Both
// clients ask this stack for the same, and Python's tests of it take five minutes, so
// make e2e alone runs these.
func TestPythonClient(t *testing.T) { testClient(t, "python", length()) }

func TestTypeScriptClient(t *testing.T) { testClient(t, "typescript", true) }

// clientTime is many times what one client's tests take on an idle machine with
// two cores.
const clientTime = 25 * time.Minute

func testClient(t *testing.T, which string, here bool) {
	t.Parallel()
	root, err := stack.FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	c := newTenant(t)
	c.knownEverywhere(t)
	ctx, cancel := context.WithTimeout(t.Context(), clientTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "scripts", "clients-test"), which)
	cmd.Env = append(os.Environ(), "BERTH_URL=")
	if here {
		cmd.Env = append(os.Environ(),
			"BERTH_URL="+theStack.URLs[0],
			"BERTH_URLS="+strings.Join(theStack.URLs, ","),
			"BERTH_TOKEN="+c.token,
		)
	}
	// The script's children go with it, or they would hold its output open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
