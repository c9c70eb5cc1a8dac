package usage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// A month of a thousand workspaces, each with one box that runs a share of its time. What
// each is charged is right to the micro-USD, those that spend their credit are warned and
// told so once each, and in the next month all begin anew. Leaders die while this is written
// down.
func TestAMonthOfAThousandWorkspaces(t *testing.T) {
	tier.Slow(t)
	const workspaces, hosts = 1000, 4
	b := newBench(t, 3, "2026-04-01T00:00:00Z")
	b.ledger.prices.Own = false                          // the tier has a credit
	share := func(i int) int64 { return int64(i % 101) } // percent of the time
	box := func(i int) string { return fmt.Sprintf("box%04d", i) }
	for from := 0; from < workspaces; from += 100 {
		b.Update(func(tx *raftstore.Tx) error {
			for i := from; i < from+100; i++ {
				ws := fmt.Sprintf("ws%04d", i)
				raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: ws}})
				raftstore.Put(tx, record.WebhookEndpoints, &record.WebhookEndpoint{Meta: record.Meta{ID: "we-" + ws}, WorkspaceID: ws, URL: "https://example.com"})
				testcluster.PutSandbox(tx, &record.Sandbox{
					Meta: record.Meta{ID: box(i)}, WorkspaceID: ws, HostID: fmt.Sprint("h", i%hosts), Status: record.SandboxRunning, CPU: 1, MemoryMB: 1024 + i,
				})
			}
			return nil
		})
	}
	// conclude has whoever leads look at the credits until there is nothing left to say.
	conclude := func() {
		testcluster.Await(t, "a look at the credits", func() bool {
			store := b.Leader().Store
			k := &keeper{
				Term: loops.NewTerm(loops.Config{Store: store, Clock: b.now, Logger: testcluster.Log()}),
				core: core.New(core.Core{Store: store, Tiers: b.ledger.tiers, Clock: b.now}), ledger: &b.ledger,
			}
			k.credits(t.Context())
			return !slices.ContainsFunc(raftstore.All(store.View(), record.Workspaces), func(w *record.Workspace) bool { return k.news(store.View(), w, b.now()) })
		})
	}
	deaths := 0
	// dies cuts the leader off, and awaits the end of that.
	dies := func() (over func()) {
		old, done := b.Leader(), make(chan struct{})
		deaths++
		go func() {
			defer close(done)
			b.Cut(old)
			testcluster.Await(t, "another leader", func() bool { return b.Leader() != old })
			b.Heal(old)
		}()
		return func() { <-done }
	}
	rnd := rand.New(rand.NewPCG(4, 4))
	const step = 48 * time.Hour
	end := b.now().AddDate(0, 1, 0)
	for n := uint64(1); b.now().Before(end); n++ {
		b.pass(step)
		over := func() {}
		if n%4 == 0 {
			over = dies()
		}
		for h := range hosts {
			var list []hostapi.BoxUsage
			for i := h; i < workspaces; i += hosts {
				ms := step.Milliseconds() * share(i) / 100
				list = append(list, hostapi.BoxUsage{ID: box(i), RunMS: ms, MemoryMS: ms, DiskMS: ms, CPUMS: ms / 7})
			}
			batch := hostapi.UsageBatch{Epoch: "e", Sequence: n, From: b.now().Add(-step), To: b.now(), Boxes: list}
			host := fmt.Sprint("h", h)
			b.take(host, batch)
			if rnd.IntN(3) == 0 { // its answer was lost
				b.take(host, batch)
			}
		}
		if b.now().Equal(end) {
			b.ns.Add(-int64(time.Second)) // the month's last look
			conclude()
			over()
			b.ns.Add(int64(time.Second))
			break
		}
		conclude()
		over()
	}
	if deaths < 3 {
		t.Errorf("%d leaders died: the test shows nothing", deaths)
	}
	view := b.Leader().Store.View()
	told := map[string]int{}
	for _, d := range raftstore.All(view, record.WebhookDeliveries) {
		told[d.EndpointID+" "+d.Type]++
	}
	paused := 0
	for i := range workspaces {
		ws := fmt.Sprintf("ws%04d", i)
		ms := step.Milliseconds() * share(i) / 100
		var cpu, memory, want int64
		for range 15 {
			cpu, memory = cpu+ms/7, memory+ms*int64(1024+i)
		}
		want = cpu*25000/perCPUHour + memory*7500/perGiBHour
		row, ok := raftstore.Get(view, record.Usages, record.UsageID(ws, "2026-04"))
		if !ok || row.MicroUSD() != want {
			t.Fatalf("%s was charged %d, want %d", ws, row.MicroUSD(), want)
		}
		w, _ := raftstore.Get(view, record.Workspaces, ws)
		wants := map[string]bool{
			string(api.WebhookQuotaWarning): want*100 >= 5_400_000*80, string(api.WebhookQuotaExhausted): want >= 5_400_000,
		}
		for event, should := range wants {
			if n := told["we-"+ws+" "+event]; n != map[bool]int{true: 1}[should] {
				t.Errorf("%s: cost %d, %d of %s", ws, want, n, event)
			}
		}
		if spent := want >= 5_400_000; w.PausedAt.IsZero() == spent {
			t.Errorf("%s: cost %d, paused at %s", ws, want, w.PausedAt)
		} else if spent {
			paused++
		}
	}
	if paused == 0 || paused == workspaces {
		t.Errorf("%d are paused: the test shows nothing", paused)
	}
	b.pass(time.Second) // a new month
	conclude()
	if left := raftstore.Find(b.Leader().Store.View(), record.Workspaces, "paused", "yes"); len(left) > 0 {
		t.Errorf("%d are paused in the next month", len(left))
	}
}

