package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/files"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/proc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTable returns a table whose commands end with the test.
func newTable(t *testing.T) *Table {
	t.Helper()
	table := New(Config{Freezer: proc.NewFreezer(proc.Groups{}, time.Minute, func() error { return nil }), Dir: t.TempDir()})
	t.Cleanup(func() {
		for _, c := range table.List() {
			if err := table.Remove(c.ID); err != nil {
				t.Error(err)
			}
		}
		await(t, func() bool { // input that nobody will read is forgotten
			table.mu.Lock()
			defer table.mu.Unlock()
			return table.held == 0
		})
	})
	return table
}

// request is a line for a shell, with its input open.
func request(line string) *guestapi.StartCommand {
	return &guestapi.StartCommand{ExecRequest: guestapi.ExecRequest{Argv: []string{"/bin/sh", "-c", line}, OpenStdin: true}}
}

func begin(t *testing.T, table *Table, req *guestapi.StartCommand) (guestapi.Command, error) {
	t.Helper()
	return table.Start(t.Context(), req, proc.Spec{Argv: req.Argv, Cwd: req.Cwd, User: req.User, Stdin: req.OpenStdin || len(req.Stdin) > 0, Timeout: req.Timeout})
}

func started(t *testing.T, table *Table, req *guestapi.StartCommand) *Command {
	t.Helper()
	info, err := begin(t, table, req)
	if err != nil {
		t.Fatal(err)
	}
	c, err := table.Get(info.ID)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// followed reads a command's output from an offset to its end.
func followed(t *testing.T, c *Command, since int64) (text string, last guestapi.CommandOutput) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var b strings.Builder
	err := c.Output(ctx, since, true, func(o guestapi.CommandOutput) error {
		last = o
		if o.Stream == guestapi.StreamStdout || o.Stream == guestapi.StreamStderr {
			b.Write(o.Data)
		}
		return nil
	}, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), last
}

func refused(t *testing.T, err error, status int, text string) {
	t.Helper()
	var r *files.Refusal
	if !errors.As(err, &r) || r.Status != status || r.Text != text {
		t.Errorf("got %v, want %d %s", err, status, text)
	}
}

func TestCommandRunsWithoutACaller(t *testing.T) {
	table := newTable(t)
	ctx, leave := context.WithCancel(t.Context())
	req := request("echo out; read line; echo got $line >&2; exit 3")
	req.Text = []byte(`"a"`)
	info, err := table.Start(ctx, req, proc.Spec{Argv: req.Argv, Stdin: true})
	leave()
	if err != nil || info.Status != guestapi.CommandRunning || info.ExitCode != nil || info.EndedAt != nil || string(info.Text) != `"a"` {
		t.Fatalf("got %+v, %v", info, err)
	}
	c, err := table.Get(info.ID)
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return c.Info().OutputBytes == 4 }) // the streams are read each for itself
	if err := c.Input([]byte("this\n"), false); err != nil {
		t.Fatal(err)
	}
	text, last := followed(t, c, 0)
	if text != "out\ngot this\n" || last.Exit == nil || last.Exit.ExitCode != 3 || last.Offset != int64(len(text)) {
		t.Errorf("got %q and %+v", text, last)
	}
	if text, last := followed(t, c, 6); text != "t this\n" || last.Exit == nil {
		t.Errorf("since 6: %q and %+v", text, last)
	}
	now := c.Info()
	if now.Status != guestapi.CommandExited || *now.ExitCode != 3 || now.EndedAt == nil || now.OutputBytes != int64(len(text)) {
		t.Errorf("at the end: %+v", now)
	}
	refused(t, c.Input([]byte("x"), false), http.StatusConflict, TextEnded)
	refused(t, c.Signal("TERM"), http.StatusConflict, TextEnded)
	if _, err := c.Hold(int64(len(text)) + 1); err == nil {
		t.Error("an offset is taken that the output has not reached")
	}
}

