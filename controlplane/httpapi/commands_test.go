package httpapi

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// pieces is output that is there, and then its end.
type pieces []sandbox.CommandPiece

func (p *pieces) Next() (sandbox.CommandPiece, error) {
	if len(*p) == 0 {
		return sandbox.CommandPiece{}, io.EOF
	}
	next := (*p)[0]
	*p = (*p)[1:]
	return next, nil
}

func (*pieces) Close() error { return nil }

const commandsPath = "/v1/sandboxes/" + testID + "/commands"

func TestCommandIsStartedWithItsKey(t *testing.T) {
	r := newRig(t)
	const body = `{"cmd":["make","-j2"],"timeout_seconds":9}`
	r.detached.start = func(in api.Exec, i core.Idempotency) (api.SandboxCommand, error) {
		digest := sha256.Sum256([]byte(body))
		if len(in.Cmd.Argv) != 2 || *in.TimeoutSeconds != 9 || i.Key != "k" || !bytes.Equal(i.BodySHA256, digest[:]) {
			t.Errorf("got %+v with %+v", in, i)
		}
		return exampleCommand, nil
	}
	req := httptest.NewRequest(http.MethodPost, commandsPath, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer tenant")
	req.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	r.api.ServeHTTP(w, req)
	want := `{"id":"cmd-q5t3nz7k2m4w6x2p7j3dq5t3nz","cmd":"make -j2 && make test","status":"running","exit_code":null,"timed_out":false,"started_at":"` +
		exampleStarted.String() + `","ended_at":null,"output_bytes":0}`
	if w.Code != http.StatusCreated || strings.TrimSpace(w.Body.String()) != want {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestCommandsAreShownWrittenToSignalledAndDeleted(t *testing.T) {
	r := newRig(t)
	var did []string
	r.detached.list = func() ([]api.SandboxCommand, error) { return nil, nil }
	r.detached.get = func(command string) (api.SandboxCommand, error) {
		return api.SandboxCommand{}, &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "no such command"}
	}
	r.detached.remove = func(command string) error { did = append(did, "rm "+command); return nil }
	r.detached.signal = func(command, name string) error { did = append(did, name+" "+command); return nil }
	r.detached.write = func(_ string, data []byte, eof bool) error {
		if did = append(did, string(data)); eof {
			did = append(did, "eof")
		}
		return nil
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		answer             string
	}{
		{http.MethodGet, "", "", 200, "[]"},
		{http.MethodGet, "/cmd-1", "", 404, `{"detail":"no such command","error":"not found"}`},
		{http.MethodGet, "/%2e%2e", "", 404, `{"detail":"no such sandbox or command","error":"not found"}`},
		{http.MethodPost, "/cmd-1/input", `{"data":"a"}`, 204, ""},
		{http.MethodPost, "/cmd-1/input", `{"data":"/wA=","encoding":"base64","eof":true}`, 204, ""},
		{http.MethodPost, "/cmd-1/input", `{"data":"?","encoding":"base64"}`, 400, `{"detail":"data is not base64","error":"invalid encoding"}`},
		{http.MethodPost, "/cmd-1/input", `{"encoding":"hex"}`, 400, `{"detail":"encoding is \"base64\", or is left out","error":"invalid encoding"}`},
		{http.MethodPost, "/cmd-1/signal", `{"signal":"INT"}`, 204, ""},
		{http.MethodPost, "/cmd-1/signal", `{"signal":9}`, 400, `{"detail":"signal must be a string, not number","error":"invalid json"}`},
		{http.MethodDelete, "/cmd-1", "", 204, ""},
		{http.MethodGet, "/cmd-1/output?since=-1", "", 400, `{"detail":"since is an offset in bytes, an integer from 0","error":"invalid since"}`},
		{http.MethodGet, "/cmd-1/output?follow=maybe", "", 400, `{"detail":"follow is true or false","error":"invalid follow"}`},
	} {
		w := r.call(c.method, commandsPath+c.path, "tenant", c.body)
		if w.Code != c.status || strings.TrimSpace(w.Body.String()) != c.answer {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, w.Code, w.Body)
		}
	}
	if got := strings.Join(did, "|"); got != "a|\xff\x00|eof|INT cmd-1|rm cmd-1" {
		t.Errorf("did %q", got)
	}
}

func TestOutputOfACommandIsExact(t *testing.T) {
	r := newRig(t)
	euro := []byte("€")
	r.detached.output = func(command string, since int64, follow bool) (core.Follower[sandbox.CommandPiece], error) {
		if command != "cmd-1" || since != 7 || !follow {
			t.Errorf("got %s, %d, %t", command, since, follow)
		}
		return &pieces{
			{Stream: sandbox.Gap, Offset: 10},
			{Stream: "stdout", Offset: 10, Data: append([]byte("a"), euro[:1]...)},
			{Stream: "stdout", Offset: 12, Data: euro[1:]},    // the rest of a character
			{Stream: "stdout", Offset: 14, Data: euro[:2]},    // half of one,
			{Stream: "stderr", Offset: 16, Data: []byte("b")}, // and another stream
			{Stream: "stdout", Offset: 17, Data: euro[2:]},    // which is no character
			{Stream: "stdout", Offset: 18, Data: euro[:1]},    // half of one,
			{Stream: "exit", Offset: 19, Exit: &api.CommandExit{ExitCode: 3, DurationMS: 5, Offset: 19}},
		}, nil
	}
	want := `event: gap
id: 10
data: {"offset":10}

event: stdout
id: 11
data: {"data":"a","offset":10}

event: stdout
id: 14
data: {"data":"€","offset":11}

event: stdout
id: 16
data: {"data":"4oI=","encoding":"base64","offset":14}

event: stderr
id: 17
data: {"data":"b","offset":16}

event: stdout
id: 18
data: {"data":"rA==","encoding":"base64","offset":17}

event: stdout
id: 19
data: {"data":"4g==","encoding":"base64","offset":18}

event: exit
data: {"exit_code":3,"duration_ms":5,"timed_out":false,"offset":19}

`
	for name, header := range map[string]string{"?since=7&follow=true": "", "?since=2&follow=1": "7"} {
		req := httptest.NewRequest(http.MethodGet, commandsPath+"/cmd-1/output"+name, nil)
		req.Header.Set("Authorization", "Bearer tenant")
		if header != "" {
			req.Header.Set("Last-Event-ID", header)
		}
		w := httptest.NewRecorder()
		r.api.ServeHTTP(w, req)
		if got := w.Body.String(); got != want {
			t.Errorf("%s: got\n%s", name, got)
		}
	}
}
