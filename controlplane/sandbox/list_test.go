package sandbox

import (
	"encoding/json"
	"testing"

	"github.com/berth-cloud/berth/raftstore/record"
)

func TestSandboxesByTheirMetadata(t *testing.T) {
	rows := []*record.Sandbox{{Metadata: json.RawMessage(`{"job":"42","a":"b=c"}`)}, {Metadata: json.RawMessage(`{"job":42}`)}, {Metadata: json.RawMessage(`{"job":"420"}`)}, {}}
	for member, want := range map[string]int{"job=42": 2, "job=420": 1, "job=": 0, "a=b=c": 1, "none=x": 0} {
		if got, err := withMetadata(rows, member); err != nil || len(got) != want {
			t.Errorf("%s: %d rows, %v", member, len(got), err)
		}
	}
	for _, bad := range []string{"job", "=42"} {
		if _, err := withMetadata(rows, bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
