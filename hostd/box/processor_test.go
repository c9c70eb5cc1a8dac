package box_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Names of one engine on processors of which the second has more than the first.
const (
	lesser  = "cloud-hypervisor v53.0+cpu-aaaaaaaa:f.1.1.f.1.1.1.1.1.40000001.1"
	greater = "cloud-hypervisor v53.0+cpu-bbbbbbbb:ff.1.1.f.1.1.1.1.1.40000001.1"
)

func by(engine string) func(*box.Config, *box.Deps) {
	return func(c *box.Config, _ *box.Deps) { c.Engine = engine }
}

// Memory that was saved goes on where the processor has all that its guest could use:
// after a new kernel or microcode on its host, and after a move.
func TestMemoryGoesOnOnAProcessorThatHasAsMuch(t *testing.T) {
	for name, c := range map[string]struct {
		from, to string
		wakes    bool
	}{
		"more": {lesser, greater, true},
		"less": {greater, lesser, false},
	} {
		t.Run("its host has "+name, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			l, err := ledger.Open(w.Paths.Ledger(), "h1")
			must(t, err)
			t.Cleanup(func() { _ = l.Close() })
			d := boxtest.Run(w, l, by(c.from))
			d.Open()
			put(t, d, idA)
			_, err = d.Hibernate(t.Context(), idA)
			must(t, err)
			d.Close()
			d = boxtest.Run(w, l, by(c.to))
			defer d.Close()
			_, err = d.Recover(t.Context(), l.Boxes()[0])
			must(t, err)
			d.Open()
			_, err = d.Wake(t.Context(), idA)
			checkWake(t, err, c.wakes)
			if c.wakes {
				_, err = d.Hibernate(t.Context(), idA)
				must(t, err)
				if by := l.Boxes()[0].SavedBy; by != c.to {
					t.Errorf("its memory is of %s", by)
				}
			}
		})
		t.Run("it moves to one with "+name, func(t *testing.T) {
			_, _, store := shipped(t, by(c.from))
			w, d, _ := world(t, by(c.to), func(_ *box.Config, deps *box.Deps) { deps.Remote = &boxtest.Remote{Dir: store} })
			_, err := d.Put(t.Context(), idA, arrival())
			checkWake(t, err, c.wakes)
			if !c.wakes {
				nothingLeft(t, w, d) // so it stays where it was
				return
			}
			if by := d.Ledger.Boxes()[0].SavedBy; by != c.from {
				t.Errorf("its memory is of %s", by)
			}
			_, err = d.Wake(t.Context(), idA)
			must(t, err)
			wantStatus(t, d, idA, hostapi.StatusRunning)
		})
	}
}

func checkWake(t *testing.T, err error, works bool) {
	t.Helper()
	switch {
	case works:
		must(t, err)
	case !errors.Is(err, hosterr.ErrBadSnapshot) || !strings.Contains(err.Error(), "cpu-bbbbbbbb, this host has") || strings.Contains(err.Error(), "40000001"):
		t.Fatalf("got %v", err)
	}
}
