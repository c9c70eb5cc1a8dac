package heartbeat

import (
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// A replica that was removed has its certificate still.
func TestWhoMayCallIsWhomTheLeaderNamedLast(t *testing.T) {
	r := NewReplies(RepliesConfig{Renew: func(time.Duration, time.Duration) {}})
	for _, step := range []struct {
		named []string
		may   bool
	}{{nil, true}, {[]string{"r1", "r2"}, false}, {[]string{"r1", "r2", "r3"}, true}} {
		if err := r.Take(hostapi.HeartbeatReply{Replicas: step.named}, 0); err != nil {
			t.Fatal(err)
		}
		if got := r.IsMember("r3"); got != step.may {
			t.Errorf("when the leader names %v: %t", step.named, got)
		}
	}
}
