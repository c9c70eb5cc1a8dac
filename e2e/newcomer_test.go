package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

func TestSandboxThroughEachReplica(t *testing.T) {
	for i := range theStack.URLs {
		t.Run(fmt.Sprintf("r%d", i+1), func(t *testing.T) {
			c := newTenant(t)
			here := c.through(t, i)
			sandbox, err := here.CreateSandbox(t.Context(), api.CreateSandbox{
				Template: stack.BaseTemplate,
				Metadata: api.Object(`{"made_by":"a newcomer","n":[1,2.50]}`),
				Env:      api.StringMap{"GREETING": "bon jour"},
			}, t.Name())
			if err != nil {
				t.Fatal(err)
			}
			c.deleteAtEnd(t, sandbox.ID)
			if sandbox.Status != api.SandboxRunning || sandbox.CPU != 1 || sandbox.MemoryMB != 512 || sandbox.AgentID == "" {
				t.Errorf("created %+v", sandbox)
			}
			out := here.exec(t, sandbox.ID, `uname -a && python3 -c 'print(6*7)' && echo "$GREETING"`)
			if !strings.HasPrefix(out, "Linux ") || !strings.HasSuffix(out, "\n42\nbon jour\n") {
				t.Errorf("the command wrote %q", out)
			}
			// What one replica made, every replica knows.
			for j := range theStack.URLs {
				there := c.through(t, j)
				got, err := there.GetSandbox(t.Context(), sandbox.ID)
				if err != nil || got.Status != api.SandboxRunning || string(got.Metadata) != `{"made_by":"a newcomer","n":[1,2.50]}` {
					t.Errorf("replica %d: %+v, %v", j+1, got, err)
				}
				listed, _, err := there.ListSandboxes(t.Context(), api.Page{})
				if err != nil || len(listed) != 1 || listed[0].ID != sandbox.ID {
					t.Errorf("replica %d lists %v, %v", j+1, listed, err)
				}
			}
			if err := c.through(t, (i+1)%len(theStack.URLs)).DeleteSandbox(t.Context(), sandbox.ID); err != nil {
				t.Fatalf("delete: %v", err)
			}
			if _, err := here.GetSandbox(t.Context(), sandbox.ID); api.StatusOf(err) != http.StatusNotFound {
				t.Errorf("after the delete: %v, want 404", err)
			}
		})
	}
}

func TestBaseTemplateHasWhatItPromises(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	sandbox := c.create(t)
	out := c.exec(t, sandbox.ID, `set -e
. /etc/os-release; echo "$ID $VERSION_ID"
for p in bash ls python3 node npm git curl gcc make; do command -v "$p" >/dev/null || echo "missing: $p"; done
test -x /usr/sbin/sshd || echo "missing: sshd"
test -s /etc/ssl/certs/ca-certificates.crt || echo "missing: ca-certificates"
nproc
awk '/MemTotal/ {print int($2/1024)}' /proc/meminfo
df --output=used -BM / | tail -n 1 | tr -dc 0-9
`)
	lines := strings.Fields(out)
	if len(lines) != 5 || lines[0] != "debian" || lines[1] != "12" || lines[2] != "1" {
		t.Fatalf("the guest says %q", out)
	}
	memory, _ := strconv.Atoi(lines[3])
	used, _ := strconv.Atoi(lines[4])
	if memory < 400 || memory > 512 {
		t.Errorf("the guest sees %d MB of memory, want 512 less what its kernel keeps", memory)
	}
	if used > 2048 {
		t.Errorf("the guest's disk holds %d MB, want at most 2048", used)
	}
	eventually(t, time.Minute, "the SSH server answers", func(ctx context.Context) error {
		all, err := c.Events(ctx, sandbox.ID, api.EventQuery{})
		if err == nil && count(all, "sandbox.ssh_ready") != 1 {
			err = fmt.Errorf("its events are %v", all)
		}
		return err
	})
}

