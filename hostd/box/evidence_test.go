package box_test

import (
	"context"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/berth-cloud/berth/hostd/box/boxtest"
)

func TestACreateThatFailedQuotesItsLogs(t *testing.T) {
	w := boxtest.NewWorld(t)
	var once sync.Once // a slow machine tells the guest its identity again
	w.Step = func(_ context.Context, name string) error {
		if name != "identity" {
			return nil
		}
		once.Do(func() {
			must(t, os.WriteFile(w.Paths.VMMLog(idA), []byte("the VMM gave up\n"), 0o600))
			must(t, os.WriteFile(w.Paths.Serial(idA), []byte(strings.Repeat("x", 1<<20)+"Kernel panic - not syncing"), 0o600))
			w.VMM(idA).Die(syscall.SIGKILL)
		})
		return nil
	}
	d := start(t, w)
	_, err := d.Put(t.Context(), idA, spec(1))
	if err == nil || !strings.Contains(err.Error(), "the VMM gave up") || !strings.Contains(err.Error(), "Kernel panic - not syncing") {
		t.Fatalf("create = %.200v; want it to quote both logs", err)
	}
	if n := len(err.Error()); n > 4<<10 {
		t.Errorf("the error has %d bytes", n)
	}
	nothingLeft(t, w, d)
}