func TestInputEnds(t *testing.T) {
	table := newTable(t)
	c := started(t, table, request("cat"))
	for _, part := range []string{"a", "b", strings.Repeat("c", 3*inputPiece)} {
		if err := c.Input([]byte(part), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Input(nil, true); err != nil {
		t.Fatal(err)
	}
	if text, _ := followed(t, c, 0); text != "ab"+strings.Repeat("c", 3*inputPiece) {
		t.Errorf("got %d bytes", len(text))
	}
	whole := request("cat; echo end")
	whole.Stdin, whole.OpenStdin = []byte("all\n"), false
	c = started(t, table, whole)
	if text, _ := followed(t, c, 0); text != "all\nend\n" {
		t.Errorf("got %q", text)
	}
	closed := request("sleep 1000")
	closed.OpenStdin = false
	refused(t, started(t, table, closed).Input([]byte("x"), false), http.StatusConflict, TextClosed)
}

func TestInputThatNobodyReadsIsBounded(t *testing.T) {
	table := newTable(t)
	c := started(t, table, request("sleep 1000"))
	refused(t, c.Input(make([]byte, guestapi.MaxInput+1), false), http.StatusRequestEntityTooLarge, "request body too large")
	var err error
	taken := 0
	for ; err == nil && taken < 4; taken++ {
		err = c.Input(make([]byte, guestapi.MaxInput-pipeAndPiece), false)
	}
	refused(t, err, http.StatusTooManyRequests, TextFull)
	if taken > 2 {
		t.Errorf("%d times the most was taken", taken)
	}
}

func TestInputThatDoesNotFitStartsNothing(t *testing.T) {
	table := newTable(t)
	full := request("sleep 1000")
	full.Stdin = make([]byte, guestapi.MaxInput)
	var err error
	for range guestapi.MaxHeldInput/guestapi.MaxInput + 2 {
		if _, err = begin(t, table, full); err != nil {
			break
		}
	}
	refused(t, err, http.StatusTooManyRequests, TextFull)
	before := len(table.List())
	mark := filepath.Join(t.TempDir(), "mark")
	late := request("touch " + mark)
	late.Stdin = full.Stdin
	_, err = begin(t, table, late)
	refused(t, err, http.StatusTooManyRequests, TextFull)
	if _, err := os.Stat(mark); err == nil || len(table.List()) != before {
		t.Error("it was started")
	}
}

// pipeAndPiece is what a pipe takes of input that nobody reads, and room.
const pipeAndPiece = 256 << 10

func TestSignalReachesTheGroup(t *testing.T) {
	table := newTable(t)
	c := started(t, table, request("trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.01; done"))
	ready := make(chan struct{})
	var once sync.Once
	done := make(chan guestapi.CommandOutput, 1)
	go func() {
		var last guestapi.CommandOutput
		_ = c.Output(context.Background(), 0, true, func(o guestapi.CommandOutput) error {
			last = o
			once.Do(func() { close(ready) })
			return nil
		}, func() error { return nil })
		done <- last
	}()
	<-ready
	refused(t, c.Signal("NONE"), http.StatusBadRequest, "invalid signal")
	if err := c.Signal("USR1"); err != nil {
		t.Fatal(err)
	}
	if last := <-done; last.Exit == nil || last.Exit.ExitCode != 7 {
		t.Errorf("got %+v", last)
	}
}

func TestTimeOutIsOnlyOnDemand(t *testing.T) {
	table := newTable(t)
	req := request("sleep 1000")
	req.Timeout = 50 * time.Millisecond
	c := started(t, table, req)
	if _, last := followed(t, c, 0); last.Exit == nil || !last.Exit.TimedOut || last.Exit.ExitCode != 137 {
		t.Errorf("got %+v", last.Exit)
	}
	if info := c.Info(); !info.TimedOut || *info.ExitCode != 137 {
		t.Errorf("got %+v", info)
	}
}

func TestRemoveKillsWhatTheCommandStarted(t *testing.T) {
	table := newTable(t)
	file := filepath.Join(t.TempDir(), "pids")
	c := started(t, table, request("sleep 1000 & echo $! $$ > "+file+".new; mv "+file+".new "+file+"; wait"))
	var pids []string
	await(t, func() bool {
		raw, err := os.ReadFile(file)
		pids = strings.Fields(string(raw))
		return err == nil
	})
	if err := table.Remove(c.id); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		await(t, func() bool {
			raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n))
			return errors.Is(syscall.Kill(n, 0), syscall.ESRCH) || bytes.Contains(raw, []byte(") Z"))
		})
	}
	_, err := table.Get(c.id)
	refused(t, err, http.StatusNotFound, "not found")
	refused(t, table.Remove(c.id), http.StatusNotFound, "not found")
}

