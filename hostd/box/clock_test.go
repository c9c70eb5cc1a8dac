package box

import (
	"context"
	"errors"
	"testing"
)

func TestWithCause(t *testing.T) {
	died, failed := errors.New("VMM died"), errors.New("ping guest: EOF")
	open, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cut, cancelCut := context.WithCancelCause(t.Context())
	cancelCut(died)
	for _, tc := range []struct {
		ctx  context.Context
		err  error
		want string
	}{
		{open, nil, "<nil>"},
		{open, failed, "ping guest: EOF"},
		{cut, nil, "VMM died"}, // just after the last step
		{cut, died, "VMM died"},
		{cut, failed, "VMM died: ping guest: EOF"},
	} {
		got := "<nil>"
		if err := withCause(tc.ctx, tc.err); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("of %v: %s, want %s", tc.err, got, tc.want)
		}
	}
}
