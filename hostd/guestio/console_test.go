package guestio_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// withConsole starts a box whose console has written text.
func withConsole(t *testing.T, text string) *daemon {
	t.Helper()
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	path := w.Paths.Serial(idA)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return d
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What a reader has yet to take is held as text: a guest may make a line of each
// byte.
func TestTheLinesOfAConsoleAreNotHeld(t *testing.T) {
	const lines = 1 << 20
	d := withConsole(t, strings.Repeat("\n", lines))
	enough := errors.New("enough")
	for _, tail := range []int{-1, lines} {
		before, grown := heap(), int64(0)
		err := d.ConsoleLogs(t.Context(), idA, tail, true, guestio.Lines{
			Began: func() {},
			Emit: func(hostapi.LogLine) error {
				grown = heap() - before
				return enough
			},
		})
		if !errors.Is(err, enough) {
			t.Fatal(err)
		}
		if grown > 4<<20 {
			t.Errorf("tail %d: %d bytes are held", tail, grown)
		}
	}
}

func TestTheTailOfAConsole(t *testing.T) {
	long := strings.Repeat("x", 16<<10)
	d := withConsole(t, "one\r\n\r\n"+long+"yz\r\nhalf")
	for _, c := range []struct {
		tail int
		want []string
	}{
		{-1, []string{"one", "", long + "…", "yz", "half"}},
		{9, []string{"one", "", long + "…", "yz", "half"}},
		{3, []string{long + "…", "yz", "half"}},
		{0, nil},
	} {
		var got []string
		err := d.ConsoleLogs(t.Context(), idA, c.tail, false, guestio.Lines{
			Began: func() {},
			Emit: func(l hostapi.LogLine) error {
				if l.Partial {
					l.Line += "…"
				}
				got = append(got, l.Line)
				return nil
			},
		})
		must(t, err)
		if strings.Join(got, "|") != strings.Join(c.want, "|") {
			t.Errorf("tail %d: %.80q", c.tail, got)
		}
	}
}

func TestAConsoleHasSoManyReaders(t *testing.T) {
	const most = 16
	d := withConsole(t, "x\n")
	ctx, leave := context.WithCancel(t.Context())
	reading, left := make(chan struct{}), make(chan error)
	lines := guestio.Lines{
		Began: func() { reading <- struct{}{} },
		Emit:  func(hostapi.LogLine) error { return nil },
	}
	for range most {
		go func() { left <- d.ConsoleLogs(ctx, idA, -1, true, lines) }()
		<-reading
	}
	ended := errors.New("a line")
	more := guestio.Lines{Began: func() {}, Emit: func(hostapi.LogLine) error { return ended }}
	for _, follow := range []bool{true, false} {
		if err := d.ConsoleLogs(ctx, idA, -1, follow, more); !errors.Is(err, hosterr.ErrBusy) {
			t.Errorf("one more, following %t: %v, want ErrBusy", follow, err)
		}
	}
	leave()
	for range most {
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if err := d.ConsoleLogs(t.Context(), idA, -1, false, more); !errors.Is(err, ended) {
		t.Errorf("after they left: %v", err)
	}
}
