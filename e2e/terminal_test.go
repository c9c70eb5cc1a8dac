package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
)

// screen shows what a terminal would: enough of its language for the programs
// that the tests run.
type screen struct {
	mu         sync.Mutex
	cols, rows int
	x, y       int
	cells      [][]rune
	pending    []byte // an escape sequence or a character that is not complete
	raw        bytes.Buffer
}

func newScreen(cols, rows int) *screen {
	s := &screen{}
	s.resize(cols, rows)
	return s
}

func (s *screen) resize(cols, rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cols, s.rows, s.x, s.y = cols, rows, 0, 0
	s.cells = make([][]rune, rows)
	for i := range s.cells {
		s.cells[i] = []rune(strings.Repeat(" ", cols))
	}
}

// text is the screen's lines.
func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := make([]string, s.rows)
	for i, row := range s.cells {
		lines[i] = strings.TrimRight(string(row), " ")
	}
	return strings.Join(lines, "\n")
}

// said is all that came, as it came.
func (s *screen) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raw.String()
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw.Write(p)
	b := append(s.pending, p...)
	for len(b) > 0 {
		n := s.take(b)
		if n == 0 {
			break
		}
		b = b[n:]
	}
	s.pending = bytes.Clone(b)
	return len(p), nil
}

// take handles one character or sequence and returns its length, 0 where more
// has to come.
func (s *screen) take(b []byte) int {
	switch b[0] {
	case '\r':
		s.x = 0
		return 1
	case '\n':
		s.down()
		return 1
	case '\b':
		s.x = max(s.x-1, 0)
		return 1
	case '\x1b':
		return s.escape(b)
	}
	if b[0] < ' ' {
		return 1
	}
	if !utf8.FullRune(b) {
		return 0
	}
	r, n := utf8.DecodeRune(b)
	if s.x >= s.cols {
		s.x = 0
		s.down()
	}
	s.cells[s.y][s.x] = r
	s.x++
	return n
}

func (s *screen) down() {
	if s.y++; s.y < s.rows {
		return
	}
	s.y = s.rows - 1
	s.cells = append(s.cells[1:], []rune(strings.Repeat(" ", s.cols)))
}

func (s *screen) escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '[':
	case '(', ')':
		if len(b) < 3 {
			return 0
		}
		return 3
	default:
		return 2
	}
	end := 2
	for end < len(b) && (b[end] < 0x40 || b[end] > 0x7e) {
		end++
	}
	if end == len(b) {
		return 0
	}
	one, two := 0, 0
	if _, err := fmt.Sscanf(string(b[2:end]), "%d;%d", &one, &two); err != nil {
		_, _ = fmt.Sscanf(string(b[2:end]), "%d", &one)
	}
	switch b[end] {
	case 'H', 'f':
		s.y, s.x = min(max(one, 1), s.rows)-1, min(max(two, 1), s.cols)-1
	case 'A':
		s.y = max(s.y-max(one, 1), 0)
	case 'B':
		s.y = min(s.y+max(one, 1), s.rows-1)
	case 'C':
		s.x = min(s.x+max(one, 1), s.cols-1)
	case 'J':
		s.erase(one)
	case 'K':
		for x := min(s.x, s.cols); x < s.cols; x++ {
			s.cells[s.y][x] = ' '
		}
	}
	return end + 1
}

func (s *screen) erase(how int) {
	for y := range s.cells {
		for x := range s.cells[y] {
			if how == 2 || y > s.y || y == s.y && x >= s.x {
				s.cells[y][x] = ' '
			}
		}
	}
}

// console is a terminal with somebody before it.
type console struct {
	*api.Terminal
	t      *testing.T
	screen *screen
	ended  chan error
}