// The clock of who leads jumps over a month's end and back: what was stored counts once, a
// workspace that has spent its credit is told so once, and it is paused or not as its month is.
func TestAClockThatJumpsOverTheMonthsEnd(t *testing.T) {
	b := newBench(t, 1, "2026-03-31T22:00:00Z")
	b.ledger.prices.Own = false // the tier has a credit
	b.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		raftstore.Put(tx, record.WebhookEndpoints, &record.WebhookEndpoint{Meta: record.Meta{ID: "we"}, WorkspaceID: "ws", URL: "https://example.com"})
		testcluster.PutVolume(tx, &record.Volume{Meta: record.Meta{ID: "v"}, WorkspaceID: "ws", Name: "v", SizeMB: 100, Status: record.ResourceReady})
		spent := &record.Usage{Meta: record.Meta{ID: record.UsageID("ws", "2026-03")}, WorkspaceID: "ws", Month: "2026-03"}
		spent.Line(record.ProductSandbox, record.ResourceMemory).MicroUSD = 5_400_000
		raftstore.Put(tx, record.Usages, spent)
		return nil
	})
	began, store := b.now(), b.Leader().Store
	k := &keeper{
		Term: loops.NewTerm(loops.Config{Store: store, Clock: b.now, Logger: testcluster.Log()}),
		core: core.New(core.Core{Store: store, Tiers: b.ledger.tiers, Clock: b.now}), ledger: &b.ledger,
	}
	for _, c := range []struct {
		after  time.Duration
		paused bool
	}{
		{10 * time.Minute, true},
		{3 * time.Hour, false}, // ahead, in April
		{20 * time.Minute, true},
		{90 * 24 * time.Hour, false}, // far ahead
		{30 * time.Minute, true},
		{-40 * 24 * time.Hour, false}, // in February
		{time.Hour, true},
		{2*time.Hour + time.Minute, false}, // April at last
		{2*time.Hour - time.Minute, true},  // a little behind
		{5 * time.Hour, false},
	} {
		b.ns.Store(began.Add(c.after).UnixNano())
		k.storage(t.Context())
		k.credits(t.Context())
		if w, _ := raftstore.Get(store.View(), record.Workspaces, "ws"); w.PausedAt.IsZero() == c.paused {
			t.Errorf("after %s: paused is %v", c.after, !c.paused)
		}
	}
	told := map[string]int{}
	for _, d := range raftstore.All(store.View(), record.WebhookDeliveries) {
		told[d.Type]++
	}
	if told[string(api.WebhookQuotaWarning)] != 1 || told[string(api.WebhookQuotaExhausted)] != 1 {
		t.Errorf("told: %v", told)
	}
	// Five hours have passed. Of a month that has not begun, at most firstStorage counts.
	want := map[string]time.Duration{"2026-02": 0, "2026-03": 2 * time.Hour, "2026-04": 3 * time.Hour, "2026-06": firstStorage}
	for _, u := range raftstore.All(store.View(), record.Usages) {
		if got := time.Duration(u.Line(record.ProductSandbox, record.ResourceVolume).Amount/100) * time.Millisecond; got != want[u.Month] {
			t.Errorf("%s: %s of storage are counted, want %s", u.Month, got, want[u.Month])
		}
	}
}
