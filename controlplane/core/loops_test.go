package core_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExpiredRowsGo(t *testing.T) {
	p := testplane.New(t, 1, nil)
	p.Update(func(tx *raftstore.Tx) error {
		for id, at := range map[string]time.Time{"old": time.Now().Add(-time.Hour), "new": time.Now().Add(time.Hour)} {
			raftstore.Put(tx, record.IdempotencyKeys, &record.IdempotencyKey{Meta: record.Meta{ID: id}, ExpiresAt: at})
			raftstore.Put(tx, record.JoinTokens, &record.JoinToken{Meta: record.Meta{ID: id}, ExpiresAt: at})
		}
		day := 24 * time.Hour
		for id, at := range map[string]time.Time{"lately": time.Now().Add(-29 * day), "long ago": time.Now().Add(-31 * day), "never": {}} {
			raftstore.Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: id}, Prefix: id, ExpiresAt: at})
		}
		return nil
	})
	// The loop runs a pass as soon as it starts; a second loop beside the plane's
	// own does no harm.
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	n := p.LeaderNode()
	go func() {
		defer close(done)
		l := loops.New(loops.Config{Store: n.Store, Clock: time.Now, Logger: testcluster.Log()})
		l.Register(n.Sources...)
		l.Run(ctx)
	}()
	testcluster.Await(t, "end of the expired rows", func() bool {
		v := n.Store.View()
		keys, tokens := raftstore.All(v, record.IdempotencyKeys), raftstore.All(v, record.JoinTokens)
		_, there := raftstore.Get(v, record.APIKeys, "long ago")
		return len(keys) == 1 && keys[0].ID == "new" && len(tokens) == 1 && tokens[0].ID == "new" && !there
	})
	if left := raftstore.All(n.Store.View(), record.APIKeys); len(left) != 2 {
		t.Errorf("left are %+v", left)
	}
	cancel()
	<-done
}

// The outcome of a flow is kept for an hour.
func TestOutcomesOfFlowsGo(t *testing.T) {
	p := testplane.New(t, 1, nil)
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Outcomes, &record.Outcome{Meta: record.Meta{ID: "f1"}})
		return nil
	})
	n := p.LeaderNode()
	look := func(later time.Duration) (there bool) {
		term := loops.NewTerm(loops.Config{Store: n.Store, Clock: func() time.Time { return time.Now().Add(later) }, Logger: testcluster.Log()})
		for _, l := range n.Core.Loops(term) {
			l.Pass(t.Context())
		}
		_, there = raftstore.Get(n.Store.View(), record.Outcomes, "f1")
		return there
	}
	if !look(59 * time.Minute) {
		t.Error("an outcome went too early")
	}
	if look(61 * time.Minute) {
		t.Error("an outcome stays")
	}
}