func await(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

func TestKeyMakesAStartRepeatable(t *testing.T) {
	table := newTable(t)
	marks := t.TempDir()
	req := request("mktemp " + marks + "/XXXXXX; cat")
	req.Key, req.Digest = "k", "one"
	var first guestapi.Command
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			got, err := begin(t, table, req)
			mu.Lock()
			defer mu.Unlock()
			if first.ID == "" {
				first = got
			}
			if err != nil || !reflect.DeepEqual(got, first) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	all.Wait()
	c, err := table.Get(first.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Input(nil, true); err != nil {
		t.Fatal(err)
	}
	followed(t, c, 0)
	if again, err := begin(t, table, req); err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("after its end: %+v, %v", again, err)
	}
	if ran, err := os.ReadDir(marks); err != nil || len(ran) != 1 {
		t.Errorf("it ran %d times, %v", len(ran), err)
	}
	other := *req
	other.Digest = "two"
	_, err = begin(t, table, &other)
	refused(t, err, http.StatusConflict, TextReused)

	bad := request("true")
	bad.Key, bad.Digest, bad.Cwd = "b", "b", "/no/such/directory"
	for range 2 { // what was not started does not take the key
		_, err = begin(t, table, bad)
		refused(t, err, http.StatusBadRequest, "invalid cwd")
	}
	bad.Cwd = ""
	if _, err = begin(t, table, bad); err != nil {
		t.Error(err)
	}
}

func TestProgramThatCannotBeRunEndsAsInAShell(t *testing.T) {
	table := newTable(t)
	req := &guestapi.StartCommand{ExecRequest: guestapi.ExecRequest{Argv: []string{"no-such-program"}}}
	info, err := begin(t, table, req)
	if err != nil || info.Status != guestapi.CommandExited || *info.ExitCode != 127 {
		t.Fatalf("got %+v, %v", info, err)
	}
	c, err := table.Get(info.ID)
	if err != nil {
		t.Fatal(err)
	}
	if text, last := followed(t, c, 0); !strings.Contains(text, "not found") || last.Exit == nil {
		t.Errorf("got %q", text)
	}
	refused(t, c.Signal("TERM"), http.StatusConflict, TextEnded)
}

func TestCommandsAreBounded(t *testing.T) {
	table := newTable(t)
	for range guestapi.MaxCommands {
		if _, err := begin(t, table, request("cat")); err != nil {
			t.Fatal(err)
		}
	}
	_, err := begin(t, table, request("cat"))
	refused(t, err, http.StatusTooManyRequests, TextMany)
	list := table.List()
	for _, c := range list[1:] {
		if err := table.Remove(c.ID); err != nil {
			t.Fatal(err)
		}
	}
	for range guestapi.KeptCommands + 3 {
		followed(t, started(t, table, request("true")), 0)
	}
	await(t, func() bool { return len(table.List()) == guestapi.KeptCommands+1 })
	kept := table.List()
	if kept[len(kept)-1].ID != list[0].ID {
		t.Error("the one that runs is not kept")
	}
}

// Who has read the end of the output asks for the command at once.
func TestTheEndOfTheOutputIsTheCommands(t *testing.T) {
	c := &Command{output: newOutput(1, nil), over: make(chan struct{}), endedAt: time.Now()}
	c.output.end(guestapi.ExecExit{ExitCode: 3}) // and the agent has not come any further
	if info := c.Info(); info.Status != guestapi.CommandExited || info.ExitCode == nil || *info.ExitCode != 3 || info.EndedAt == nil {
		t.Errorf("%+v", info)
	}
}

// A command that writes faster than its output is read would never let it end.
func TestOutputWithoutFollowEnds(t *testing.T) {
	table := newTable(t)
	c := started(t, table, request("while read -r line; do echo $line; done"))
	more := func() {
		at := c.output.written()
		if err := c.Input([]byte("more\n"), false); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { return c.output.written() > at })
	}
	more()
	pieces := 0
	err := c.Output(t.Context(), 0, false, func(o guestapi.CommandOutput) error {
		if pieces++; pieces == 10 {
			return errors.New("it does not end")
		}
		more()
		return nil
	}, func() error { return nil })
	if err != nil || pieces == 0 {
		t.Errorf("%d pieces, %v", pieces, err)
	}
}

func TestFloodKeepsItsEnd(t *testing.T) {
	table := newTable(t)
	const lines = 2_000_000
	c := started(t, table, request("seq "+strconv.Itoa(lines)+"; read line; echo end >&2"))
	var gap guestapi.CommandOutput
	var got []byte
	await(t, func() bool { return c.Info().OutputBytes == 14_888_896 }) // all of the numbers
	if err := c.Input([]byte("\n"), true); err != nil {
		t.Fatal(err)
	}
	<-c.over
	err := c.Output(t.Context(), 0, false, func(o guestapi.CommandOutput) error {
		if o.Stream == guestapi.StreamGap {
			gap = o
		}
		got = append(got, o.Data...)
		return nil
	}, func() error { return nil })
	total := c.output.written()
	if err != nil || total <= guestapi.KeptOutput || len(got) != guestapi.KeptOutput || gap.Offset != total-guestapi.KeptOutput {
		t.Errorf("%d bytes were written, %d are kept, a gap to %d, %v", total, len(got), gap.Offset, err)
	}
	if !bytes.HasSuffix(got, []byte("\n1999999\n2000000\nend\n")) {
		t.Errorf("it ends with %q", got[len(got)-30:])
	}
	if st, err := c.output.file.Stat(); err != nil || st.Size() > guestapi.KeptOutput*9/8 {
		t.Errorf("its file has %d bytes, %v", st.Size(), err)
	}
}
