package agent

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/proc"
)

func TestWhoIsToBlameForACommandThatDidNotStart(t *testing.T) {
	for want, err := range map[string]error{
		"":                      proc.ErrInvalid, // which is the request's error
		guestapi.CodeInvalidCwd: proc.ErrCwd,
		guestapi.CodeNoUser:     proc.ErrNoUser,
		guestapi.CodeNoProgram:  &proc.CommandError{},
		guestapi.CodeLimit:      proc.ErrLimit,
		guestapi.CodeFault:      errors.New("input/output error"),
	} {
		if got := codeOf(fmt.Errorf("start: %w", err)); got != want {
			t.Errorf("%v has the code %q, want %q", err, got, want)
		}
	}
}
