package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
)

// tenant is a client of one workspace.
type tenant struct {
	*api.Client
	token string
	jwt   string
}

// newTenant makes a user, a workspace and a key of its own for the test, which
// keeps tests out of one another's lists and rate limits. A second tenant in
// one test is told apart by a suffix.
func newTenant(t *testing.T, suffix ...string) *tenant {
	t.Helper()
	name := strings.Join(append([]string{t.Name()}, suffix...), "-")
	name = strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(name))
	jwt, token, err := theStack.NewToken(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	client, err := api.NewClient(nil, token, theStack.URLs...)
	if err != nil {
		t.Fatal(err)
	}
	// A machine whose processors are taken elects now and then.
	client.Patience = 20 * time.Second
	t.Cleanup(client.Close)
	return &tenant{Client: client, token: token, jwt: jwt}
}

// knownEverywhere waits until every replica has the tenant's key in its own
// copy of the records, from which it answers what it need not ask the leader.
func (c *tenant) knownEverywhere(t *testing.T) {
	t.Helper()
	for i := range theStack.URLs {
		eventually(t, 10*time.Second, "every replica knows the key", func(context.Context) error {
			if got := (request{method: "GET", path: "/v1/admin/raft-status", token: c.token, replica: i}).send(t); got.status != 403 {
				return errors.New(got.body)
			}
			return nil
		})
	}
}

// through returns the tenant's client that talks to one replica only.
func (c *tenant) through(t *testing.T, replica int) *tenant {
	t.Helper()
	client, err := api.NewClient(nil, c.token, theStack.URLs[replica])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &tenant{Client: client, token: c.token, jwt: c.jwt}
}

// workspaceID is that of the tenant's workspace.
func (c *tenant) workspaceID(t *testing.T) string {
	t.Helper()
	user, err := api.NewClient(nil, c.jwt, theStack.URLs...)
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	me, err := user.Me(t.Context())
	if err != nil || me.CurrentOrg == nil {
		t.Fatalf("the tenant is %+v, %v", me, err)
	}
	return me.CurrentOrg.ID
}

func admin(t *testing.T) *api.Client {
	t.Helper()
	client, err := theStack.Admin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// create makes a sandbox that is deleted when the test ends.
func (c *tenant) create(t *testing.T) *api.Sandbox {
	t.Helper()
	// A key makes the create one that may be sent again: while a leader is
	// replaced, the client goes on to the next replica.
	var sandbox *api.Sandbox
	key := rand.Text()
	eventually(t, 20*time.Second, "a sandbox is created", func(ctx context.Context) error {
		var err error
		sandbox, err = c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate}, key)
		if err != nil && api.StatusOf(err) != http.StatusServiceUnavailable {
			t.Fatalf("create: %v", err)
		}
		return err
	})
	if sandbox == nil {
		t.FailNow()
	}
	c.deleteAtEnd(t, sandbox.ID)
	return sandbox
}

// showConsole logs the end of what a guest's kernel said, if it said anything: why
// it ended by itself, say.
func (c *tenant) showConsole(ctx context.Context, t *testing.T, id string) {
	body, err := c.Logs(ctx, id, api.LogQuery{Stream: "console", Tail: 60})
	if err != nil {
		return // of a sandbox that the test itself has deleted, say
	}
	defer body.Close()
	if raw, _ := io.ReadAll(io.LimitReader(body, 64<<10)); len(raw) > 0 {
		t.Logf("the console of %s ends with:\n%s", hostapi.ShortID(id), raw)
	}
}

func (c *tenant) deleteAtEnd(t *testing.T, id string) {
	t.Cleanup(func() {
		// Not t.Context(), which has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if t.Failed() {
			c.showConsole(ctx, t, id)
		}
		eventually(t, time.Minute, "sandbox "+hostapi.ShortID(id)+" is deleted", func(context.Context) error {
			if err := c.DeleteSandbox(ctx, id); err != nil && api.StatusOf(err) != http.StatusNotFound {
				return err
			}
			return nil
		})
	})
}

// exec runs a shell command and wants it to end with code 0; it returns what
// the command wrote to stdout.
func (c *tenant) exec(t *testing.T, id, script string) string {
	t.Helper()
	result, err := c.Exec(t.Context(), id, api.Exec{Cmd: api.Shell(script)})
	if api.StatusOf(err) == http.StatusTooManyRequests { // see request.send
		select {
		case <-time.After(time.Second):
		case <-t.Context().Done():
		}
		result, err = c.Exec(t.Context(), id, api.Exec{Cmd: api.Shell(script)})
	}
	if err != nil {
		t.Fatalf("exec %q: %v", script, err)
	}
	if result.ExitCode != 0 {
		t.Fatalf("exec %q: exit code %d\nstdout: %s\nstderr: %s", script, result.ExitCode, clip(result.Stdout), clip(result.Stderr))
	}
	return result.Stdout
}

