// Package python_test runs the python template's resident interpreter and its
// client on this machine, beside the python3 that both stand for.
package python_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const source = "files/opt/berth/python"

// warm is a resident interpreter, its client, and the plain interpreter.
type warm struct {
	t               *testing.T
	dir             string // commands run here
	client, python3 string
	resident        *exec.Cmd
}

func newWarm(t *testing.T) *warm {
	t.Helper()
	if os.Getenv("BERTH_TEST_ROOT") != "1" {
		t.Skip("needs root, gcc with a static libc, and Python 3.11 or later: set BERTH_TEST_ROOT=1 (make test does)")
	}
	obey(t)
	// A caller with further open files has python3 run its command.
	open, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	out, err := exec.Command("python3", "-c", "import sys; print(sys._base_executable)").Output()
	must(t, err)
	w := &warm{t: t, dir: t.TempDir(), python3: strings.TrimSpace(string(out))}
	bin := t.TempDir()
	w.client = filepath.Join(bin, "python")
	socket := filepath.Join(bin, "s")
	gcc := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static",
		"-DSOCKET="+strconv.Quote(socket), "-DSELF="+strconv.Quote(w.client), "-DPYTHON="+strconv.Quote(w.python3),
		"-o", w.client, filepath.Join(source, "client.c"))
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	// Without a control group to join: those of this machine may be another kind.
	w.resident = exec.Command(w.python3, filepath.Join(source, "resident.py"), socket, "")
	w.resident.Env = environment()
	w.resident.Stderr = os.Stderr
	must(t, w.resident.Start())
	t.Cleanup(w.stop)
	await(t, "the resident listens", func() bool { return w.parent(w.client) == w.resident.Process.Pid })
	return w
}

// obey has commands begin with the usual handling of signals, also where these
// tests run in the background of a script or under nohup: what a caller ignores,
// its commands ignore, and would not end by it.
func obey(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2} {
		if signal.Ignored(sig) {
			caught := make(chan os.Signal, 1) // and dropped: as good as ignored
			signal.Notify(caught, sig)
			t.Cleanup(func() { signal.Ignore(sig) })
		}
	}
}

func (w *warm) stop() {
	if w.resident.ProcessState == nil {
		_ = w.resident.Process.Kill()
		_ = w.resident.Wait()
	}
}

// environment is that of a sandbox's commands.
func environment(more ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "LANG=C.UTF-8"}, more...)
}

func (w *warm) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = w.dir, environment()
	return cmd
}

