package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// arrivals says of each line of output that it came.
type arrivals struct {
	text strings.Builder
	line func(n int)
}

func (a *arrivals) Write(p []byte) (int, error) {
	before := strings.Count(a.text.String(), "\n")
	a.text.Write(p)
	for n := before + 1; n <= strings.Count(a.text.String(), "\n"); n++ {
		a.line(n)
	}
	return len(p), nil
}

func TestStreamIsFlushedAtOnceAndInOrder(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	for i := range theStack.URLs {
		// Each line is waited for: the process writes the next one when this one is
		// here.
		out := arrivals{line: func(n int) { c.exec(t, s.ID, fmt.Sprintf("touch /go-%d-%d", i, n)) }}
		errs := arrivals{line: func(int) {}}
		exit, err := c.through(t, i).ExecStream(t.Context(), s.ID, api.Exec{
			Cmd:            api.Shell(fmt.Sprintf("for i in 1 2 3; do echo out $i; echo err $i >&2; until [ -e /go-%d-$i ]; do sleep 0.1; done; done; ", i) + "printf 'gr\\303'; sleep 0.3; printf '\\274n \\377'; exit 7"),
			TimeoutSeconds: new(int64(120)),
		}, &out, &errs)
		if err != nil {
			t.Fatalf("replica %d: %v", i+1, err)
		}
		if exit.ExitCode != 7 || exit.TimedOut {
			t.Errorf("replica %d: exit %+v", i+1, exit)
		}
		if got := out.text.String(); got != "out 1\nout 2\nout 3\ngrün \xff" {
			t.Errorf("replica %d: stdout %q", i+1, got)
		}
		if got := errs.text.String(); got != "err 1\nerr 2\nerr 3\n" {
			t.Errorf("replica %d: stderr %q", i+1, got)
		}
	}
}

func TestGoneClientEndsWhatItStarted(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	started := func(t *testing.T, words string) {
		t.Helper()
		eventually(t, 10*time.Second, words+" runs", func(ctx context.Context) error {
			got, err := c.Exec(ctx, s.ID, api.Exec{Cmd: api.Shell("test $(pgrep -fc '[" + words[:1] + "]" + words[1:] + "') -ge 2")})
			if err == nil && got.ExitCode != 0 {
				err = errors.New("it does not")
			}
			return err
		})
	}
	t.Run("server-sent events", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := c.ExecStream(ctx, s.ID, api.Exec{Cmd: api.Shell("sleep 7001 & sleep 7001 & wait")}, nil, nil)
			ended <- err
		}()
		started(t, "sleep 7001")
		leave()
		if err := <-ended; err == nil {
			t.Error("the stream ended well")
		}
		c.noSuchProcess(t, s.ID, "sleep 7001")
	})
	t.Run("websocket", func(t *testing.T) {
		session, err := c.OpenExec(t.Context(), s.ID, api.Exec{Cmd: api.Shell("sleep 7002 & sleep 7002 & wait")})
		if err != nil {
			t.Fatal(err)
		}
		started(t, "sleep 7002")
		session.Close() // without a closing handshake
		c.noSuchProcess(t, s.ID, "sleep 7002")
	})
	t.Run("terminal", func(t *testing.T) {
		terminal, err := c.OpenTerminal(t.Context(), s.ID, api.OpenTerminal{Cmd: "sleep 7003 & sleep 7003 & wait"})
		if err != nil {
			t.Fatal(err)
		}
		started(t, "sleep 7003")
		terminal.Close()
		c.noSuchProcess(t, s.ID, "sleep 7003")
	})
	t.Run("exec", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := c.Exec(ctx, s.ID, api.Exec{Cmd: api.Shell("sleep 7004 & sleep 7004 & wait")})
			ended <- err
		}()
		started(t, "sleep 7004")
		leave()
		<-ended
		c.noSuchProcess(t, s.ID, "sleep 7004")
	})
}