func (c *tenant) console(t *testing.T, id string, in api.OpenTerminal) *console {
	t.Helper()
	terminal, err := c.OpenTerminal(t.Context(), id, in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	k := &console{Terminal: terminal, t: t, screen: newScreen(80, 24), ended: make(chan error, 1)}
	if in.Cols != 0 {
		k.screen.resize(int(in.Cols), int(in.Rows))
	}
	go func() {
		_, err := io.Copy(k.screen, terminal)
		k.ended <- err
	}()
	return k
}

func (k *console) types(text string) {
	k.t.Helper()
	if _, err := io.WriteString(k, text); err != nil {
		k.t.Fatalf("type %q: %v", text, err)
	}
}

// shows waits until the words are on the screen.
func (k *console) shows(words ...string) {
	k.t.Helper()
	eventually(k.t, 20*time.Second, "the screen shows "+strings.Join(words, " and "), func(context.Context) error {
		text := k.screen.text()
		for _, word := range words {
			if !strings.Contains(text, word) {
				return fmt.Errorf("it shows\n%s", text)
			}
		}
		return nil
	})
	if k.t.Failed() {
		k.t.FailNow()
	}
}

// exits waits for the program's end, and wants it to have a code.
func (k *console) exits(code int) {
	k.t.Helper()
	select {
	case err := <-k.ended:
		if err != nil {
			k.t.Fatalf("the terminal broke off: %v", err)
		}
	case <-time.After(20 * time.Second):
		k.t.Fatalf("it does not end; the screen shows\n%s", k.screen.text())
	}
	if exit := k.Exit(); exit == nil || exit.ExitCode != code {
		k.t.Errorf("it ended with %+v, want code %d", exit, code)
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)

	t.Run("a login shell, its size, Ctrl-C and UTF-8", func(t *testing.T) {
		k := c.console(t, s.ID, api.OpenTerminal{Cols: 100, Rows: 30})
		k.types("PS1='$ '; stty size\n")
		k.shows("30 100")
		if err := k.Resize(132, 43); err != nil {
			t.Fatal(err)
		}
		k.screen.resize(132, 43)
		k.types("stty size\n")
		k.shows("43 132")
		k.types("sleep 1000 && echo no\n")
		eventually(t, 10*time.Second, "sleep runs", func(ctx context.Context) error {
			got, err := c.Exec(ctx, s.ID, api.Exec{Cmd: api.Argv("pgrep", "-f", "[s]leep 1000")})
			if err == nil && got.ExitCode != 0 {
				err = errors.New("it does not")
			}
			return err
		})
		k.types("\x03") // Ctrl-C
		k.types("echo code $?\n")
		k.shows("^C", "code 130")
		c.noSuchProcess(t, s.ID, "sleep 1000")
		k.types("printf '%s' 'grüße 日本 🚢' | od -An -tx1 | tr -d ' \\n'; echo\n")
		k.shows(fmt.Sprintf("%x", "grüße 日本 🚢"))
		k.types("printf '\\303\\274bung \\346\\227\\245\\n'\n")
		k.shows("übung 日")
		k.types("exit 5\n")
		k.exits(5)
	})

	t.Run("a full-screen program", func(t *testing.T) {
		k := c.console(t, s.ID, api.OpenTerminal{Cmd: "exec env TERM=xterm top -d 1", Cols: 80, Rows: 24})
		k.shows("load average", "PID USER", "guestd")
		if err := k.Resize(80, 12); err != nil {
			t.Fatal(err)
		}
		k.screen.resize(80, 12)
		k.shows("load average", "PID USER")
		k.types("u")
		k.shows("Which user")
		k.types("nobody\n")
		eventually(t, 20*time.Second, "top lists nobody's processes", func(context.Context) error {
			if text := k.screen.text(); strings.Contains(text, "guestd") || !strings.Contains(text, "PID USER") {
				return fmt.Errorf("it shows\n%s", text)
			}
			return nil
		})
		k.types("q")
		k.exits(0)
	})

	t.Run("an editor's keys", func(t *testing.T) {
		// less knows the other screen, keys without a line's end, and the size.
		c.exec(t, s.ID, "seq -f 'line %g' 1000 > /lines")
		k := c.console(t, s.ID, api.OpenTerminal{Cmd: "exec env TERM=xterm less /lines", Cols: 60, Rows: 20})
		k.shows("line 1", "line 19")
		if !strings.Contains(k.screen.said(), "\x1b[?1049h") {
			t.Error("it did not ask for the other screen")
		}
		k.types("G")
		k.shows("line 1000")
		k.types("/line 500\n")
		_ = k.Resize(60, 10)
		k.types("?line 500\n")
		k.shows("line 500")
		k.types("q")
		k.exits(0)
	})

	t.Run("a signal", func(t *testing.T) {
		k := c.console(t, s.ID, api.OpenTerminal{Cmd: "trap 'echo caught; exit 4' TERM; echo ready; while :; do sleep 0.1; done"})
		k.shows("ready")
		if err := k.Signal("TERM"); err != nil {
			t.Fatal(err)
		}
		k.exits(4)
		k.shows("caught")
	})
}
