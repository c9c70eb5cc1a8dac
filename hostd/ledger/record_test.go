package ledger_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/ledger"
)

// The table of transitions, as a person reads it: DESIGN.md says how each is made.
func TestTransitions(t *testing.T) {
	states := []ledger.State{
		ledger.Creating, ledger.Running, ledger.Paused, ledger.Hibernated, ledger.Waking, ledger.Booting, ledger.Failed, ledger.Deleting,
	}
	for i, want := range []string{
		"creating: creating running hibernated deleting",
		"running: running paused hibernated booting failed deleting",
		"paused: running paused waking booting failed deleting",
		"hibernated: hibernated waking booting failed deleting",
		"waking: running paused hibernated waking booting failed deleting",
		"booting: running booting failed deleting",
		"failed: booting failed deleting",
		"deleting: deleting",
	} {
		got := string(states[i]) + ":"
		for _, next := range states {
			switch err := states[i].MayBecome(next); {
			case err == nil:
				got += " " + string(next)
			case !errors.Is(err, ledger.ErrTransition) || !strings.Contains(err.Error(), string(next)):
				t.Errorf("%s to %s: %v", states[i], next, err)
			}
		}
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