// What a client does not read, its process may not write: nothing on the way
// keeps it.
func TestSlowReaderSlowsTheProcess(t *testing.T) {
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	memory := watchMemory(t)
	req, err := http.NewRequestWithContext(t.Context(), "POST", theStack.URLs[followerIndex(t)]+"/v1/sandboxes/"+s.ID+"/exec/stream",
		strings.NewReader(`{"cmd":"echo $$ > /pid; exec yes"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	reader := bufio.NewReader(resp.Body)
	if line, err := reader.ReadString('\n'); err != nil || line != "event: stdout\n" {
		t.Fatalf("status %d, the first line is %q, %v", resp.StatusCode, line, err)
	}
	written := func() int {
		n, err := strconv.Atoi(c.run(t, s.ID, "sed -n 's/^wchar: //p' /proc/$(cat /pid)/io"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	stalls := func() (last int) {
		t.Helper()
		eventually(t, 30*time.Second, "the process is stopped by its reader", func(context.Context) error {
			was := last
			if last = written(); last != was {
				return fmt.Errorf("it wrote %d bytes more", last-was)
			}
			return nil
		})
		return last
	}
	first := stalls()
	if first > 64<<20 {
		t.Errorf("it wrote %d bytes that nobody has read", first)
	}
	// It goes on as the reader does.
	if _, err := io.CopyN(io.Discard, reader, int64(first)+4<<20); err != nil {
		t.Fatal(err)
	}
	if second := stalls(); second <= first {
		t.Errorf("it had written %d bytes, and after they were read %d", first, second)
	}
	memory.grewAtMost(t, 64<<10)
	resp.Body.Close()
	c.noSuchProcess(t, s.ID, "yes")
}

// followerIndex is a replica that does not lead: what is asked of it takes the
// longest way.
func followerIndex(t *testing.T) int {
	t.Helper()
	leader := theStack.Leader(t.Context())
	if leader == nil {
		t.Fatal("no leader")
	}
	return (indexOf(leader) + 1) % len(theStack.URLs)
}

func TestExecWithOpenInput(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	collect := func(t *testing.T, session *api.Session) (stdout, stderr string, exit *api.Exit) {
		t.Helper()
		for {
			stream, data, exit, err := session.Next()
			switch {
			case err != nil:
				t.Fatalf("after %q: %v", stdout, err)
			case exit != nil:
				return stdout, stderr, exit
			case stream == "stdout":
				stdout += string(data)
			default:
				stderr += string(data)
			}
		}
	}
	t.Run("input and its end", func(t *testing.T) {
		session, err := c.OpenExec(t.Context(), s.ID, api.Exec{Cmd: api.Shell("wc -c; echo done >&2"), Stdin: "first "})
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		if _, err := session.Write([]byte("grüße\xff\x00")); err != nil { // text and bytes
			t.Fatal(err)
		}
		if err := session.CloseInput(); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, exit := collect(t, session)
		if strings.TrimSpace(stdout) != "15" || stderr != "done\n" || exit.ExitCode != 0 {
			t.Errorf("got %q, %q, %+v", stdout, stderr, exit)
		}
	})
	t.Run("a dialogue", func(t *testing.T) {
		session, err := c.OpenExec(t.Context(), s.ID, api.Exec{Cmd: api.Argv("python3", "-u", "-i", "-q")})
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		for _, step := range [][2]string{{"print(6*7)\n", "42\n"}, {"x = 'ü' * 3\nprint(x)\n", "üüü\n"}} {
			if _, err := session.Write([]byte(step[0])); err != nil {
				t.Fatal(err)
			}
			for got := ""; got != step[1]; {
				stream, data, exit, err := session.Next()
				if err != nil || exit != nil {
					t.Fatalf("to %q: %q, exit %v, %v", step[0], got, exit, err)
				}
				if stream == "stdout" {
					got += string(data)
				}
			}
		}
	})
	t.Run("a signal", func(t *testing.T) {
		session, err := c.OpenExec(t.Context(), s.ID, api.Exec{Cmd: api.Shell("trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.1; done")})
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		if _, data, _, err := session.Next(); err != nil || string(data) != "ready\n" {
			t.Fatalf("got %q, %v", data, err)
		}
		if err := session.Signal("USR1"); err != nil {
			t.Fatal(err)
		}
		if stdout, _, exit := collect(t, session); stdout != "caught\n" || exit.ExitCode != 3 {
			t.Errorf("got %q, %+v", stdout, exit)
		}
	})
	t.Run("a time-out", func(t *testing.T) {
		session, err := c.OpenExec(t.Context(), s.ID, api.Exec{Cmd: api.Argv("cat"), TimeoutSeconds: new(int64(1))})
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		if _, _, exit := collect(t, session); !exit.TimedOut {
			t.Errorf("got %+v", exit)
		}
	})
}

// A server that speaks as language servers do, and says what it was told.
const echoServer = `#!/usr/bin/env python3
import json, sys
while True:
    length = 0
    while (line := sys.stdin.buffer.readline().strip()):
        name, value = line.split(b":")
        if name.lower() == b"content-length": length = int(value)
    if not length: sys.exit()
    told = json.loads(sys.stdin.buffer.read(length))
    body = json.dumps({"jsonrpc": "2.0", "id": told.get("id"), "result": told}, ensure_ascii=False).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    sys.stdout.buffer.flush()
`

func TestLanguageServer(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	if _, err := c.WriteFile(t.Context(), s.ID, "/etc/berth/lsp/echo", "0755", strings.NewReader(echoServer), int64(len(echoServer))); err != nil {
		t.Fatal(err)
	}
	server, err := c.OpenLanguageServer(t.Context(), s.ID, "echo")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	long := strings.Repeat("ü", 200_000)
	for i, text := range []string{"initialize", "größe 日本", long} {
		if err := server.Send([]byte(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q}`, i, text))); err != nil {
			t.Fatal(err)
		}
		got, err := server.Receive()
		if err != nil || !strings.Contains(string(got), `"id": `+strconv.Itoa(i)) || !strings.Contains(string(got), text) {
			t.Fatalf("to %q it said %q, %v", clip(text), clip(string(got)), err)
		}
	}
	server.Close()
	c.noSuchProcess(t, s.ID, "lsp/echo")

	for _, lang := range []string{"cobol", "..%2f..%2fbin%2fsh", "."} {
		_, err := c.OpenLanguageServer(t.Context(), s.ID, lang)
		e := refusal(t, err, 404, "")
		if lang == "cobol" && e.Message != "no language server for cobol" {
			t.Errorf("it says %q", e.Message)
		}
	}
}

func TestLogsAreFollowed(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	// The start command's log is a file in the guest; the guest's console is the host's.
	body, err := c.Logs(t.Context(), s.ID, api.LogQuery{Stream: "console"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		t.Error(err)
	}
	body.Close()
	ctx, enough := context.WithTimeout(t.Context(), 20*time.Second)
	defer enough()
	const word = "berth-e2e-was-here"
	found := false
	go func() {
		for ctx.Err() == nil {
			_, _ = c.Exec(ctx, s.ID, api.Exec{Cmd: api.Shell("echo " + word + " > /dev/console; sleep 1")})
		}
	}()
	err = c.FollowLogs(ctx, s.ID, api.LogQuery{Stream: "console"}, func(stream string, l api.LogLine) error {
		if stream == "console" && strings.Contains(l.Line, word) {
			found = true
			enough()
		}
		return nil
	})
	if !found {
		t.Errorf("the console's line did not come: %v", err)
	}
}
