package usage

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that a test sets.
type clock struct{ ns atomic.Int64 }

func newClock(at string) *clock {
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		panic(err)
	}
	c := &clock{}
	c.ns.Store(t.UnixNano())
	return c
}

func (c *clock) now() time.Time       { return time.Unix(0, c.ns.Load()).UTC() }
func (c *clock) pass(d time.Duration) { c.ns.Add(int64(d)) }

// bench is a cluster with a clock, and what writes usage down there.
type bench struct {
	*testcluster.Cluster
	*clock
	t      *testing.T
	ledger ledger
}

func newBench(t *testing.T, replicas int, at string) *bench {
	t.Helper()
	b := &bench{clock: newClock(at), t: t}
	b.Cluster = testcluster.NewAt(t, replicas, b.now)
	prices, err := LoadPrices("")
	if err != nil {
		t.Fatal(err)
	}
	prices.Own = true
	tiers, err := limits.Load("", "free")
	if err != nil {
		t.Fatal(err)
	}
	b.ledger = ledger{prices: prices, tiers: tiers}
	return b
}

func (b *bench) box(id, workspace, host string, owner *record.Owner) {
	b.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: workspace}})
		testcluster.PutSandbox(tx, &record.Sandbox{
			Meta: record.Meta{ID: id}, WorkspaceID: workspace, HostID: host, Status: record.SandboxRunning, CPU: 2, MemoryMB: 1024, DiskMB: 4096, Owner: owner,
		})
		return nil
	})
}

// take writes a whole batch down.
func (b *bench) take(host string, batch hostapi.UsageBatch) {
	for done := false; !done; {
		b.Update(func(tx *raftstore.Tx) error { done = b.ledger.take(tx, host, batch); return nil })
	}
}