// parent is the parent process of a program's command.
func (w *warm) parent(program string, before ...string) int {
	w.t.Helper()
	out, err := w.command(program, append(before, "-c", "import os; print(os.getppid())")...).Output()
	must(w.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	must(w.t, err)
	return pid
}

type result struct {
	Stdout, Stderr string
	Code           int
}

func run(t *testing.T, cmd *exec.Cmd, input string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	code := cmd.ProcessState.ExitCode()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return result{stdout.String(), stderr.String(), code}
}

func TestPythonIsAsPython3(t *testing.T) {
	w := newWarm(t)
	const state = `import os, signal, sys, resource, __main__
print(sys.argv, sys.path, sys.flags, sys.orig_argv[1:], sys.executable, sys.prefix, sys.warnoptions)
print({k: str(v).partition(" at ")[0] for k, v in vars(__main__).items() if k != "__builtins__"})
print(sys.stdin, sys.stdout, sys.stderr, sys.stdin.errors, sys.stdout.errors, sys.stderr.errors, sys.stderr.line_buffering, sys.stdout.newlines)
print(os.getcwd(), sorted(os.environ.items()), oct(os.umask(0)), os.getpriority(0, 0), sorted(os.listdir("/proc/self/fd")))
print([resource.getrlimit(n) for n in range(16)], [signal.getsignal(n) for n in range(1, 32)], signal.pthread_sigmask(0, []))
`
	files := map[string]string{
		"state.py":         state,
		"fails.py":         "def f():\n    raise ValueError('é')\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    f()\n",
		"syntax.py":        "x = (\n",
		"latin.py":         "# coding: latin-1\nprint(ascii('\xe9'))\n",
		"pack/__main__.py": "import sys; print(sys.argv[1:], __package__, __spec__ and __spec__.name)\n",
		"pack/json.py":     "here = True\n",
		"pack/shadow.py":   "import json; print(json.here)\n",
		"link.py":          "", // replaced by a link below
		"unclosed.py":      "f = open('written', 'w'); f.write('kept')\nclass C:\n    def __del__(self): print('deleted')\nc = C()\n",
		"threads.py":       "import atexit, threading, time\natexit.register(print, 'at exit')\nthreading.Thread(target=lambda: (time.sleep(.05), print('thread'))).start()\n",
		"pool.py":          "import multiprocessing, os\ndef f(x): return x * x\nif __name__ == '__main__':\n    for how in 'fork', 'spawn':\n        with multiprocessing.get_context(how).Pool(2) as p: print(p.map(f, range(4)))\n",
		"hook.py":          "import sys\nsys.excepthook = lambda t, e, b: print(t, e, b.tb_lineno)\n1/0\n",
	}
	for name, content := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(w.dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(w.dir, name), []byte(content), 0o600))
	}
	must(t, os.Remove(filepath.Join(w.dir, "link.py")))
	must(t, os.Symlink("pack/../state.py", filepath.Join(w.dir, "link.py")))
	for _, c := range []struct {
		args  []string
		input string
	}{
		{args: []string{"-c", state, "a", "", "é"}},
		{args: []string{"-c", state, "-c", "b"}},
		{args: []string{"state.py", "-x", "--y"}},
		{args: []string{"./pack/../state.py"}},
		{args: []string{"link.py"}},
		{args: []string{"-m", "state", "a"}},
		{args: []string{"-m", "pack", "a"}},
		{args: []string{"pack", "a"}},
		{args: []string{"pack/shadow.py"}},
		{args: []string{"-", "a"}, input: state},
		{args: nil, input: state},
		{args: nil, input: "import sys\ndef f(): 1/0\nf()\n"},
		{args: nil, input: ""},
		{args: []string{"-m", "json.tool"}, input: `{"a": [1, "é"]}`},
		{args: []string{"-m", "json.tool"}, input: "{"},
		{args: []string{"-c", "print(input(), input())"}, input: "1\n2\r\n"},
		{args: []string{"fails.py"}},
		{args: []string{"syntax.py"}},
		{args: []string{"latin.py"}},
		{args: []string{"unclosed.py"}},
		{args: []string{"threads.py"}},
		{args: []string{"pool.py"}},
		{args: []string{"hook.py"}},
		{args: []string{"absent.py"}},
		{args: []string{"-m", "absent"}},
		{args: []string{""}},
		{args: []string{"-c"}},
		{args: []string{"-V"}},
		{args: []string{"-I", "-c", "import sys; print(sys.flags)"}},
		{args: []string{"-c", "import sys; sys.exit()"}},
		{args: []string{"-c", "import sys; sys.exit(7)"}},
		{args: []string{"-c", "import sys; sys.exit(-1)"}},
		{args: []string{"-c", "import sys; sys.exit('bye')"}},
		{args: []string{"-c", "import os; os._exit(9)"}},
		{args: []string{"-c", "import os; os.abort()"}},
		{args: []string{"-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"}},
		{args: []string{"-c", "raise KeyboardInterrupt"}},
		{args: []string{"-c", "import sys; sys.stdout.write('no newline'); sys.stderr.write('err')"}},
		{args: []string{"-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 2000)"}},
		{args: []string{"-c", "import subprocess; print(subprocess.run('echo out; echo err >&2; exit 3', shell=True, capture_output=True))"}},
		{args: []string{"-c", "import asyncio\nasync def f(): await asyncio.sleep(0); return 5\nprint(asyncio.run(f()))"}},
		{args: []string{"-c", "import sys; print(len(sys.argv[1]))", strings.Repeat("x", 100_000)}},
	} {
		name := strings.Join(c.args, " ")
		name = strings.ReplaceAll(name[:min(len(name), 40)], "\n", " ")
		t.Run(name, func(t *testing.T) {
			want := run(t, w.command(w.python3, c.args...), c.input)
			got := run(t, w.command(w.client, c.args...), c.input)
			if got != want {
				t.Errorf("python %q:\n%s\npython3:\n%s", c.args, show(got), show(want))
			}
		})
	}
}

