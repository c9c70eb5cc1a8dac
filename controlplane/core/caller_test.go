package core_test

import (
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/core"
)

func TestRequestID(t *testing.T) {
	for _, good := range []string{"a", "my-id/1", strings.Repeat("x", 64)} {
		if core.RequestID(good) != good {
			t.Errorf("%q was replaced", good)
		}
	}
	for _, bad := range []string{"", strings.Repeat("x", 65), "a b", "a\nb", "ä", "a\x00"} {
		if got := core.RequestID(bad); got == bad || !strings.HasPrefix(got, "req_") || len(got) > 64 {
			t.Errorf("%q became %q", bad, got)
		}
	}
}
