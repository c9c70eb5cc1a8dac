package controlplane

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
)

// During an upgrade replicas of two versions ask each other how they are: what one
// has ever sent is read, and what is sent has the names that it always had.
func TestReplicasOfTwoVersionsTellEachOtherTheirStatus(t *testing.T) {
	const first = `{"NodeID":"b","State":"follower","LeaderID":"a","LeaderAddress":"10.0.0.1:7001","Term":3,"CommitIndex":41,"AppliedIndex":40,` +
		`"LastLogIndex":41,"LastSnapshotIndex":0,"LastContact":12345678,"Peers":[{"ID":"a","Address":"10.0.0.1:7001","Voter":true,"Healthy":false,"LastContact":-1,"AppliedIndex":0}]}`
	got, err := readStatus(strings.NewReader(first))
	if err != nil || got.NodeID != "b" || got.LeaderID != "a" || got.AppliedIndex != 40 || got.LastContactMS != 12 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, ms := range []int64{-1, 0, 12} {
		raw, err := json.Marshal(peerStatusOf(api.RaftStatus{NodeID: "b", LeaderID: "a", AppliedIndex: 40, LastContactMS: ms}))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := readStatus(strings.NewReader(string(raw))); err != nil || again.LastContactMS != ms {
			t.Errorf("%d ms: %s, %+v, %v", ms, raw, again, err)
		}
		var names map[string]any
		if err := json.Unmarshal(raw, &names); err != nil || names["NodeID"] != "b" || names["LeaderID"] != "a" || names["AppliedIndex"] != 40.0 {
			t.Errorf("%s, %v", raw, err)
		}
	}
}
