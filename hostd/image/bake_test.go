package image

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
)

// What crashes in a loop runs most of the time.
func TestAStartCommandThatFailed(t *testing.T) {
	b := &buildVM{guest: guestclient.New(func(context.Context) (net.Conn, error) { return nil, errors.New("no guest") })}
	for name, c := range map[string]struct {
		start  *guestapi.StartState
		failed bool
	}{
		"there is none":             {nil, false},
		"it runs":                   {&guestapi.StartState{Running: true}, false},
		"it ended well":             {&guestapi.StartState{}, false},
		"it ended badly":            {&guestapi.StartState{ExitCode: 3}, true},
		"it runs after a failure":   {&guestapi.StartState{Running: true, ExitCode: 3, Restarts: 1}, true},
		"it ended well after a try": {&guestapi.StartState{Restarts: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			err := b.startFailed(t.Context(), guestapi.Health{Start: c.start})
			if errors.Is(err, errNotReady) != c.failed {
				t.Errorf("got %v", err)
			}
			if c.failed && c.start.ExitCode == 3 && !strings.Contains(err.Error(), "exit code 3") {
				t.Errorf("%v does not say with what it ended", err)
			}
		})
	}
}
