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

func TestARemovedRouterMayNotCall(t *testing.T) {
	r := NewReplies(RepliesConfig{Renew: func(time.Duration, time.Duration) {}})
	if !r.IsRouter("r1") {
		t.Error("refused before a leader was heard")
	}
	if err := r.Take(hostapi.HeartbeatReply{RemovedRouters: []string{"r1"}}, 0); err != nil {
		t.Fatal(err)
	}
	if r.IsRouter("r1") || !r.IsRouter("r2") {
		t.Errorf("r1 %t, r2 %t", r.IsRouter("r1"), r.IsRouter("r2"))
	}
}
