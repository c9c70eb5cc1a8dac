package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/docs"
	"github.com/berth-cloud/berth/tier"
	"github.com/berth-cloud/berth/timescale"
)

// exampleShell makes an example that is refused end the shell. A stream that follows is
// ended by curl's own limit, which is its code 28.
const exampleShell = `
curl() {
  local arg fail=--fail-with-body code=0
  for arg in "$@"; do [[ $arg != -sf ]] || fail=; done
  command curl $fail "$@" || code=$?
  ((code != 28)) || code=0
  return $code
}
gets() {
  local want=$1 got
  got=$(command "${@:2}" -o /dev/stderr -w '%{http_code}')
  [[ $got == "$want" ]] || { echo "the status is $got, and the example says $want" >&2; return 1; }
}
`

// exampleMark begins the output of the example of a line.
const exampleMark = "--- docs/api.md:"

// The examples of docs/api.md run from top to bottom in one shell, as its first
// paragraph says.
func TestExamplesOfTheDocument(t *testing.T) {
	tier.Guests(t)
	bash := tier.Program(t, "bash")
	tier.Program(t, "curl")
	tier.Program(t, "jq")
	page, err := os.ReadFile(filepath.Join(theStack.Root, "docs", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples, err := docs.Examples(string(page))
	if err != nil {
		t.Fatal(err)
	}
	c, operator := newTenant(t), admin(t)
	c.knownEverywhere(t)
	t.Cleanup(func() { c.clear(t) })
	t.Cleanup(func() { // an example drains a host
		for _, host := range theStack.HostProc {
			if _, err := operator.UndrainAgent(context.Background(), host.ID); err != nil {
				t.Error(err)
			}
		}
		healthy(t)
	})

	script := exampleShell
	for _, e := range examples {
		if e.Skip == "" {
			text := docs.Refused.ReplaceAllString(e.Text, "gets $2 $1")
			script += fmt.Sprintf("echo; echo '%s%d'\n%s", exampleMark, e.Line, text)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, ".examples")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	most := timescale.Limit(8 * time.Minute)
	if end, ok := t.Deadline(); ok {
		most = min(most, time.Until(end)-3*time.Minute) // what the stack needs to stop
	}
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "-euo", "pipefail", file)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "BERTH_URL=" + theStack.URLs[0], "BERTH_TOKEN=" + c.token, "BERTH_JWT=" + c.jwt, "BERTH_ADMIN_TOKEN=" + theStack.AdminToken}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// All that the examples write can be read while they run.
	log, err := os.Create(filepath.Join(theStack.Logs, "examples.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var out strings.Builder
	cmd.Stdout = io.MultiWriter(&out, log)
	cmd.Stderr = cmd.Stdout
	if err = cmd.Run(); err == nil {
		return
	}
	written := out.String()
	line, written, _ := strings.Cut(written[strings.LastIndex(written, exampleMark)+len(exampleMark):], "\n")
	for _, e := range examples {
		if strconv.Itoa(e.Line) == line {
			t.Errorf("the example of docs/api.md:%s: %v\n%s\nIt wrote:\n%s", line, err, e.Text, written)
		}
	}
	if !t.Failed() {
		t.Errorf("%v:\n%s", err, out.String())
	}
}
