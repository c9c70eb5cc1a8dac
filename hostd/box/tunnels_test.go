package box_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Each connection costs the host memory, files and a port in the slot.
func TestConnectionsToTheGuestsPortsAreBounded(t *testing.T) {
	w, d, _ := world(t)
	most := w.Config().MaxTunnels
	echoing(w)
	put(t, d, idA)
	put(t, d, idB)
	var open []*guestio.Conn
	for range most {
		conn, err := d.DialPort(t.Context(), idA, 5432)
		must(t, err)
		open = append(open, conn)
	}
	for range 3 {
		if _, err := d.DialPort(t.Context(), idA, 5432); !errors.Is(err, hosterr.ErrConnections) {
			t.Errorf("one more: %v, want ErrConnections", err)
		}
	}
	if n, _ := d.Tunnels(idA); n != most {
		t.Errorf("%d tunnels are counted, want %d", n, most)
	}
	conn, err := d.DialPort(t.Context(), idB, 5432) // another box's are its own
	must(t, err)
	must(t, conn.Close())
	must(t, open[0].Close())
	open[0], err = d.DialPort(t.Context(), idA, 5432)
	must(t, err)
	for _, conn := range open {
		must(t, conn.Close())
	}
}

// The host has only so many connections for all of its boxes, and a workspace may have any
// number of these.
func TestAWorkspaceLeavesConnectionsToOthers(t *testing.T) {
	const most = 16
	w := boxtest.NewWorld(t)
	d := start(t, w, func(c *box.Config, _ *box.Deps) { c.MaxUses = most })
	letters := []string{"c", "d", "e"}
	for i, workspace := range []string{"one", "one", "two"} {
		s := spec(1)
		s.WorkspaceID = workspace
		_, err := d.Put(t.Context(), strings.Repeat(letters[i], len(idA)), s)
		must(t, err)
	}
	echoing(w)
	// take opens connections to a box until one is refused.
	take := func(letter string) (open []*guestio.Conn) {
		for range most + 1 {
			conn, err := d.DialPort(t.Context(), strings.Repeat(letter, len(idA)), 5432)
			if errors.Is(err, hosterr.ErrConnections) {
				return open
			}
			must(t, err)
			open = append(open, conn)
		}
		t.Fatal("none is refused")
		return nil
	}
	first := take("c")
	if more := take("d"); len(first) != most/2 || len(more) != 0 {
		t.Errorf("one workspace has %d and %d connections of %d", len(first), len(more), most)
	}
	must(t, first[0].Close())
	if again := take("d"); len(again) != 1 {
		t.Errorf("%d connections take the place of one", len(again))
	}
	if other := take("e"); len(other) != most/4 {
		t.Errorf("the other has %d of the %d that are left", len(other), most-len(first))
	}
}
