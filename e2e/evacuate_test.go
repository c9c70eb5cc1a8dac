package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// beside makes a sandbox on a host.
func (c *tenant) beside(t *testing.T, hostID string) *api.Sandbox {
	t.Helper()
	for range 2 * len(theStack.HostProc) {
		if s := c.create(t); s.AgentID == hostID {
			return s
		}
	}
	t.Fatalf("no sandbox was placed on %s", hostID)
	return nil
}

// A host is emptied in use: a sandbox goes on elsewhere with its memory, and a database
// with what it has committed a moment before, of which nothing is archived yet.
func TestHostIsEvacuated(t *testing.T) {
	c, operator := newTenant(t), admin(t)
	db := c.database(t, "{}")
	box := c.managedSandbox(t, db.ID)
	from := hostOf(t, box)
	s := c.beside(t, from.ID)
	c.exec(t, s.ID, "mount -t tmpfs none /mnt && echo a thought > /mnt/kept")
	conn := db.connect(t)
	statement(t, conn, "CREATE TABLE t (id int)")
	statement(t, conn, "INSERT INTO t VALUES (1)")
	if _, err := operator.EvacuateAgent(t.Context(), from.ID, api.EvacuateAgent{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := operator.UndrainAgent(context.Background(), from.ID); err != nil {
			t.Error(err)
		}
	})
	// Who connects meanwhile is let in when it is there.
	if n := query[int](t, db.connect(t), "SELECT count(*) FROM t"); n != 1 {
		t.Errorf("while it moves it has %d rows", n)
	}
	eventually(t, 5*time.Minute, "the host is empty", func(ctx context.Context) error {
		a, err := operator.GetAgent(ctx, from.ID)
		switch {
		case err != nil:
			return err
		case a.Evacuation == nil || !a.Evacuation.Done:
			return fmt.Errorf("evacuation: %+v", a.Evacuation)
		case a.Evacuation.Moved < 2 || a.Evacuation.Staying > 0:
			t.Fatalf("evacuation: %+v", a.Evacuation)
		}
		boxes, err := theStack.Boxes(ctx)
		if err != nil {
			return err
		}
		for _, id := range []string{box, s.ID} {
			if slices.ContainsFunc(boxes[from.ID], func(b hostapi.Box) bool { return b.ID == id }) {
				return errors.New("it has still " + id)
			}
		}
		return nil
	})
	if got := c.exec(t, s.ID, "cat /mnt/kept"); got != "a thought\n" {
		t.Errorf("the sandbox's memory has %q", got)
	}
	after := c.databaseRuns(t, db.ID, time.Minute)
	if after.Host != db.Host || after.Password != db.Password || c.managedSandbox(t, db.ID) != box || hostOf(t, box).ID == from.ID {
		t.Errorf("after the move it is %+v, was %+v", after, db)
	}
	conn = after.connect(t)
	statement(t, conn, "INSERT INTO t VALUES (2)")
	if n := query[int](t, conn, "SELECT count(*) FROM t"); n != 2 {
		t.Errorf("after the move it has %d rows", n)
	}
	// Its archive goes on from there.
	c.archived(t, db.ID, query[time.Time](t, conn, "SELECT now()"))
}