func (b *bench) batch(sequence uint64, length time.Duration, boxes ...hostapi.BoxUsage) hostapi.UsageBatch {
	slices.SortFunc(boxes, func(a, b hostapi.BoxUsage) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return hostapi.UsageBatch{Epoch: "e", Sequence: sequence, From: b.now().Add(-length), To: b.now(), Boxes: boxes}
}

func ran(id string, d time.Duration) hostapi.BoxUsage {
	ms := d.Milliseconds()
	return hostapi.BoxUsage{ID: id, RunMS: ms, MemoryMS: ms, DiskMS: ms, CPUMS: ms / 2}
}

func (b *bench) amount(workspace, product string, r record.Resource) int64 {
	b.t.Helper()
	view := b.Leader().Store.View()
	var sum int64
	for _, u := range raftstore.Find(view, record.Usages, "workspace", workspace) {
		sum += u.Line(product, r).Amount
	}
	return sum
}

func TestABatchIsWrittenDownOnceForWhomItIs(t *testing.T) {
	b := newBench(t, 1, "2026-03-10T10:00:00Z")
	b.box("a", "ws", "h1", nil)
	b.box("b", "ws", "h1", &record.Owner{Type: "database", ID: "d"})
	b.box("c", "other", "h1", &record.Owner{Type: "app", ID: "p"})
	b.box("d", "ws", "h2", nil)
	b.pass(time.Minute)
	first := b.batch(1, time.Minute, ran("a", time.Minute), ran("b", 30*time.Second), ran("c", time.Second), ran("d", time.Minute), ran("nobody", time.Minute))
	for range 3 {
		b.take("h1", first)
	}
	for _, c := range []struct {
		workspace, product string
		r                  record.Resource
		want               int64
	}{
		{"ws", "sandbox", record.ResourceVCPU, 2 * 60_000}, {"ws", "sandbox", record.ResourceMemory, 1024 * 60_000},
		{"ws", "sandbox", record.ResourceDisk, 4096 * 60_000}, {"ws", "sandbox", record.ResourceCPU, 30_000},
		{"ws", "database", record.ResourceVCPU, 2 * 30_000}, {"other", "app", record.ResourceMemory, 1024 * 1000},
	} {
		if got := b.amount(c.workspace, c.product, c.r); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// A host is believed no more than is possible.
func TestALyingHostGainsNothing(t *testing.T) {
	b := newBench(t, 1, "2026-03-10T10:00:00Z")
	b.box("a", "ws", "h1", nil)
	b.pass(time.Minute)
	vcpu := func() int64 { return b.amount("ws", "sandbox", record.ResourceVCPU) / 2 }
	lie := b.batch(1, time.Minute, ran("a", 24*time.Hour), ran("a", 24*time.Hour))
	lie.Boxes[0].CPUMS, lie.Boxes[1].RunMS = 1<<60, -5
	b.take("h1", lie)
	if got := vcpu(); got != 60_000 {
		t.Errorf("more than the wall shows: %d ms", got)
	}
	if got := b.amount("ws", "sandbox", record.ResourceCPU); got != 60_000*5/2 {
		t.Errorf("more processor time than the box has: %d ms", got)
	}
	b.pass(time.Minute)
	// The same minutes again, under other numbers and names; and those to come.
	again := b.batch(2, 10*time.Minute, ran("a", 10*time.Minute))
	b.take("h1", again)
	again.Epoch = "other"
	b.take("h1", again)
	future := b.batch(3, time.Hour, ran("a", time.Hour))
	future.Epoch, future.To = "other", b.now().Add(time.Hour)
	b.take("h1", future)
	if got := vcpu(); got > 120_000+slack.Milliseconds() {
		t.Errorf("two minutes have passed, %d ms are counted", got)
	}
	// A span that ends before it begins.
	back := b.batch(9, -time.Hour, ran("a", time.Hour))
	b.take("h1", back)
	before := vcpu()
	// Another host's word for a box that it does not have.
	b.pass(time.Hour)
	b.take("h2", b.batch(1, time.Hour, ran("a", time.Hour)))
	if got := vcpu(); got != before {
		t.Errorf("another host's word counts: %d ms", got-before)
	}
}

// A host whose disk was put back to an earlier day counts on.
func TestAHostThatWasRestoredCountsOn(t *testing.T) {
	b := newBench(t, 1, "2026-03-10T10:00:00Z")
	b.box("a", "ws", "h1", nil)
	var old hostapi.UsageBatch
	for n := range uint64(5) {
		b.pass(time.Minute)
		batch := b.batch(n+1, time.Minute, ran("a", time.Minute))
		if n == 1 {
			old = batch
		}
		b.take("h1", batch)
	}
	old.Epoch = "of the copy" // its file was lost, and made anew from what the copy had
	b.take("h1", old)
	b.pass(time.Minute)
	next := b.batch(3, time.Minute, ran("a", time.Minute))
	next.Epoch = "of the copy"
	b.take("h1", next)
	if got := b.amount("ws", "sandbox", record.ResourceVCPU); got != 2*6*60_000 {
		t.Errorf("%d ms in six minutes", got/2)
	}
}

// The leader dies between the parts of a batch, answers are lost, batches come again and
// out of order: every millisecond counts once.
func TestEveryMillisecondCountsOnce(t *testing.T) {
	tier.Slow(t)
	for seed := range uint64(2) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		b := newBench(t, 1, "2026-01-31T20:00:00Z")
		const boxes = 250 // three parts
		b.Update(func(tx *raftstore.Tx) error {
			for i := range boxes {
				testcluster.PutSandbox(tx, &record.Sandbox{
					Meta: record.Meta{ID: fmt.Sprintf("box%03d", i)}, WorkspaceID: fmt.Sprint("ws", i%7), HostID: "h1", Status: record.SandboxRunning, CPU: 2, MemoryMB: 3,
				})
			}
			return nil
		})
		want := map[string]int64{}
		var told []hostapi.UsageBatch
		for n := range uint64(6) {
			length := time.Duration(1+rnd.IntN(3_600_000)) * time.Millisecond
			b.pass(length)
			var list []hostapi.BoxUsage
			for i := range boxes {
				if rnd.IntN(10) > 0 {
					u := hostapi.BoxUsage{ID: fmt.Sprintf("box%03d", i), RunMS: rnd.Int64N(length.Milliseconds() + 1)}
					want[fmt.Sprint("ws", i%7)] += u.RunMS
					list = append(list, u)
				}
			}
			batch := b.batch(n+1, length, list...)
			told = append(told, batch)
			for done := false; !done; {
				if rnd.IntN(2) == 0 { // one that is written down already
					if old := rnd.IntN(len(told)); old < len(told)-1 {
						b.take("h1", told[old])
					}
				}
				lost := rnd.IntN(4) == 0
				err := b.Leader().Store.Update(t.Context(), func(tx *raftstore.Tx) error {
					done = b.ledger.take(tx, "h1", batch)
					if lost {
						return fmt.Errorf("the leader dies")
					}
					return nil
				})
				done = done && err == nil
			}
		}
		for ws, ms := range want {
			if got := b.amount(ws, "sandbox", record.ResourceVCPU); got != 2*ms {
				t.Fatalf("seed %d: %s: %d ms are written down, %d were used", seed, ws, got/2, ms)
			}
		}
	}
}

// What a sandbox used counts after it is gone.
func TestALastUseCounts(t *testing.T) {
	b := newBench(t, 1, "2026-03-10T10:00:00Z")
	began := b.now()
	b.pass(time.Minute)
	b.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.EndedBoxes, &record.EndedBox{
			Meta: record.Meta{ID: "a"}, WorkspaceID: "ws", Product: record.ProductApp, HostID: "h1", CPU: 2, MemoryMB: 1, Began: began,
		})
		return nil
	})
	b.take("h1", b.batch(1, time.Hour, ran("a", time.Hour)))
	if got := b.amount("ws", "app", record.ResourceVCPU); got != 2*60_000 {
		t.Errorf("%d ms", got/2)
	}
}