func show(r result) string {
	return fmt.Sprintf("code %d\nstdout %.9000q\nstderr %.3000q", r.Code, r.Stdout, r.Stderr)
}

// What the caller has set for its process is the command's, too.
func TestCallersStateIsTheCommands(t *testing.T) {
	w := newWarm(t)
	const state = `import os, resource, signal, sys, time; print(os.getppid() == int(sys.argv[1]), file=sys.stderr)
print(oct(os.umask(0)), resource.getrlimit(resource.RLIMIT_NOFILE), os.getpriority(0, 0), os.environ.get("A"), time.tzname)
print(signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT), os.path.expanduser("~"), sys.path)`
	for _, with := range []string{
		"umask 027", "ulimit -n 77", "trap '' HUP INT", "export A=b TZ=Asia/Tokyo", "HOME=" + w.dir, "renice -n 19 $$ >/dev/null",
	} {
		script := with + `; exec "$0" -c "$1" "$2"`
		pid := strconv.Itoa(w.resident.Process.Pid)
		want := run(t, w.command("sh", "-c", script, w.python3, state, pid), "")
		got := run(t, w.command("sh", "-c", script, w.client, state, pid), "")
		if got.Stderr != "True\n" || got.Stdout != want.Stdout {
			t.Errorf("%s: python: %s\npython3: %s", with, show(got), show(want))
		}
	}
	// What cannot be written is told, by the exit code as well.
	for _, script := range []string{`"$0" -c 'print(5)' >/dev/full`, `"$0" -c 'import sys; print(5); sys.exit(3)' >/dev/full`} {
		want, got := run(t, w.command("sh", "-c", script, w.python3), ""), run(t, w.command("sh", "-c", script, w.client), "")
		if got != want {
			t.Errorf("%s:\npython  %s\npython3 %s", script, show(got), show(want))
		}
	}
	// A package that is installed later is found.
	must(t, os.MkdirAll(filepath.Join(w.dir, ".local", "elsewhere"), 0o755))
	must(t, os.WriteFile(filepath.Join(w.dir, ".local", "elsewhere", "late.py"), nil, 0o600))
	version, err := w.command(w.python3, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])").Output()
	must(t, err)
	site := filepath.Join(w.dir, ".local", "lib", strings.TrimSpace(string(version)), "site-packages")
	must(t, os.MkdirAll(site, 0o755))
	must(t, os.WriteFile(filepath.Join(site, "late.pth"), []byte(filepath.Join(w.dir, ".local", "elsewhere")+"\n"), 0o600))
	cmd := w.command(w.client, "-c", "import late, sys; print(sys.path)")
	cmd.Env = append(cmd.Env, "HOME="+w.dir)
	if got := run(t, cmd, ""); got.Code != 0 {
		t.Errorf("a package installed later: %s", show(got))
	}
}

func TestPython3RunsWhatIsNotPlain(t *testing.T) {
	w := newWarm(t)
	const parent = "import os; print(os.getppid())"
	isWarm := func(cmd *exec.Cmd) bool {
		got := run(t, cmd, "")
		if got.Code != 0 {
			t.Errorf("%q: %s", cmd.Args, show(got))
		}
		return got.Stdout == fmt.Sprintln(w.resident.Process.Pid)
	}
	if !isWarm(w.command(w.client, "-c", parent)) {
		t.Error("the plain command is not warm")
	}
	cold := map[string]*exec.Cmd{
		"an option":  w.command(w.client, "-s", "-c", parent),
		"a variable": w.command(w.client, "-c", parent),
		"a locale":   w.command(w.client, "-c", parent),
		"a terminal": w.command("script", "-qec", w.client+` -c "import os; assert os.getppid() != `+strconv.Itoa(w.resident.Process.Pid)+`"`, "/dev/null"),
	}
	cold["an open file"] = w.command("sh", "-c", `exec "$0" -c "$1" 5</dev/null`, w.client, parent)
	cold["a variable"].Env = environment("PYTHONHASHSEED=5")
	cold["a locale"].Env = []string{"PATH=/usr/bin:/bin", "HOME=/root"}
	link := filepath.Join(w.dir, "python")
	must(t, os.Symlink(w.client, link))
	cold["a link"] = w.command(link, "-c", parent)
	for what, cmd := range cold {
		if isWarm(cmd) {
			t.Errorf("%s: it was the resident", what)
		}
	}
	w.stop()
	if got := run(t, w.command(w.client, "-c", "print(5)"), ""); got != (result{Stdout: "5\n"}) {
		t.Errorf("without a resident: %s", show(got))
	}
}