func TestExecKeepsStreamsAndCodesApart(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	id := c.create(t).ID
	cases := []struct {
		name string
		in   api.Exec
		want api.ExecResult
	}{
		{"stdout, stderr and a code", api.Exec{Cmd: api.Shell("echo out; echo err >&2; exit 7")}, api.ExecResult{Stdout: "out\n", Stderr: "err\n", ExitCode: 7}},
		{"an argv sees no shell", api.Exec{Cmd: api.Argv("echo", "$HOME; exit 3", "a\nb")}, api.ExecResult{Stdout: "$HOME; exit 3 a\nb\n"}},
		{"a command of several lines", api.Exec{Cmd: api.Shell("a=1\necho $a\n\necho 'x\ny'\n")}, api.ExecResult{Stdout: "1\nx\ny\n"}},
		{"stdin ends", api.Exec{Cmd: api.Shell("cat; echo done"), Stdin: "typed\n"}, api.ExecResult{Stdout: "typed\ndone\n"}},
		{"directory, user and environment", api.Exec{Cmd: api.Shell(`pwd; id -un; echo "$A"`), Cwd: "/tmp", User: "nobody", Env: api.StringMap{"A": "ü\tb"}}, api.ExecResult{Stdout: "/tmp\nnobody\nü\tb\n"}},
		{"a signal ends it", api.Exec{Cmd: api.Shell("kill -9 $$")}, api.ExecResult{ExitCode: 137}},
		{"no such program", api.Exec{Cmd: api.Argv("no-such-program")}, api.ExecResult{ExitCode: 127}},
		{"bytes that are no text", api.Exec{Cmd: api.Shell(`printf 'a\377b'`)}, api.ExecResult{Stdout: "a\uFFFDb", StdoutBase64: api.Bytes("a\xffb")}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, err := c.Exec(t.Context(), id, tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if got.ExitCode != tc.want.ExitCode || got.Stdout != tc.want.Stdout || string(got.StdoutBase64) != string(tc.want.StdoutBase64) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			// A program that cannot be started is explained on stderr, in words of the guest's.
			if tc.want.ExitCode != 127 && got.Stderr != tc.want.Stderr {
				t.Errorf("stderr is %q, want %q", got.Stderr, tc.want.Stderr)
			}
		})
	}
}

func TestExecTimeoutKillsTheWholeGroup(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	id := c.create(t).ID
	got, err := c.Exec(t.Context(), id, api.Exec{Cmd: api.Shell("sleep 301 & echo begun; sleep 302"), TimeoutSeconds: new(int64(2))})
	if err != nil {
		t.Fatal(err)
	}
	if !got.TimedOut || got.Stdout != "begun\n" {
		t.Errorf("got %+v", got)
	}
	if left := c.exec(t, id, "pgrep -f 'sleep 30[12]' | wc -l"); strings.TrimSpace(left) != "0" {
		t.Errorf("%s processes of the group live on", strings.TrimSpace(left))
	}
}

// Two sandboxes come from one stored memory, and yet share nothing that should
// be a guest's own.
func TestRestoredSandboxesAreNotTwins(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	a, b := c.create(t), c.create(t)
	const facts = `hostname
cat /etc/machine-id
cat /etc/ssh/ssh_host_ed25519_key.pub
cat /proc/sys/kernel/random/uuid
head -c 32 /dev/urandom | sha256sum
python3 -c 'import uuid; print(uuid.uuid4())'`
	of := map[string][]string{}
	for _, s := range []*api.Sandbox{a, b} {
		of[s.ID] = strings.Split(strings.TrimSpace(c.exec(t, s.ID, facts)), "\n")
	}
	if len(of[a.ID]) != 6 {
		t.Fatalf("facts of a guest: %q", of[a.ID])
	}
	for i := range of[a.ID] {
		if of[a.ID][i] == of[b.ID][i] || of[a.ID][i] == "" {
			t.Errorf("both guests have %q", of[a.ID][i])
		}
	}
	for _, s := range []*api.Sandbox{a, b} {
		before := time.Now()
		seconds, err := strconv.ParseFloat(strings.TrimSpace(c.exec(t, s.ID, "date +%s.%N")), 64)
		if err != nil {
			t.Fatal(err)
		}
		guest := time.UnixMicro(int64(seconds * 1e6))
		if guest.Before(before.Add(-time.Second)) || guest.After(time.Now().Add(time.Second)) {
			t.Errorf("the guest's clock says %s, the host's %s", guest, before)
		}
	}
}

// The file that make up leaves for shells says what API-clients need, and only
// its owner may read it.
func TestDevEnv(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dev.env")
	if err := theStack.WriteEnv(path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			names = append(names, name)
			if value == "" || strings.ContainsAny(value, " '\"$`") {
				t.Errorf("%s=%s is not a plain shell assignment", name, value)
			}
		}
	}
	want := []string{"BERTH_URL", "BERTH_URLS", "BERTH_TOKEN", "BERTH_JWT", "BERTH_JWT_HS256_KEY", "BERTH_ADMIN_TOKEN", "BERTH_PREVIEW_SUFFIX", "BERTH_APP_SUFFIX",
		"BERTH_DB_DOMAIN", "BERTH_DB_ADDR", "BERTH_DB_ADDRS", "BERTH_DB_CA", "BERTH_DOMAIN_ADDR", "BERTH_DOMAIN_CA"}
	if !slices.Equal(names, want) {
		t.Errorf("it assigns %v, want %v", names, want)
	}
}