// A host that was silent for days still tells of what ended meanwhile, whose owner pays
// until then. One that was removed is not waited for.
func TestAHostThatWasSilentForDaysTellsOfWhatEnded(t *testing.T) {
	b := newBench(t, 1, "2026-03-10T10:00:00Z")
	b.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Hosts, &record.Host{Meta: record.Meta{ID: "h1"}, State: record.HostLost})
		return nil
	})
	b.box("a", "ws", "h1", nil)
	b.box("b", "ws", "gone", nil)
	b.pass(time.Minute)
	b.take("h1", b.batch(1, time.Minute, ran("a", time.Minute)))
	b.pass(time.Minute)
	b.Update(func(tx *raftstore.Tx) error {
		for _, id := range []string{"a", "b"} {
			s, _ := raftstore.Get(tx, record.Sandboxes, id)
			sandbox.DeleteRow(tx, s)
		}
		return nil
	})
	const silent = 3 * 24 * time.Hour
	b.pass(silent)
	store := b.Leader().Store
	k := &keeper{Term: loops.NewTerm(loops.Config{Store: store, Clock: b.now, Logger: testcluster.Log()})}
	expire := func() (left []string) {
		loops.Expiry(k.Term, record.EndedBoxes, k.told).Pass(t.Context())
		for _, e := range raftstore.All(store.View(), record.EndedBoxes) {
			left = append(left, e.HostID)
		}
		return left
	}
	if left := expire(); !slices.Equal(left, []string{"h1"}) {
		t.Errorf("what ended on %v is waited for, want h1's", left)
	}
	b.take("h1", b.batch(2, silent+time.Minute, ran("a", silent+time.Minute)))
	if got := b.amount("ws", "sandbox", record.ResourceVCPU) / 2; got < 2*60_000 || got > 2*60_000+slack.Milliseconds() {
		t.Errorf("%d ms are written down of a sandbox that was deleted after two minutes", got)
	}
	if left := expire(); len(left) > 0 {
		t.Errorf("what ended on %v is still waited for", left)
	}
}

