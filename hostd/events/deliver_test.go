package events

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// replica is a replica's event store: it takes each event once, and asks again
// for those that it misses and that are to be had.
type replica struct {
	t      *testing.T
	server *httptest.Server

	mu     sync.Mutex
	events []hostapi.Event
	cursor uint64
	down   bool
	calls  int
	lost   int // times that events were gone for good
}

func newReplica(t *testing.T) *replica {
	r := &replica{t: t}
	r.server = httptest.NewTLSServer(r)
	t.Cleanup(r.server.Close)
	return r
}

func (r *replica) addr() string { return strings.TrimPrefix(r.server.URL, "https://") }

func (r *replica) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var b hostapi.EventBatch
	if err := json.NewDecoder(req.Body).Decode(&b); err != nil || req.URL.Path != hostapi.PathEvents || b.HostID != "h1" {
		r.t.Errorf("%s %s: %+v, %v", req.Method, req.URL, b.HostID, err)
	}
	if len(b.Events) > batchEvents {
		r.t.Errorf("batch of %d", len(b.Events))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.down {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	if len(b.Events) > 0 && r.cursor > 0 && b.Events[0].Seq > r.cursor+1 {
		if b.First <= r.cursor+1 {
			_ = json.NewEncoder(w).Encode(hostapi.EventCursor{Seq: r.cursor})
			return
		}
		r.lost++
	}
	for _, e := range b.Events {
		if e.Seq > r.cursor {
			r.events, r.cursor = append(r.events, e), e.Seq
		}
	}
	_ = json.NewEncoder(w).Encode(hostapi.EventCursor{Seq: r.cursor})
}

func (r *replica) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// await waits until the replica has the events with these messages.
func (r *replica) await(want string) {
	r.t.Helper()
	r.until("events "+want, func() bool { return messages(r.events) == want })
}

func (r *replica) until(what string, done func() bool) {
	r.t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		r.mu.Lock()
		ok, have := done(), messages(r.events)
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("waited for %s, there is %q", what, have)
		}
	}
}

