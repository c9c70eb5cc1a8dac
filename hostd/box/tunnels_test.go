package box_test

import (
	"errors"
	"testing"

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
