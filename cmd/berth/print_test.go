package main

import (
	"bytes"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
)

// A commit's message is whoever's pushed it, and a terminal obeys what is in it.
func TestNothingThatATerminalObeysIsPrinted(t *testing.T) {
	const evil = "a\x1b]0;owned\x07\r\u009b2Jb\nc\td"
	for name, c := range map[string]struct {
		print func(a *app) error
		want  string
	}{
		"table":  {func(a *app) error { return a.table([][]string{{"WHAT", "X"}, {evil, "x"}}) }, "WHAT               X\na]0;owned2Jb c d   x\n"},
		"fields": {func(a *app) error { return a.fields("what", evil) }, "what:  a]0;owned2Jb\nc      d\n"},
		"note":   {func(a *app) error { a.note("%s", evil); return nil }, "a]0;owned2Jb\nc\td\n"},
		"error": {
			func(a *app) error {
				a.say(evil, "", &api.Error{Detail: evil, Fields: map[string]any{"log": evil}})
				return nil
			},
			"berth: a]0;owned2Jb\nc\td\n  detail:     a]0;owned2Jb\nc\td\n  log:        a]0;owned2Jb\nc\td\n",
		},
		"event": {func(a *app) error {
			a.showEvent(api.Event{Type: "vm.died", Code: api.EventOK, Message: evil})
			return nil
		}, ""},
	} {
		var out bytes.Buffer
		if err := c.print(&app{stdout: &out, stderr: &out}); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != plain(got) || c.want != "" && got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
