package raftstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/berth-cloud/berth/raftstore/record"
)

func TestWriteOnLeaderIsReadOnFollowers(t *testing.T) {
	c := newCluster(t, 3, nil)
	lead := c.leader()
	ws := &record.Workspace{Meta: record.Meta{ID: "w1"}, Name: "one"}
	err := lead.Update(context.Background(), func(tx *Tx) error {
		Put(tx, record.Workspaces, ws)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := Get(lead.View(), record.Workspaces, "w1")
	if !ok || *got != *ws {
		t.Fatalf("stored %+v, caller's row %+v", got, ws)
	}
	if got == ws {
		t.Fatal("the stored row is the caller's")
	}
	for _, f := range c.followers() {
		await(t, 5*time.Second, "the row on a follower", func() bool {
			_, ok := Get(f.View(), record.Workspaces, "w1")
			return ok
		})
		if err := f.Update(context.Background(), func(*Tx) error { return nil }); !errors.Is(err, ErrNotLeader) {
			t.Errorf("update on a follower: %v", err)
		}
		if _, err := f.VerifiedView(context.Background()); !errors.Is(err, ErrNotLeader) {
			t.Errorf("verified view on a follower: %v", err)
		}
	}
	c.converged()
}
