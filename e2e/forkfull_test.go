package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// Children that do not fit on the parent's host start on the other, from the
// snapshot store; those that fit nowhere are reported, and the others live.
func TestForkTreeWhereMemoryRunsOut(t *testing.T) {
	c := newTenant(t)
	for _, host := range theStack.HostProc {
		withEnv(t, host, "BERTH_MEMORY_MB=2048") // three sandboxes each
	}
	healthy(t)
	parent := c.create(t)
	c.exec(t, parent.ID, survivor)
	c.livesOn(t, parent.ID, 1)
	tree, err := c.ForkTree(t.Context(), parent.ID, api.ForkTree{Count: new(8)}, "")
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]int{}
	for _, child := range tree.Children {
		c.deleteAtEnd(t, child.ID)
		by[child.AgentID]++
	}
	if len(tree.Children) != 5 || len(tree.Failed) != 3 || by[parent.AgentID] != 2 || by[other(t, parent.AgentID).ID] != 3 {
		t.Fatalf("children by host %v, failed %v; want 2 beside the parent, 3 on the other host, 3 failed", by, tree.Failed)
	}
	for _, f := range tree.Failed {
		if f.Error == "" || f.Index < 0 || f.Index > 7 {
			t.Errorf("failed: %+v", f)
		}
	}
	for _, child := range tree.Children {
		c.livesOn(t, child.ID, 2)
	}
	c.livesOn(t, parent.ID, 2)
	events := c.events(t, parent.ID)
	if count(events, "fork.completed") != 5 || count(events, "fork.child_failed") != 3 || count(events, "fork_tree.completed") != 1 {
		t.Errorf("the parent's events: %v", typesOf(events))
	}
	for _, e := range events {
		if m := metadataOf(t, e); e.Type == "fork.child_failed" && (e.Code != api.EventError || m["error"] == nil || m["index"] == nil) {
			t.Errorf("%+v %s", e, e.Metadata)
		}
	}
	// A tree of which nothing fits is refused, and leaves nothing.
	_, err = c.ForkTree(t.Context(), parent.ID, api.ForkTree{Count: new(2)}, "")
	if s := api.StatusOf(err); s != 502 && s != 507 {
		t.Errorf("where nothing fits: %v", err)
	}
	// One that hibernates gives its memory up, and cannot have it back.
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), parent.ID))
	from := tree.Children[0].ID
	eventually(t, 10*time.Second, "its memory is given to a child of another", func(ctx context.Context) error {
		got, err := c.ForkTree(ctx, from, api.ForkTree{Count: new(1)}, "")
		if err == nil {
			tree = got
			c.deleteAtEnd(t, tree.Children[0].ID)
		}
		return err
	})
	_, err = c.WakeSandbox(t.Context(), parent.ID)
	refusal(t, err, 507, "insufficient host memory for sandbox")
	c.becomes(t, parent.ID, api.SandboxHibernated, 5*time.Second)
	if err := c.DeleteSandbox(t.Context(), tree.Children[0].ID); err != nil {
		t.Fatal(err)
	}
	c.livesOn(t, parent.ID, 3)
	c.agrees(t, 20*time.Second)
}
