package core_test

import (
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/core"
)

func TestRequestID(t *testing.T) {
	made := core.RequestID("", core.LeastRequestID)
	if core.RequestID(made, core.LeastRequestID) != made { // by the next replica
		t.Errorf("%q was replaced", made)
	}
	for length, reused := range map[int]bool{99: true, 100: true, 101: false} {
		if id := strings.Repeat("x", length); (core.RequestID(id, 100) == id) != reused {
			t.Errorf("%d characters, where 100 may be: reused is %v", length, !reused)
		}
	}
	for _, good := range []string{"a", "my-id/1", strings.Repeat("x", 64)} {
		if core.RequestID(good, 0) != good {
			t.Errorf("%q was replaced", good)
		}
	}
	for _, bad := range []string{"", strings.Repeat("x", 65), "a b", "a\nb", "ä", "a\x00"} {
		if got := core.RequestID(bad, 0); got == bad || !strings.HasPrefix(got, "req_") || len(got) > 64 {
			t.Errorf("%q became %q", bad, got)
		}
	}
}