// answers wants the sandbox to run a small command, soon.
func (c *tenant) answers(t *testing.T, id string) {
	t.Helper()
	eventually(t, 30*time.Second, "the sandbox runs a command", func(ctx context.Context) error {
		result, err := c.Exec(ctx, id, api.Exec{Cmd: api.Argv("true")})
		if err != nil {
			return err
		}
		if result.ExitCode != 0 {
			return errors.New("true ended with an error")
		}
		return nil
	})
}

// eventually polls until check is content, and fails the test when it is not
// within the time.
func eventually(t *testing.T, most time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx := t.Context()
	if ctx.Err() != nil { // in a Cleanup
		ctx = context.WithoutCancel(ctx)
	}
	if err := stack.Await(ctx, timescale.Limit(most), 100*time.Millisecond, what, check); err != nil {
		t.Errorf("%v", err)
	}
}

// answer is a response with its body read.
type answer struct {
	status int
	header http.Header
	body   string
}

// errorText is "error" of the body, or "" where the body is not ours.
func (a answer) errorText() string {
	var e api.ErrorBody
	if json.Unmarshal([]byte(a.body), &e) != nil {
		return ""
	}
	return e.Error
}

func (a answer) detail() string {
	var e api.ErrorBody
	_ = json.Unmarshal([]byte(a.body), &e)
	return e.Detail
}

// request is one raw call, for what the typed client would not send.
type request struct {
	method, path, token string
	body                string
	header              map[string]string
	chunked             bool // send the body without a length
	replica             int
}

// send makes the call. A test that makes many in a moment meets its workspace's
// rate limit, and a busy machine elects a leader now and then: both answers say that
// nothing was done, and the call is repeated after the second that they ask for.
func (r request) send(t *testing.T) answer {
	t.Helper()
	for began := time.Now(); ; {
		a := r.once(t)
		limited := a.status == http.StatusTooManyRequests && strings.HasPrefix(a.errorText(), "rate limit: ")
		electing := a.status == http.StatusServiceUnavailable && strings.HasSuffix(a.detail(), "nothing was done") && time.Since(began) < 20*time.Second
		if !limited && !electing {
			return a
		}
		select {
		case <-time.After(time.Second): // its Retry-After
		case <-t.Context().Done():
			return a
		}
	}
}

func (r request) once(t *testing.T) answer {
	t.Helper()
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
		if r.chunked {
			body = io.MultiReader(body) // hides the length
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), r.method, theStack.URLs[r.replica]+r.path, body)
	if err != nil {
		t.Fatal(err)
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, clip(r.path), err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, resp.Body); err != nil {
		t.Fatalf("%s %s: read the answer: %v", r.method, clip(r.path), err)
	}
	return answer{status: resp.StatusCode, header: resp.Header, body: b.String()}
}

func clip(s string) string {
	if len(s) > 300 {
		return s[:300] + "…"
	}
	return s
}

// boxOf asks the sandbox's host how it sees it.
func boxOf(t *testing.T, s *api.Sandbox) hostapi.Box {
	t.Helper()
	host, err := theStack.HostClient(s.AgentID)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	box, err := host.GetBox(t.Context(), s.ID)
	if err != nil {
		t.Fatalf("ask host %s for the sandbox: %v", s.AgentID, err)
	}
	return box
}

// healthy is called by tests that broke a process, when they have mended it.
func healthy(t *testing.T) {
	t.Helper()
	if err := theStack.WaitHealthy(context.WithoutCancel(t.Context())); err != nil {
		t.Fatalf("the stack does not recover: %v", err)
	}
}

// restart starts a process again when the test ends, if it does not run then.
func restartAtEnd(t *testing.T, p *stack.Process) {
	t.Cleanup(func() {
		if !p.Running() {
			if err := p.Start(); err != nil {
				t.Errorf("start %s again: %v", p.ID, err)
			}
		}
		if err := p.Continue(); err != nil {
			t.Error(err)
		}
		healthy(t)
	})
}

// logHas reports whether a process's log has the text.
func logHas(t *testing.T, id, text string) bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(theStack.Logs, id+".log"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(b, []byte(text))
}