func TestRandomNumbersDiffer(t *testing.T) {
	w := newWarm(t)
	draw := func() string {
		return run(t, w.command(w.client, "-c", "import random, secrets, uuid, os; print(random.random()); print(secrets.token_hex()); print(uuid.uuid4())"), "").Stdout
	}
	x, y := strings.Fields(draw()), strings.Fields(draw())
	if len(x) != 3 || len(y) != 3 {
		t.Fatalf("%q, %q", x, y)
	}
	for i := range x {
		if x[i] == y[i] {
			t.Errorf("both drew %s", x[i])
		}
	}
}

// waiting starts a command that tells its process number and waits.
func (w *warm) waiting(code string) (cmd *exec.Cmd, pid int) {
	w.t.Helper()
	// It ends in any case: one that a signal did not reach must not wait for ever.
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	w.t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, w.client, "-c", code+"\nimport os, time; print(os.getpid(), flush=True)\nwhile True: time.sleep(0.1)")
	cmd.Dir, cmd.Env = w.dir, environment()
	out, err := cmd.StdoutPipe()
	must(w.t, err)
	must(w.t, cmd.Start())
	w.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line := make([]byte, 32)
	n, err := out.Read(line)
	if err != nil && !errors.Is(err, io.EOF) {
		w.t.Fatal(err)
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(line[:n])))
	must(w.t, err)
	if pid == cmd.Process.Pid {
		w.t.Fatal("it was not the resident")
	}
	return cmd, pid
}

// The tests may run where the shell has them ignore signals.
func TestSignalsWhereTheCallerIgnoresThem(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			signal.Ignore(sig)
			t.Cleanup(func() { signal.Reset(sig) })
		}
	}
	TestSignals(t)
}

func TestSignals(t *testing.T) {
	w := newWarm(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGINT} {
		cmd, pid := w.waiting("")
		must(t, cmd.Process.Signal(sig))
		_ = cmd.Wait()
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != sig {
			t.Errorf("%v: the client ended with %v", sig, cmd.ProcessState)
		}
		await(t, "the child has ended", func() bool { return !lives(pid) })
	}
	cmd, _ := w.waiting("import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))")
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 4 {
		t.Errorf("a handled signal: exit code %d", code)
	}
}

func TestKilledClientTakesItsCommandAlong(t *testing.T) {
	w := newWarm(t)
	cmd, pid := w.waiting("import subprocess; subprocess.Popen(['sleep', '1000'])")
	group := members(t, pid)
	if len(group) != 2 {
		t.Fatalf("the command's group has %v", group)
	}
	must(t, cmd.Process.Kill())
	await(t, "the group has ended", func() bool { return !slices.ContainsFunc(group, lives) })
	// What a command left behind on purpose lives on.
	got := run(t, w.command(w.client, "-c", "import subprocess; print(subprocess.Popen(['sleep', '1000'], stdout=-3, stderr=-3).pid)"), "")
	left, err := strconv.Atoi(strings.TrimSpace(got.Stdout))
	must(t, err)
	w.parent(w.client) // the resident has seen the end of the one before
	if !lives(left) {
		t.Error("a daemon died with its command")
	}
	must(t, syscall.Kill(left, syscall.SIGKILL))
}

func TestEndOfTheResidentEndsItsCommands(t *testing.T) {
	w := newWarm(t)
	cmd, pid := w.waiting("")
	w.stop()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("the client ended with %v", cmd.ProcessState)
	}
	await(t, "the child has ended", func() bool { return !lives(pid) })
}

// members are the processes of a group.
func members(t *testing.T, group int) []int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	var found []int
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if g, err := syscall.Getpgid(pid); err == nil && g == group {
			found = append(found, pid)
		}
	}
	return found
}

// lives tells whether a process runs; one that waits to be reaped does not.
func lives(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(raw, []byte(") Z "))
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within 20 s: %s", what)
		case <-tick.C:
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
