package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// listening runs berth webhook listen until the test ends. post sends it a request and
// returns the status, stop ends it and returns what it has printed.
func listening(t *testing.T, asJSON bool, secret string, answer int) (post func(header http.Header, body string) int, stop func() string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		a := &app{stdout: &out, stderr: new(bytes.Buffer), json: asJSON}
		done <- a.listen(ctx, listener, secret, answer)
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post = func(header http.Header, body string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listener.Addr().String()+"/hook?a=b", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = header
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	return post, func() string {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		return out.String()
	}
}

func TestListenPrintsWhatArrives(t *testing.T) {
	const secret = "whsec_c2VjcmV0"
	body := `{"id":"wd_1","type":"endpoint.test","data":{}}`
	signed := http.Header{
		api.HeaderWebhookEvent: {"endpoint.test"}, api.HeaderWebhookDelivery: {"wd_1"}, api.HeaderWebhookSignature: {api.SignWebhook(secret, time.Now(), []byte(body))},
	}
	post, stop := listening(t, true, secret, 503)
	if status := post(signed, body); status != 503 {
		t.Errorf("answered %d", status)
	}
	post(signed, body+" ")
	post(http.Header{"X-Github-Event": {"push"}, "X-Github-Delivery": {"d-1"}}, "{}")
	var got []heard
	for line := range strings.Lines(stop()) {
		var h heard
		if err := json.Unmarshal([]byte(line), &h); err != nil {
			t.Fatal(err)
		}
		got = append(got, h)
	}
	if len(got) != 3 {
		t.Fatalf("%d requests were printed", len(got))
	}
	if h := got[0]; h.Method != "POST" || h.Path != "/hook?a=b" || h.Type != "endpoint.test" || h.ID != "wd_1" || h.Signature != "valid" || h.Body != body {
		t.Errorf("%+v", h)
	}
	if h := got[1]; h.Signature == "valid" {
		t.Errorf("a changed body is valid: %+v", h)
	}
	if h := got[2]; h.Type != "push" || h.ID != "d-1" || h.Signature == "valid" {
		t.Errorf("%+v", h)
	}
}

func TestListenPrintsNothingThatATerminalObeys(t *testing.T) {
	post, stop := listening(t, false, "", 204)
	if status := post(http.Header{api.HeaderWebhookEvent: {"a.b"}}, "{\"a\":\"\x1b[2J\"}\r\n"); status != 204 {
		t.Errorf("answered %d", status)
	}
	out := stop()
	if strings.ContainsAny(out, "\x1b\r") || !strings.Contains(out, "POST /hook?a=b a.b - (signature: unchecked)\n{\"a\":\"[2J\"}\n") {
		t.Errorf("%q", out)
	}
}
