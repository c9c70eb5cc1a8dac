package pgedge

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A connection that is under way when a failover begins may be made after the others were
// cut. Nobody gets it: the box that is left would tell of commits that are lost.
func TestAConnectionThatIsUnderWayAtTheStartOfAFailover(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r.host.set(func(h *host) { h.ports["5432"] = l.Addr().String() })
	var looks atomic.Int64
	r.reach.lookup = func(id string) (Entry, bool) {
		e, ok := r.lookup(id)
		if r.host.dialled() == 1 && looks.Add(1) <= 3 {
			e.Status = record.DatabaseRestoring
		}
		return e, ok
	}
	conn, err := r.reach.Dial(t.Context(), database, pgapi.PostgresPort)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if n := r.host.dialled(); n != 2 {
		t.Errorf("it has the connection of dial %d, want 2", n)
	}
	if left := r.reach.tunnels.all(); len(left) != 0 {
		t.Errorf("%d connections are left", len(left))
	}
}
