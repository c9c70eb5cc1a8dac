package agent

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// ask sends a request to the agent, and returns the status and the answer.
func (w *world) ask(t *testing.T, method, path string, body, into any) int {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+w.addr+path, strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.client.Transport().RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if into != nil {
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode
}

// output opens a command's output.
func (w *world) output(t *testing.T, query string) io.ReadCloser {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.addr+guestapi.PathCommands+"/"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.client.Transport().RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("output: %s", resp.Status)
	}
	return resp.Body
}

func TestCommandOutlivesItsReaders(t *testing.T) {
	w := start(t, func(c *Config) { c.Outputs = t.TempDir() })
	var c guestapi.Command
	status := w.ask(t, http.MethodPost, guestapi.PathCommands, guestapi.StartCommand{
		ExecRequest: guestapi.ExecRequest{Argv: sh("echo $FROM_TEMPLATE; read line; echo $line"), OpenStdin: true}, Text: []byte(`"x"`),
	}, &c)
	if status != http.StatusCreated || c.Status != guestapi.CommandRunning {
		t.Fatalf("got %d, %+v", status, c)
	}
	one := guestapi.PathCommands + "/" + c.ID
	follower := w.output(t, c.ID+"/output?follow=true")
	defer follower.Close()
	lines := bufio.NewScanner(follower)
	if !lines.Scan() || !strings.Contains(lines.Text(), `"offset":0`) {
		t.Fatalf("got %q, %v", lines.Text(), lines.Err())
	}
	if w.followers() != 1 || w.transfers() != 0 {
		t.Errorf("%d followers, %d transfers", w.followers(), w.transfers())
	}
	// The guest is restored: whoever reads is of another incarnation.
	if _, err := w.client.Identity(t.Context(), testIdentity(2)); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() {
		t.Errorf("it goes on with %q", lines.Text())
	}
	if err := lines.Err(); err == nil {
		t.Error("a reader of an earlier incarnation sees an orderly end")
	}
	if status := w.ask(t, http.MethodPost, one+"/input", guestapi.CommandInput{Data: []byte("on\n")}, nil); status != http.StatusNoContent {
		t.Errorf("input: %d", status)
	}
	rest := w.output(t, c.ID+"/output?follow=true&since=4")
	defer rest.Close()
	text, err := io.ReadAll(rest)
	if want := `{"stream":"stdout","offset":4,"data":"b24K"}` + "\n" + `{"stream":"exit","offset":7,"exit":{"exit_code":0,`; err != nil || !strings.HasPrefix(string(text), want) {
		t.Errorf("got %s, %v", text, err)
	}
	var list []guestapi.Command
	if status := w.ask(t, http.MethodGet, guestapi.PathCommands, nil, &list); status != http.StatusOK || len(list) != 1 || list[0].Status != guestapi.CommandExited {
		t.Errorf("list: %d, %+v", status, list)
	}
	if status := w.ask(t, http.MethodDelete, one, nil, nil); status != http.StatusNoContent {
		t.Errorf("delete: %d", status)
	}
	if status := w.ask(t, http.MethodGet, one, nil, &guestapi.Error{}); status != http.StatusNotFound {
		t.Errorf("deleted: %d", status)
	}
}

func TestRequestsForCommandsAreChecked(t *testing.T) {
	w := start(t, func(c *Config) { c.Outputs = t.TempDir() })
	var c guestapi.Command
	if status := w.ask(t, http.MethodPost, guestapi.PathCommands, guestapi.StartCommand{
		ExecRequest: guestapi.ExecRequest{Argv: []string{"cat"}, OpenStdin: true},
	}, &c); status != http.StatusCreated {
		t.Fatal(status)
	}
	one := guestapi.PathCommands + "/" + c.ID
	for _, bad := range []struct {
		method, path string
		body         any
		status       int
		text         string
	}{
		{http.MethodPost, guestapi.PathCommands, guestapi.StartCommand{}, http.StatusBadRequest, "invalid cmd"},
		{http.MethodGet, one + "/output?since=-1", nil, http.StatusBadRequest, "invalid since"},
		{http.MethodGet, one + "/output?since=1", nil, http.StatusBadRequest, "invalid since"},
		{http.MethodGet, one + "/output?follow=maybe", nil, http.StatusBadRequest, "invalid follow"},
		{http.MethodPost, one + "/signal", guestapi.CommandSignal{Signal: "9"}, http.StatusBadRequest, "invalid signal"},
		{http.MethodGet, one + "0", nil, http.StatusNotFound, "not found"},
		{http.MethodPost, one + "0/input", guestapi.CommandInput{}, http.StatusNotFound, "not found"},
	} {
		var e guestapi.Error
		if status := w.ask(t, bad.method, bad.path, bad.body, &e); status != bad.status || e.Error != bad.text {
			t.Errorf("%s %s: %d %+v", bad.method, bad.path, status, e)
		}
	}
	if status := w.ask(t, http.MethodDelete, one, nil, nil); status != http.StatusNoContent {
		t.Error(status)
	}
}
