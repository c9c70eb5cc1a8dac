package heartbeat

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// It may be older than BERTH_PEERS, by which the daemon has found the leader, and certificates
// are renewed at the replicas that it names.
func TestTheFileOfPeersIsWrittenWhateverItSaidAtTheStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "peers")
	if err := os.WriteFile(file, []byte("a:1\nb:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := NewReplies(RepliesConfig{
		Renew: func(time.Duration, time.Duration) {}, PeersFile: file, Log: slog.New(slog.DiscardHandler),
		MovedTo: func([]string) { cancel() },
	})
	want := []string{"d:1", "e:1"}
	if err := r.Take(hostapi.HeartbeatReply{Peers: want}, 0); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(10*time.Second, cancel)
	defer timeout.Stop()
	r.Run(ctx) // which ends after the write: MovedTo comes before it
	got, err := os.ReadFile(file)
	if err != nil || !slices.Equal(strings.Fields(string(got)), want) {
		t.Errorf("the file says %q, %v; want %v", got, err, want)
	}
}

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

// A full disk must not keep guests from being kept from a new replica.
func TestReplicasThatMovedCountWithoutADisk(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var moved []string
	r := NewReplies(RepliesConfig{
		Renew: func(time.Duration, time.Duration) {}, PeersFile: filepath.Join(t.TempDir(), "none", "peers"), Log: slog.New(slog.DiscardHandler),
		MovedTo: func(peers []string) { moved = peers; cancel() },
	})
	if err := r.Take(hostapi.HeartbeatReply{Peers: []string{"d:1"}}, 0); err != nil {
		t.Fatal(err)
	}
	r.Run(ctx)
	if !slices.Equal(moved, []string{"d:1"}) {
		t.Errorf("moved to %v", moved)
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