// A leader's clock that was a day ahead is set right: what hosts tell counts on, and not only
// once the wrong time has come. A host gains no more than an hour by it.
func TestALeadersClockThatWasAhead(t *testing.T) {
	b := newBench(t, 1, "2026-03-31T12:00:00Z")
	b.box("a", "ws", "h1", nil)
	b.pass(24 * time.Hour) // into the next month
	b.take("h1", b.batch(1, time.Minute, ran("a", time.Minute)))
	b.pass(-24*time.Hour + time.Minute)
	b.take("h1", b.batch(2, time.Minute, ran("a", time.Minute)))
	b.pass(time.Minute)
	b.take("h1", b.batch(3, time.Minute, ran("a", time.Minute)))
	if got := b.amount("ws", "sandbox", record.ResourceVCPU); got != 2*3*60_000 {
		t.Errorf("%d ms", got/2)
	}
	b.pass(time.Minute)
	b.take("h1", b.batch(4, 24*time.Hour, ran("a", 24*time.Hour)))
	if got := b.amount("ws", "sandbox", record.ResourceVCPU); got != 2*4*60_000 {
		t.Errorf("with a lie: %d ms", got/2)
	}
}

// A sandbox that has moved and is deleted has yet to be told of by each of its hosts.
func TestEachHostTellsItsPartOfASandboxThatMoved(t *testing.T) {
	b := newBench(t, 1, "2026-03-10T10:00:00Z")
	b.box("a", "ws", "h1", nil)
	b.pass(10 * time.Second)
	b.Update(func(tx *raftstore.Tx) error {
		s, _ := raftstore.Get(tx, record.Sandboxes, "a")
		sandbox.PutEnded(tx, s, "h1")
		s = s.Clone()
		s.HostID = "h2"
		raftstore.Put(tx, record.Sandboxes, s)
		return nil
	})
	b.pass(20 * time.Second)
	b.Update(func(tx *raftstore.Tx) error {
		s, _ := raftstore.Get(tx, record.Sandboxes, "a")
		sandbox.DeleteRow(tx, s)
		return nil
	})
	b.take("h2", b.batch(1, time.Minute, ran("a", 20*time.Second)))
	b.take("h1", b.batch(1, time.Minute, ran("a", 10*time.Second)))
	if got := b.amount("ws", "sandbox", record.ResourceVCPU); got != 2*30_000 {
		t.Errorf("%d ms", got/2)
	}
}

// One that comes back to a host, and ends there again, is told of again.
func TestASandboxMayEndOnAHostAgain(t *testing.T) {
	b := newBench(t, 1, "2026-03-10T10:00:00Z")
	b.box("a", "ws", "h1", nil)
	end := func() {
		b.Update(func(tx *raftstore.Tx) error {
			s, _ := raftstore.Get(tx, record.Sandboxes, "a")
			sandbox.PutEnded(tx, s, "h1")
			return nil
		})
	}
	end()
	b.pass(time.Hour)
	b.take("h1", b.batch(1, time.Hour))
	k := &keeper{Term: loops.NewTerm(loops.Config{Store: b.Leader().Store, Clock: b.now, Logger: testcluster.Log()})}
	ended := func() *record.EndedBox {
		e, _ := raftstore.Get(b.Leader().Store.View(), record.EndedBoxes, record.EndedBoxID("a", "h1"))
		return e
	}
	if !k.told(b.now(), ended()) {
		t.Error("it is kept although its host has told all")
	}
	b.pass(time.Second)
	end()
	if k.told(b.now(), ended()) {
		t.Error("it is removed before its host has told of the second time")
	}
}

