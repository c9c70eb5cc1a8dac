package proc

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// screen collects what a terminal shows, for others to look at meanwhile.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *screen) shows(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.buf.String(), text)
}

// terminal runs a shell on a terminal.
func terminal(t *testing.T, line string) (*Process, *screen, chan guestapi.ExecExit) {
	t.Helper()
	p, err := Start(Groups{}, Spec{Argv: sh(line), TTY: &guestapi.TTY{Cols: 91, Rows: 33}})
	if err != nil {
		t.Fatal(err)
	}
	shown := &screen{}
	done := make(chan guestapi.ExecExit, 1)
	go func() { done <- p.Run(Collect(shown, io.Discard)) }()
	return p, shown, done
}

func TestTerminalHasItsSizeAndTerm(t *testing.T) {
	_, shown, done := terminal(t, "stty size; echo $TERM; tty")
	if exit := <-done; exit.ExitCode != 0 {
		t.Errorf("got %+v", exit)
	}
	for _, want := range []string{"33 91", "xterm-256color", "/dev/pts/"} {
		if !shown.shows(want) {
			t.Errorf("the terminal does not show %q:\n%s", want, shown.buf.String())
		}
	}
}

func TestTerminalIsResized(t *testing.T) {
	p, shown, done := terminal(t, "trap 'stty size; exit 0' WINCH; echo ready; while :; do read x; done")
	await(t, "the shell", func() bool { return shown.shows("ready") })
	if err := p.Resize(guestapi.TTY{Cols: 120, Rows: 50}); err != nil {
		t.Fatal(err)
	}
	await(t, "the new size", func() bool { return shown.shows("50 120") })
	<-done
}

func TestControlCInterruptsTheForeground(t *testing.T) {
	p, shown, done := terminal(t, "stty noflsh; trap 'echo interrupted; exit 9' INT; echo ready; sleep 1000") // each ^C would discard what is not read yet
	await(t, "the shell", func() bool { return shown.shows("ready") })
	// Again, as a person would: a child that the shell has forked and that is not
	// yet the sleep takes the signal with the shell's own handler, and sleeps on.
	await(t, "the shell's end", func() bool {
		_, _ = p.Write([]byte{3})
		return len(done) > 0
	})
	if exit := <-done; exit.ExitCode != 9 || !shown.shows("interrupted") {
		t.Errorf("got %+v:\n%s", exit, shown.buf.String())
	}
}

func TestEndOfInputOnATerminal(t *testing.T) {
	p, shown, done := terminal(t, "echo ready; cat; echo after")
	await(t, "the shell", func() bool { return shown.shows("ready") })
	if _, err := p.Write([]byte("grüße\n")); err != nil {
		t.Fatal(err)
	}
	if err := p.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if exit := <-done; exit.ExitCode != 0 || !shown.shows("grüße") || !shown.shows("after") {
		t.Errorf("got %+v:\n%s", exit, shown.buf.String())
	}
}

func TestBackgroundProcessDoesNotKeepATerminal(t *testing.T) {
	_, _, done := terminal(t, "sleep 1000 & exit 6")
	if exit := <-done; exit.ExitCode != 6 {
		t.Errorf("got %+v", exit)
	}
}

func TestBackspaceErasesACharacter(t *testing.T) {
	p, shown, done := terminal(t, "echo ready; read -r line; echo [$line]")
	await(t, "the shell", func() bool { return shown.shows("ready") })
	if _, err := p.Write([]byte("a\u00fc\u65e5\x7f\x7fb\n")); err != nil {
		t.Fatal(err)
	}
	if <-done; !shown.shows("[ab]") {
		t.Errorf("the terminal shows %q", shown.buf.String())
	}
}

func TestLoginShell(t *testing.T) {
	p, err := Start(Groups{}, Spec{TTY: &guestapi.TTY{Cols: 80, Rows: 24}})
	if err != nil {
		t.Fatal(err)
	}
	shown := &screen{}
	done := make(chan guestapi.ExecExit, 1)
	go func() { done <- p.Run(Collect(shown, io.Discard)) }()
	user, err := LookUpUser("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Write([]byte("echo \"name=$0 home=$HOME shell=$SHELL term=$TERM dir=$PWD\"; exit 5\n")); err != nil {
		t.Fatal(err)
	}
	want := "name=-" + filepath.Base(user.Shell) + " home=" + user.Home + " shell=" + user.Shell + " term=xterm-256color dir=" + user.Dir()
	if exit := <-done; exit.ExitCode != 5 || !shown.shows(want) {
		t.Errorf("got %+v, want %q in:\n%s", exit, want, shown.buf.String())
	}
}

func TestLoginShellThatIsMissing(t *testing.T) {
	for shell, want := range map[string]string{"/no/such/shell": "/bin/sh", "bash": "/bin/sh", "/etc/passwd": "/bin/sh", "/bin/cat": "/bin/cat"} {
		path, argv := loginShell(User{Shell: shell})
		if path != want || len(argv) != 1 || argv[0] != "-"+filepath.Base(want) {
			t.Errorf("%s: %s %q", shell, path, argv)
		}
	}
}
