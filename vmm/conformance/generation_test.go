package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/vmm"
	"github.com/berth-cloud/berth/vmm/conformance"
)

// detached restores a VM the way a sandbox is restored from a saved one: the
// saved memory is the zone's file, mapped privately.
func detached(t *testing.T, saved string) (files, string) {
	t.Helper()
	must(t, vmm.DetachMemory(shared.engine, saved))
	f := newFiles(t)
	return f, editSnapshot(t, saved, f, func(e *vmm.ConfigEdit) {
		must(t, e.SetZone(zoneID, filepath.Join(saved, vmm.FileMemory), false))
	})
}

// A VM with private RAM is saved, and two are restored at once from the one
// directory, which nobody writes to.
func TestConformanceTwoAtOnceFromASavedVM(t *testing.T) {
	need(t)
	g := theGolden(t)
	h, f, parent := restoreGolden(t)
	parent.tag("parent")
	must(t, h.c.Pause(h.ctx()))
	saved := mkdir(t, f.dir, "saved")
	must(t, snapshotTo(h, saved))
	must(t, h.c.Resume(h.ctx()))
	memory := filepath.Join(saved, vmm.FileMemory)
	before := sum(t, memory)

	type child struct {
		files
		dir  string
		host *host
	}
	children := make([]child, 2)
	for i := range children {
		children[i].files, children[i].dir = detached(t, saved)
		children[i].host = startHost(t)
	}
	var wg sync.WaitGroup
	for _, c := range children {
		ctx := c.host.ctx()
		wg.Go(func() {
			if err := c.host.c.Restore(ctx, vmm.RestoreConfig{SourceURL: vmm.FileURL(c.dir), Resume: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, c := range children {
		guest := c.files.guest(t)
		guest.await("the parent's tag", func(r conformance.Report) bool {
			return r.Boot == g.report.Boot && r.Tag == "parent" && r.Sum == checksum("parent")
		})
		guest.tag(fmt.Sprintf("child-%d", i))
	}
	if sum(t, memory) != before {
		t.Error("the saved memory was changed")
	}
}

// What a VM was restored from may go while it runs: saved again it is whole.
func TestConformanceSecondGeneration(t *testing.T) {
	need(t)
	g := theGolden(t)
	h, f, first := restoreGolden(t)
	first.tag("first")
	must(t, h.c.Pause(h.ctx()))
	saved := mkdir(t, f.dir, "saved")
	must(t, snapshotTo(h, saved))
	h.kill()

	f2, dir2 := detached(t, saved)
	h2 := startHost(t)
	second := restore(t, h2, f2, dir2)
	second.await("the first tag", func(r conformance.Report) bool { return r.Tag == "first" && r.Sum == checksum("first") })
	must(t, os.RemoveAll(saved))
	second.after(second.up())
	must(t, h2.c.Pause(h2.ctx()))
	again := mkdir(t, f2.dir, "again")
	must(t, snapshotTo(h2, again))
	h2.kill()

	f3, dir3 := detached(t, again)
	third := restore(t, startHost(t), f3, dir3)
	third.await("what the first knew", func(r conformance.Report) bool {
		return r.Boot == g.report.Boot && r.Tag == "first" && r.Sum == checksum("first")
	})
	third.tag("third")
}
