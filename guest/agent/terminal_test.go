package agent

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/tier"
)

// console is a command on a terminal, driven as a person would.
type console struct {
	*screen
	t       *testing.T
	keys    io.Writer
	resizes chan guestapi.TTY
	done    chan guestapi.ExecExit
	cancel  context.CancelFunc
}

func (w *world) console(t *testing.T, req guestapi.ExecRequest) *console {
	t.Helper()
	read, write := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	c := &console{screen: &screen{}, t: t, keys: write, resizes: make(chan guestapi.TTY), done: make(chan guestapi.ExecExit, 1), cancel: cancel}
	t.Cleanup(func() { cancel(); write.Close() })
	req.TTY = &guestapi.TTY{Cols: 90, Rows: 30}
	go func() {
		exit, err := w.client.Exec(ctx, req, guestclient.Streams{Stdin: read, Stdout: c.screen, Resizes: c.resizes})
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		c.done <- exit
	}()
	return c
}

func (c *console) typed(keys string) {
	c.t.Helper()
	_, err := io.WriteString(c.keys, keys)
	must(c.t, err)
}

func (c *console) awaits(text string) {
	c.t.Helper()
	await(c.t, text, func() bool { return c.shows(text) })
}

func TestInterruptReachesTheForegroundOnly(t *testing.T) {
	w := start(t)
	c := w.console(t, guestapi.ExecRequest{Argv: []string{"/bin/bash", "--norc", "-i"}})
	c.typed("sleep 1000 &\n")
	c.typed("trap 'echo never' INT; echo job=$!; echo rea''dy\n")
	c.awaits("ready")
	c.typed("sleep 1001\n")
	await(t, "the foreground", func() bool { return running("sleep", "1001") })
	c.typed("\x03")
	await(t, "its end", func() bool { return !running("sleep", "1001") })
	c.typed("echo code=$?; kill -0 $! && echo back''ground lives; kill $!; exit 3\n")
	if exit := <-c.done; exit.ExitCode != 3 || !c.shows("code=130") || !c.shows("background lives") {
		t.Errorf("got %+v:\n%s", exit, c.text())
	}
}

// running looks for a process by its arguments.
func running(argv ...string) bool {
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, d := range dirs {
		if raw, err := os.ReadFile(d); err == nil && string(raw) == strings.Join(argv, "\x00")+"\x00" {
			return true
		}
	}
	return false
}

func TestTerminalsEndTakesItsProcesses(t *testing.T) {
	w := start(t)
	c := w.console(t, guestapi.ExecRequest{})
	pids := filepath.Join(t.TempDir(), "pids")
	c.typed("(trap '' HUP; echo $BASHPID $$ > " + pids + "; exec sleep 1002)\n")
	var child, shell int
	await(t, "the child", func() bool {
		raw, _ := os.ReadFile(pids)
		n, _ := fmt.Sscan(string(raw), &child, &shell)
		return n == 2 && running("sleep", "1002")
	})
	c.cancel()
	<-c.done
	// The child's process group is not the shell's: without control groups, as
	// here, only the hang-up reaches it, which it ignores.
	await(t, "the shell's end", func() bool { return !alive(shell) })
	if p, err := os.FindProcess(child); err == nil {
		_ = p.Kill()
	}
}

// TestFullScreenProgram edits a file with vim.
func TestFullScreenProgram(t *testing.T) {
	path := tier.Program(t, "vim")
	w := start(t)
	dir := t.TempDir()
	c := w.console(t, guestapi.ExecRequest{Argv: []string{path, "-N", "-u", "NONE", "-i", "NONE", "+set showmode",
		"+autocmd VimResized * call writefile([&columns . 'x' . &lines], 'size')", "text"}, Cwd: dir})
	c.awaits("\x1b[?1049h") // the other screen
	c.awaits("[New]")
	c.typed("i")
	c.awaits("INSERT")
	c.typed("grüße, 日本\rzweite")
	c.awaits("zweite")
	c.typed("\x1b")
	c.resizes <- guestapi.TTY{Cols: 123, Rows: 45}
	looks := 0
	await(t, "the size", func() bool {
		// Vim may notice a new size only when it looks for the next key.
		if looks++; looks%20 == 0 {
			c.typed("\x0c")
		}
		raw, _ := os.ReadFile(filepath.Join(dir, "size"))
		return len(raw) > 0
	})
	c.typed(":wq\r")
	if exit := <-c.done; exit.ExitCode != 0 || !c.shows("\x1b[?1049l") {
		t.Errorf("got %+v:\n%q", exit, c.text())
	}
	for name, want := range map[string]string{"text": "grüße, 日本\nzweite\n", "size": "123x45\n"} {
		if raw, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(raw) != want {
			t.Errorf("%s: %q, %v, want %q", name, raw, err, want)
		}
	}
}
