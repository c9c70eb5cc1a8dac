package hostd

import (
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/lease"
)

// A replica that was removed has its certificate still.
func TestWhoMayCallIsWhomTheLeaderNamedLast(t *testing.T) {
	d := &Daemon{lease: lease.New(lease.Config{}), replies: make(chan hostapi.HeartbeatReply, 1)}
	for _, step := range []struct {
		named []string
		may   bool
	}{{nil, true}, {[]string{"r1", "r2"}, false}, {[]string{"r1", "r2", "r3"}, true}} {
		if err := d.noteReply(hostapi.HeartbeatReply{Replicas: step.named}, 0); err != nil {
			t.Fatal(err)
		}
		if got := d.isMember("r3"); got != step.may {
			t.Errorf("when the leader names %v: %t", step.named, got)
		}
	}
}
