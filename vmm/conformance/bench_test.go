package conformance_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/vmm"
)

// BenchmarkEngine measures what the engine alone takes for each step in the life
// of a restored VM of 512 MiB, in milliseconds: the floor under everything that
// is built on it.
//
//	BERTH_TEST_GUESTS=1 go test ./vmm/conformance/ -run '^$' -bench Engine -benchtime 20x
func BenchmarkEngine(b *testing.B) {
	if !wanted() {
		b.Skip("starts virtual machines; set BERTH_TEST_GUESTS=1 and be root")
	}
	const size = 512 << 20
	e := &bench{b: b, ctx: context.Background(), total: map[string]time.Duration{}}
	base := e.files("base")
	sized(b, base.ram, size)
	cfg := base.config()
	cfg.Memory.Zones[0].Size = size
	saved := filepath.Join(base.dir, "saved")
	e.must(os.Mkdir(saved, 0o700))
	p := e.start(base.dir)
	e.step("create+boot", func() error {
		if err := p.Client().Create(e.ctx, cfg); err != nil {
			return err
		}
		return p.Client().Boot(e.ctx)
	})
	e.step("boot to first report", func() error { return e.await(base, 0) })
	e.must(p.Client().Pause(e.ctx))
	e.must(p.Client().Snapshot(e.ctx, vmm.SnapshotConfig{DestinationURL: vmm.FileURL(saved)}))
	e.must(p.Kill(e.ctx))
	once := e.total
	e.total = map[string]time.Duration{}

	b.ResetTimer()
	for i := range b.N {
		f := e.files("child")
		e.edited(saved, base, f)
		var p *vmm.Process
		e.step("process start", func() error { p = e.start(f.dir); return nil })
		c := p.Client()
		e.step("restore", func() error {
			return c.Restore(e.ctx, vmm.RestoreConfig{SourceURL: vmm.FileURL(f.dir)})
		})
		e.step("resume", func() error { return c.Resume(e.ctx) })
		e.step("resume to first report", func() error { return e.await(f, 0) })
		e.step("pause", func() error { return c.Pause(e.ctx) })
		to := filepath.Join(f.dir, "to")
		e.must(os.Mkdir(to, 0o700))
		e.step("save, private RAM", func() error {
			return c.Snapshot(e.ctx, vmm.SnapshotConfig{DestinationURL: vmm.FileURL(to)})
		})
		e.step("shut down VMM", func() error {
			if err := c.ShutdownVMM(e.ctx); err != nil {
				return err
			}
			return p.Wait(e.ctx)
		})
		if i == b.N-1 {
			break // what is measured last leaves its files to the cleanup
		}
		e.must(os.RemoveAll(f.dir))
	}
	b.StopTimer()
	b.ReportMetric(0, "ns/op")
	for name, d := range e.total {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), unit(name))
	}
	for name, d := range once {
		b.ReportMetric(float64(d.Microseconds())/1000, unit(name))
	}
}

// BenchmarkParallel measures sixteen VMs of 512 MiB that are restored from one
// capture at once, each in a VMM of its own: from the first process's start until
// the last guest reports.
func BenchmarkParallel(b *testing.B) {
	if !wanted() {
		b.Skip("starts virtual machines; set BERTH_TEST_GUESTS=1 and be root")
	}
	const size, children = 512 << 20, 16
	e := &bench{b: b, ctx: context.Background(), total: map[string]time.Duration{}}
	base := e.files("base")
	sized(b, base.ram, size)
	cfg := base.config()
	cfg.Memory.Zones[0].Size = size
	saved := filepath.Join(base.dir, "saved")
	e.must(os.Mkdir(saved, 0o700))
	p := e.start(base.dir)
	e.must(p.Client().Create(e.ctx, cfg))
	e.must(p.Client().Boot(e.ctx))
	e.must(e.await(base, 0))
	e.must(p.Client().Pause(e.ctx))
	e.must(p.Client().Snapshot(e.ctx, vmm.SnapshotConfig{DestinationURL: vmm.FileURL(saved)}))
	e.must(p.Kill(e.ctx))

	b.ResetTimer()
	for range b.N {
		var group errgroup.Group
		procs := make([]*vmm.Process, children)
		for i := range procs {
			f := e.files("child")
			e.edited(saved, base, f)
			group.Go(func() error {
				p, err := vmm.Start(e.ctx, vmm.Launch{Engine: shared.engine, Dir: filepath.Join(f.dir, "r")})
				if err != nil {
					return err
				}
				procs[i] = p
				if err := p.Client().Restore(e.ctx, vmm.RestoreConfig{SourceURL: vmm.FileURL(f.dir), Resume: true}); err != nil {
					return err
				}
				return e.await(f, 0)
			})
		}
		e.must(group.Wait())
		b.StopTimer()
		for _, p := range procs {
			e.must(p.Kill(e.ctx))
		}
		b.StartTimer()
	}
}

// edited makes a directory that restores a snapshot with private RAM and the
// disks and console of f.
func (e *bench) edited(saved string, base, f files) {
	e.must(os.Link(filepath.Join(saved, "state.json"), filepath.Join(f.dir, "state.json")))
	edit, err := vmm.OpenConfig(filepath.Join(saved, "config.json"))
	e.must(err)
	e.must(edit.SetZone(zoneID, base.ram, false))
	e.must(edit.SetDiskPath("orders", f.orders))
	e.must(edit.SetDiskPath("data", f.data))
	edit.SetSerialFile(f.serial)
	e.must(writeConfig(filepath.Join(f.dir, "config.json"), edit))
}

func unit(name string) string {
	out := []rune("ms:")
	for _, r := range name {
		if r == ' ' || r == ',' {
			r = '-'
		}
		out = append(out, r)
	}
	return string(out)
}

type bench struct {
	b     *testing.B
	ctx   context.Context
	total map[string]time.Duration
}

func (e *bench) must(err error) {
	e.b.Helper()
	if err != nil {
		e.b.Fatal(err)
	}
}

func (e *bench) step(name string, do func() error) {
	e.b.Helper()
	start := time.Now()
	err := do()
	e.total[name] += time.Since(start)
	if err != nil {
		e.b.Fatalf("%s: %v", name, err)
	}
}

func (e *bench) files(kind string) files {
	dir, err := os.MkdirTemp(shared.dir, kind)
	e.must(err)
	f := files{dir: dir, ram: filepath.Join(dir, "ram"), orders: filepath.Join(dir, "orders"), data: filepath.Join(dir, "data"), serial: filepath.Join(dir, "serial")}
	sized(e.b, f.orders, diskSize)
	sized(e.b, f.data, diskSize)
	return f
}

func sized(b *testing.B, path string, size int64) {
	b.Helper()
	f, err := os.Create(path)
	if err == nil {
		err = f.Truncate(size)
		f.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
}

func (e *bench) start(dir string) *vmm.Process {
	p, err := vmm.Start(e.ctx, vmm.Launch{Engine: shared.engine, Dir: filepath.Join(dir, "r")})
	e.must(err)
	e.b.Cleanup(func() { _ = p.Kill(context.Background()) })
	return p
}

// await waits for a report of the guest.
func (e *bench) await(f files, tick uint64) error {
	g := &guest{serial: f.serial}
	poll := time.NewTicker(200 * time.Microsecond)
	defer poll.Stop()
	for {
		if r, ok := g.last(); ok && r.Tick > tick {
			return nil
		}
		select {
		case <-poll.C:
		case <-e.ctx.Done():
			return e.ctx.Err()
		}
	}
}