func deliver(t *testing.T, r *Recorder, to ...*replica) *Delivery {
	var peers []string
	for _, p := range to {
		peers = append(peers, p.addr())
	}
	d := NewDelivery(DeliveryConfig{
		Recorder: r, Peers: peers, Log: slog.New(slog.DiscardHandler),
		TLS: to[0].server.Client().Transport.(*http.Transport).TLSClientConfig,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); d.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return d
}

func TestEveryReplicaIsToldEveryEvent(t *testing.T) {
	r := open(t, t.TempDir(), func(c *Config) { c.SpoolBytes, c.SpoolParts = 8<<10, 99 })
	r.Open(idA, "ws1", "base")
	emit(r, idA, 0, 1200)
	a, b := newReplica(t), newReplica(t)
	b.down = true
	d := deliver(t, r, a, b)
	a.await(numbers(0, 1200))
	emit(r, idA, 1200, 1201)
	a.await(numbers(0, 1201))
	b.until("calls", func() bool { return b.calls > 0 && len(b.events) == 0 })
	b.set(func() { b.down = false })
	b.await(numbers(0, 1201))
	c := newReplica(t)
	d.SetPeers([]string{a.addr(), c.addr()})
	c.await(numbers(0, 1201))
	emit(r, idA, 1201, 1203)
	a.await(numbers(0, 1203))
	c.await(numbers(0, 1203))
	if b.lost+a.lost != 0 {
		t.Errorf("events were said to be lost")
	}
}

func TestAnEventOfAStrangerIsToldTheControlPlane(t *testing.T) {
	r := open(t, t.TempDir())
	a := newReplica(t)
	deliver(t, r, a)
	r.Emit(idB, hostapi.EventUnmanaged, "a VM without a record", nil)
	a.await("a VM without a record")
}

func TestDeliveryGoesOnAfterARestart(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	r.Open(idA, "", "")
	a := newReplica(t)
	emit(r, idA, 0, 3)
	first := deliver(t, r, a)
	a.await(numbers(0, 3))
	first.SetPeers(nil)
	r = open(t, dir)
	emit(r, idA, 3, 5)
	deliver(t, r, a)
	a.await(numbers(0, 5))
}

func TestAReplicaNeedNotWaitForNumbersThatWereLeftOut(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	r.Open(idA, "", "")
	emit(r, idA, 0, 3)
	a := newReplica(t)
	deliver(t, r, a).SetPeers([]string{a.addr()})
	a.await(numbers(0, 3))
	r = open(t, dir, func(c *Config) { c.BootID = "after a power cut" })
	emit(r, idA, 3, 5)
	deliver(t, r, a)
	a.await(numbers(0, 5))
}

func TestAHostWhoseDiskWasReplacedGoesOnAfterWhatReplicasHave(t *testing.T) {
	a := newReplica(t)
	a.cursor = 1 << 60
	r := open(t, t.TempDir())
	deliver(t, r, a)
	a.until("a call whose answer was heard", func() bool {
		r.numbering.Lock()
		defer r.numbering.Unlock()
		return r.last >= 1<<60
	})
	r.Open(idA, "", "")
	emit(r, idA, 0, 2)
	a.until("the newest", func() bool { return strings.HasSuffix(messages(a.events), "1") })
}

// A host whose disk was replaced tells of the VMs that it finds at once: before it
// knows which numbers replicas have had of it.
func TestAHostWhoseDiskWasReplacedTellsWhatComesFirst(t *testing.T) {
	c := newClock()
	now := func(cfg *Config) { cfg.Now = c.Now }
	a := newReplica(t)
	r := open(t, t.TempDir(), now)
	emit(r, idA, 0, 3)
	deliver(t, r, a)
	a.await(numbers(0, 3))
	c.move(time.Hour)
	r = open(t, t.TempDir(), now)
	emit(r, idA, 3, 5)
	deliver(t, r, a)
	a.await(numbers(0, 5))
}

func TestTheSpoolIsBounded(t *testing.T) {
	dir := t.TempDir()
	c := newClock()
	r := open(t, dir, func(cfg *Config) { cfg.Now, cfg.SpoolBytes, cfg.SpoolParts = c.Now, 8<<10, 5 })
	r.Open(idA, "", "")
	emit(r, idA, 0, 1000)
	r.prune()
	if _, _, n := r.spool.span(); n > 40<<10 || n < 30<<10 {
		t.Errorf("spool of %d bytes", n)
	}
	// A replica that was away for too long is told what is left, and that more is gone.
	a := newReplica(t)
	a.cursor = 10
	deliver(t, r, a)
	a.until("the last", func() bool { return strings.HasSuffix(messages(a.events), " 999") })
	if a.lost != 1 {
		t.Errorf("told %d times that events are lost, want once", a.lost)
	}
	c.move(8 * 24 * time.Hour)
	emit(r, idA, 0, 1)
	r.prune()
	files, err := os.ReadDir(filepath.Join(dir, "spool"))
	if err != nil || len(files) != 1 {
		t.Errorf("after a week: %d files, %v", len(files), err)
	}
}

func TestAReplicaThatLostItsStoreIsToldAgain(t *testing.T) {
	r := open(t, t.TempDir())
	r.Open(idA, "", "")
	emit(r, idA, 0, 3)
	a := newReplica(t)
	deliver(t, r, a)
	a.await(numbers(0, 3))
	var calls int
	a.set(func() { a.down, calls = true, a.calls })
	emit(r, idA, 3, 4)
	a.until("a failed call", func() bool { return a.calls > calls })
	a.set(func() { a.down, a.events, a.cursor = false, nil, 0 })
	a.await(numbers(0, 4))
}

// What is lost of the spool while the daemon runs, be it an operator who empties a
// file of a full disk, does not end the delivery of what comes after it.
func TestDeliveryGoesOnAfterWhatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	r.Open(idA, "", "")
	emit(r, idA, 0, 2*batchEvents)
	parts, err := filepath.Glob(filepath.Join(dir, "spool", "*"+partSuffix))
	if err != nil || len(parts) != 1 {
		t.Fatalf("parts %v, %v", parts, err)
	}
	must(t, os.Truncate(parts[0], 0))
	emit(r, idA, 2*batchEvents, 2*batchEvents+3)
	a := newReplica(t)
	deliver(t, r, a)
	a.await(numbers(2*batchEvents, 2*batchEvents+3))
}

func TestPlacesInTheSpool(t *testing.T) {
	r := open(t, t.TempDir(), func(c *Config) { c.SpoolBytes, c.SpoolParts = 4<<10, 99 })
	r.Open(idA, "", "")
	emit(r, idA, 0, 100)
	base := r.last - 100
	var got []string
	for place := uint64(0); ; {
		found, err := r.spool.read(place, base+98, 7, 1<<20)
		must(t, err)
		if len(found) > 7 {
			t.Fatalf("%d events", len(found))
		}
		if len(found) == 0 {
			break
		}
		for _, e := range found {
			got = append(got, e.Message)
			place = e.Seq
		}
	}
	if strings.Join(got, " ") != numbers(0, 97) {
		t.Errorf("read %s", got)
	}
	found, err := r.spool.read(base+49, base+1000, 500, 600) // bytes
	if err != nil || len(found) == 0 || len(found) > 5 || found[0].Message != "49" {
		t.Errorf("a few bytes: %s, %v", messages(found), err)
	}
	if first, last, _ := r.spool.span(); first != base+1 || last != base+100 {
		t.Errorf("spool from %d to %d", first, last)
	}
}