// The sum of rounded parts would be wrong: it is the exact sum that is rounded.
func TestMoneyIsExact(t *testing.T) {
	prices, err := parsePrices([]byte("sandbox: {memory_gib_hour: 7501, cpu_hour: 999999999}"))
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	u := &record.Usage{}
	memory, cpu := new(big.Int), new(big.Int)
	for range 50_000 {
		m, c := rnd.Int64N(1<<45), rnd.Int64N(1<<20)
		prices.add(u, "sandbox", record.ResourceMemory, m, true)
		prices.add(u, "sandbox", record.ResourceCPU, c, true)
		memory.Add(memory, big.NewInt(m))
		cpu.Add(cpu, big.NewInt(c))
	}
	memory.Mul(memory, big.NewInt(7501)).Quo(memory, big.NewInt(perGiBHour))
	cpu.Mul(cpu, big.NewInt(999999999)).Quo(cpu, big.NewInt(perCPUHour))
	if got := u.Line("sandbox", record.ResourceMemory).MicroUSD; got != memory.Int64() {
		t.Errorf("memory: %d, want %s", got, memory)
	}
	if got := u.Line("sandbox", record.ResourceCPU).MicroUSD; got != cpu.Int64() {
		t.Errorf("cpu: %d, want %s", got, cpu)
	}
	for _, bad := range []string{"[]", "x: {}", "sandbox: {gpu_hour: 1}", "sandbox: {cpu_hour: -1}", "sandbox: {cpu_hour: 1000000001}", "sandbox: {cpu_hour: 0.5}"} {
		if _, err := parsePrices([]byte(bad)); err == nil {
			t.Errorf("%q", bad)
		}
	}
}

func TestStorageCountsOnceAcrossMonths(t *testing.T) {
	b := newBench(t, 1, "2026-01-31T23:00:00Z")
	b.Update(func(tx *raftstore.Tx) error {
		testcluster.PutVolume(tx, &record.Volume{Meta: record.Meta{ID: "v"}, WorkspaceID: "ws", Name: "v", SizeMB: 100, Status: record.ResourceReady})
		testcluster.PutSnapshot(tx, &record.Snapshot{Meta: record.Meta{ID: "s"}, WorkspaceID: "ws", MemoryBytes: 3<<20 + 1, DiskBytes: 1 << 20, Status: record.ResourceReady})
		raftstore.Put(tx, record.Databases, &record.Database{
			Meta: record.Meta{ID: "7d3f0c52-9a41-4f0e-8c1b-2f6f3f1f9a10"}, WorkspaceID: "ws", Status: record.DatabaseProvisioning, Size: "1g", Name: "app", Username: "app",
			Archives: []record.DatabaseArchive{
				{Name: "d/1", CreatedAt: b.now(), SizeBytes: 7 << 20, Removing: true}, {Name: "d/2", CreatedAt: b.now(), SizeBytes: 9 << 20},
				{Name: "d/3", CreatedAt: b.now(), SizeBytes: 2<<20 + 1}, {Name: "d/4", CreatedAt: b.now(), SizeBytes: -1 << 62},
			},
		})
		raftstore.Put(tx, record.Databases, &record.Database{
			Meta: record.Meta{ID: "7d3f0c52-9a41-4f0e-8c1b-2f6f3f1f9a11"}, WorkspaceID: "liar", Status: record.DatabaseProvisioning, Size: "1g", Name: "app", Username: "app",
			Archives: []record.DatabaseArchive{{Name: "e/1", SizeBytes: 1<<63 - 1}},
		})
		return nil
	})
	for range 24 {
		b.pass(10 * time.Minute)
		for range 2 { // again by the next leader
			b.Update(func(tx *raftstore.Tx) error { b.ledger.storage(tx, "ws", tx.Now()); return nil })
		}
	}
	if got := b.amount("ws", "sandbox", record.ResourceVolume); got != 100*4*3_600_000 {
		t.Errorf("volume: %d", got)
	}
	if got := b.amount("ws", "sandbox", record.ResourceSnapshot); got != 5*4*3_600_000 {
		t.Errorf("snapshot: %d", got)
	}
	lies := storedBy(b.Leader().Store.View(), "liar")
	if len(lies) != 1 || lies[0].mib*firstStorage.Milliseconds() < 0 || lies[0].mib > 1<<30 {
		t.Errorf("%+v", lies)
	}
	if got := b.amount("ws", "database", record.ResourceArchive); got != 12*4*3_600_000 {
		t.Errorf("archives: %d", got)
	}
	january, _ := raftstore.Get(b.Leader().Store.View(), record.Usages, "ws/2026-01")
	if got := january.Line("sandbox", record.ResourceVolume).Amount; got != 100*3_600_000 {
		t.Errorf("january: %d", got)
	}
}
