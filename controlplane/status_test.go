package controlplane

import (
	"encoding/json"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
)

// During an upgrade, replicas of two versions ask each other.
func TestTheStatusBetweenReplicasKeepsItsForm(t *testing.T) {
	for _, c := range []struct {
		sent string
		want api.RaftStatus
	}{
		{
			`{"NodeID":"b","State":"follower","LeaderID":"a","LeaderAddress":"h:1","Term":3,"CommitIndex":9,"AppliedIndex":8,"LastLogIndex":9,` +
				`"LastSnapshotIndex":0,"LastContact":41500000,"Peers":[{"ID":"a","Address":"h:1","Voter":true,"Healthy":false,"LastContact":-1,"AppliedIndex":0}]}`,
			api.RaftStatus{NodeID: "b", LeaderID: "a", LastContactMS: 41, AppliedIndex: 8},
		},
		{`{"NodeID":"b","LeaderID":"","LastContact":-1}`, api.RaftStatus{NodeID: "b", LastContactMS: -1}},
	} {
		var got replicaStatus
		if err := json.Unmarshal([]byte(c.sent), &got); err != nil {
			t.Fatal(err)
		}
		if st := got.status(); st.NodeID != c.want.NodeID || st.LeaderID != c.want.LeaderID || st.LastContactMS != c.want.LastContactMS || st.AppliedIndex != c.want.AppliedIndex {
			t.Errorf("%s is read as %+v", c.sent, st)
		}
	}
	for want, st := range map[string]api.RaftStatus{
		`{"NodeID":"b","LeaderID":"a","LastContact":41000000,"AppliedIndex":8}`: {NodeID: "b", LeaderID: "a", LastContactMS: 41, AppliedIndex: 8, Term: 3},
		`{"NodeID":"b","LeaderID":"","LastContact":-1,"AppliedIndex":0}`:        {NodeID: "b", LastContactMS: -1},
	} {
		if got, err := json.Marshal(newReplicaStatus(st)); err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
}
