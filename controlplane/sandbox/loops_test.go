package sandbox_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

var id = strings.Repeat("a", 26)

// running adds a running sandbox to the store, and its box to a host.
func running(p *testplane.Plane, h *fakehost.Host, id string) {
	p.Place(h, &record.Sandbox{Meta: record.Meta{ID: id}, WorkspaceID: "ws", Generation: 1, MemoryMB: 512})
}

func becomes(t *testing.T, p *testplane.Plane, id string, want record.SandboxStatus) *record.Sandbox {
	t.Helper()
	var s *record.Sandbox
	testcluster.Await(t, "status "+string(want), func() bool {
		var ok bool
		s, ok = p.Sandbox(id)
		return ok && s.Status == want
	})
	return s
}

func edit(p *testplane.Plane, id string, change func(*record.Sandbox)) {
	p.Update(func(tx *raftstore.Tx) error {
		s, _ := raftstore.Get(tx, record.Sandboxes, id)
		c := s.Clone()
		change(c)
		raftstore.Put(tx, record.Sandboxes, c)
		return nil
	})
}

// Whether a sandbox is persistent is corrected on its host by the row, even if a
// leader told the host and did not commit.
func TestAHostFollowsTheRowsPersistence(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	running(p, h, id)
	var told atomic.Int64
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op != "patch" || c.Done {
			return nil
		}
		if told.Add(1)%2 == 1 { // each second time
			return fakehost.ErrDrop
		}
		return nil
	})
	become := func(persistent bool) {
		h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
			b := boxes[id]
			b.Persistent = persistent
			boxes[id] = b
		})
	}
	follows := func(persistent bool) {
		t.Helper()
		testcluster.Await(t, "the host's word", func() bool { return h.Boxes()[id].Persistent == persistent })
	}
	become(true) // told, and not written down
	follows(false)
	p.Update(func(tx *raftstore.Tx) error { // written down, and not told
		s, _ := raftstore.Get(tx, record.Sandboxes, id)
		c := s.Clone()
		c.Persistent = true
		raftstore.Put(tx, record.Sandboxes, c)
		return nil
	})
	follows(true)
	// Once they agree, the host is not called again.
	testcluster.Await(t, "the heartbeat", func() bool {
		boxes := p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Boxes
		return len(boxes) == 1 && boxes[0].Persistent != nil && *boxes[0].Persistent
	})
	before := told.Load()
	p.Passes(5)
	if n := told.Load() - before; n > 1 { // one may have been on its way
		t.Errorf("the host was told %d times more", n)
	}
}

// A persistent sandbox recovers when its host returns with it.
func TestAPersistentSandboxOutlivesTheLossOfItsHost(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	running(p, h, id)
	p.Update(func(tx *raftstore.Tx) error {
		s, _ := raftstore.Get(tx, record.Sandboxes, id)
		c := s.Clone()
		c.Persistent, c.HostSeq = true, 4
		raftstore.Put(tx, record.Sandboxes, c)
		return nil
	})
	h.Silence(true)
	becomes(t, p, id, record.SandboxFailed)
	h.Become(id, hostapi.StatusRunning)
	h.Silence(false)
	if s := becomes(t, p, id, record.SandboxRunning); s.Error != "" {
		t.Fatalf("%+v", s)
	}
	if len(h.Boxes()) != 1 {
		t.Fatal("its box was taken away")
	}
}

// While a sandbox waits for its turn to hibernate, its owner may change it.
func TestTheEndOfAPersistentSandboxIsLookedAtAgain(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 16384)
	first := make(chan struct{})
	var asked sync.Map
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "hibernate" && !c.Done {
			asked.Store(c.ID, true)
			select {
			case <-first:
			case <-ctx.Done():
			}
		}
		return nil
	})
	const many = 12 // more than hibernate at once
	all := make([]string, many)
	for i := range all {
		all[i] = strings.Repeat(string(rune('a'+i)), 26)
		running(p, h, all[i])
	}
	p.Update(func(tx *raftstore.Tx) error {
		for _, id := range all {
			s, _ := raftstore.Get(tx, record.Sandboxes, id)
			c := s.Clone()
			c.Persistent, c.ExpiresAt = true, tx.Now().Add(-time.Second)
			raftstore.Put(tx, record.Sandboxes, c)
		}
		return nil
	})
	under := func() (ids []string) {
		asked.Range(func(id, _ any) bool { ids = append(ids, id.(string)); return true })
		return ids
	}
	testcluster.Await(t, "full house", func() bool { return len(under()) == 8 })
	var spared []string
	for _, id := range all {
		if _, on := asked.Load(id); !on {
			spared = append(spared, id)
			edit(p, id, func(s *record.Sandbox) { s.ExpiresAt = time.Now().Add(time.Hour) })
		}
	}
	close(first)
	for _, id := range under() {
		becomes(t, p, id, record.SandboxHibernated)
	}
	p.Passes(5)
	for _, id := range spared {
		if s, _ := p.Sandbox(id); s.Status != record.SandboxRunning {
			t.Errorf("one that was given more time is %s", s.Status)
		}
	}
}

// announcer lets a test act inside a loop: say is called with each message before
// the loop continues.
type announcer struct {
	slog.Handler
	say func(message string)
}

func (announcer) Enabled(context.Context, slog.Level) bool { return true }

func (a announcer) Handle(_ context.Context, r slog.Record) error {
	a.say(r.Message)
	return nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A sandbox that a pass found expired may no longer be when its turn comes.
func TestTheEndOfASandboxIsLookedAtAgain(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	// Expired by the clock of the loops below, but not by that of the plane's own.
	now := func() time.Time { return time.Now().Add(2 * time.Hour) }
	name := func(s string) string { return strings.Repeat(s, 26) }
	first, extended, kept, last := name("a"), name("b"), name("c"), name("d") // in the order of a pass
	for _, id := range []string{first, extended, kept, last} {
		running(p, h, id)
		edit(p, id, func(s *record.Sandbox) { s.ExpiresAt = time.Now().Add(time.Hour) })
	}
	begun, edited := make(chan struct{}), make(chan struct{})
	var once sync.Once
	log := announcer{slog.DiscardHandler, func(message string) {
		if message == "sandbox has reached its ttl" {
			once.Do(func() { close(begun); <-edited })
		}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(edited) })
	n := p.LeaderNode()
	go func() {
		defer close(ended)
		l := loops.New(loops.Config{Store: n.Store, Clock: now, Logger: slog.New(log), Every: time.Hour, OrphanGrace: time.Hour})
		l.Register(n.Sources...)
		l.Run(ctx)
	}()
	defer func() { cancel(); goOn(); <-ended }()
	testcluster.Await(t, "end of the first", func() bool { return closed(begun) })
	edit(p, extended, func(s *record.Sandbox) { s.ExpiresAt = now().Add(time.Hour) })
	edit(p, kept, func(s *record.Sandbox) { s.Persistent = true })
	goOn()
	testcluster.Await(t, "end of the last", func() bool {
		_, there := p.Sandbox(last)
		return !there
	})
	for _, id := range []string{extended, kept} {
		if s, there := p.Sandbox(id); !there || s.Status == record.SandboxDeleting {
			t.Errorf("one that was given more time, or is kept, is %+v", s)
		}
	}
}

// After a failed hibernation of an expired sandbox, the next attempt is soon, but
// not at once.
func TestAHibernationThatFailsIsTriedAgain(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	var asked atomic.Int64
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "hibernate" && !c.Done && asked.Add(1) == 1 {
			return &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "the disk is full"}
		}
		return nil
	})
	running(p, h, id)
	edit(p, id, func(s *record.Sandbox) { s.Persistent, s.ExpiresAt = true, time.Now().Add(-time.Second) })
	becomes(t, p, id, record.SandboxHibernated)
	if n := asked.Load(); n != 2 {
		t.Errorf("the host was asked %d times", n)
	}
}

// A paused sandbox is paused again if its host has no room to hibernate it.
func TestAPausedSandboxThatCannotHibernateIsPausedAgain(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	running(p, h, id)
	h.Become(id, hostapi.StatusPaused)
	becomes(t, p, id, record.SandboxPaused)
	var refused atomic.Bool
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op != "hibernate" || c.Done {
			return nil
		}
		refused.Store(true)
		return &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "no room"}
	})
	edit(p, id, func(s *record.Sandbox) { s.Persistent, s.ExpiresAt = true, time.Now().Add(-time.Second) })
	testcluster.Await(t, "refusal", refused.Load)
	testcluster.Await(t, "pause", func() bool { return h.Boxes()[id].Status == hostapi.StatusPaused })
	becomes(t, p, id, record.SandboxPaused)
}

// A box that hangs in any call delays no other: neither those of its own host nor,
// when such boxes fill all its places, those of another.
func TestABoxThatHangsHoldsUpNoOther(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h1, h2 := p.Host("h1", 16384), p.Host("h2", 16384)
	over := make(chan struct{})
	defer close(over) // the host's server waits for its calls
	var hanging atomic.Int64
	h1.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Done || !strings.HasPrefix(c.ID, "h") || c.Op == "get" {
			return nil
		}
		hanging.Add(1)
		select {
		case <-ctx.Done():
		case <-over:
		}
		return fakehost.ErrDrop
	})
	box := func(prefix string, i int) string { return strings.Repeat(prefix, 25) + string(rune('a'+i)) }
	rest := func(h *fakehost.Host, id string) {
		running(p, h, id)
		edit(p, id, func(s *record.Sandbox) { s.Persistent, s.ExpiresAt = true, time.Now().Add(-time.Second) })
	}
	orphan := func(h *fakehost.Host, id string) {
		h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
			boxes[id] = hostapi.Box{ID: id, Generation: 1, Status: hostapi.StatusRunning}
		})
	}
	gone := func(h *fakehost.Host, id string) {
		testcluster.Await(t, "end of the orphan", func() bool { _, there := h.Boxes()[id]; return !there })
	}
	// One of each kind hangs, and the host's others continue.
	rest(h1, box("h", 0))
	orphan(h1, box("h", 1))
	h1.AddCapture("hangs")
	testcluster.Await(t, "calls that hang", func() bool { return hanging.Load() >= 3 })
	rest(h1, box("a", 0))
	orphan(h1, box("a", 1))
	h1.AddCapture("tree-gone")
	becomes(t, p, box("a", 0), record.SandboxHibernated)
	gone(h1, box("a", 1))
	testcluster.Await(t, "end of the capture", func() bool { return len(h1.Captures()) == 1 })
	// All places of the host are occupied.
	for i := range 10 {
		rest(h1, box("h", 2+i))
	}
	testcluster.Await(t, "a full host", func() bool { return hanging.Load() >= 10 })
	rest(h2, box("b", 0))
	orphan(h2, box("b", 1))
	becomes(t, p, box("b", 0), record.SandboxHibernated)
	gone(h2, box("b", 1))
}

// Of a workspace whose guests make their hibernation long, as many hang as a host hibernates at
// once. The next place is another workspace's, however many of the first one wait for longer.
func TestWorkspacesTakeTurnsToHibernate(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 16384)
	fail, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	var hanging atomic.Int64
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op != "hibernate" || c.Done || !strings.HasPrefix(c.ID, "h") {
			return nil
		}
		hanging.Add(1)
		select {
		case <-fail:
		case <-ctx.Done():
		case <-over:
		}
		return &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "the guest does not answer"}
	})
	expired := func(workspace, prefix string, i int, since time.Duration) string {
		id := strings.Repeat(prefix, 25) + string(rune('a'+i))
		p.Place(h, &record.Sandbox{Meta: record.Meta{ID: id}, WorkspaceID: workspace, Generation: 1, MemoryMB: 512})
		edit(p, id, func(s *record.Sandbox) { s.Persistent, s.ExpiresAt = true, time.Now().Add(-since) })
		return id
	}
	for i := range 2 * loops.AtOnce {
		expired("bad", "h", i, time.Hour)
	}
	testcluster.Await(t, "a full host", func() bool { return hanging.Load() == loops.AtOnce })
	other := expired("ws", "a", 0, time.Second)
	for range 2 { // a pass that does not know of it may be under way
		fail <- struct{}{}
	}
	becomes(t, p, other, record.SandboxHibernated)
}

// A leader in the middle of a long transition ends with its leadership all the same.
func TestALongMoveEndsWithTheLeadership(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 3, nil)
	h := p.Host("h1", 4096)
	asked, over, ended := make(chan struct{}, 16), make(chan struct{}), make(chan struct{})
	defer close(over)
	var calls atomic.Int64
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "hibernate" && !c.Done {
			first := calls.Add(1) == 1
			asked <- struct{}{}
			select {
			case <-ctx.Done():
				if first {
					close(ended)
				}
			case <-over:
			}
			return fakehost.ErrDrop
		}
		return nil
	})
	running(p, h, id)
	edit(p, id, func(s *record.Sandbox) { s.Persistent, s.ExpiresAt = true, time.Now().Add(-time.Second) })
	<-asked
	old := p.LeaderNode()
	p.Cut(old.Replica)
	<-asked // the next leader has heard the host, and asks
	testcluster.Await(t, "end of the old leader's work", func() bool {
		_, err := old.Hosts.Heartbeat(t.Context(), h.Heartbeat())
		return errors.Is(err, hosts.ErrNotLeading)
	})
	testcluster.Await(t, "end of the old leader's call", func() bool { return closed(ended) })
	p.Heal(old.Replica)
	becomes(t, p, id, record.SandboxRunning)
}

func TestAVMThatDied(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	running(p, h, id)
	h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
		b := boxes[id]
		b.Status, b.Error = hostapi.StatusFailed, "killed by signal 9"
		boxes[id] = b
	})
	if s := becomes(t, p, id, record.SandboxFailed); s.Error != "killed by signal 9" {
		t.Fatalf("%+v", s)
	}
	if len(h.Boxes()) != 1 {
		t.Fatal("the failed box was taken away before anyone looked at it")
	}
}

// A few rows that fill a transaction each do not prevent changes of the others from
// being committed.
func TestLargeRowsHoldUpNoOthers(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 65536)
	var ids []string
	for i, letter := range "abcdefghijklm" {
		s := &record.Sandbox{
			Meta: record.Meta{ID: strings.Repeat(string(letter), len(id))}, WorkspaceID: "ws", Generation: 1, HostSeq: 1, MemoryMB: 512,
		}
		if i > 0 {
			s.EnvSealed = make([]byte, 64<<10)
		}
		p.Place(h, s)
		ids = append(ids, s.ID)
	}
	all := func(want record.SandboxStatus) {
		t.Helper()
		for _, id := range ids {
			becomes(t, p, id, want)
		}
	}
	h.Silence(true)
	all(record.SandboxFailed)
	h.Silence(false)
	all(record.SandboxRunning)
	h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
		for id, b := range boxes {
			b.Status, b.Error = hostapi.StatusFailed, "killed by signal 9"
			boxes[id] = b
		}
	})
	all(record.SandboxFailed)
}

func TestABoxThatIsGone(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	running(p, h, id)
	// Without a complete inventory, a missing box proves nothing.
	h.SetReady(false)
	testcluster.Await(t, "the heartbeat", func() bool { return !p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Ready })
	h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) { delete(boxes, id) })
	p.Passes(3)
	becomes(t, p, id, record.SandboxRunning)
	h.SetReady(true)
	if s := becomes(t, p, id, record.SandboxFailed); s.Error == "" {
		t.Fatal("no reason given")
	}
	// The host has no record of the sandbox, so it must learn whose event it is.
	testcluster.Await(t, "the event", func() bool {
		e := h.Events(id)
		return len(e) == 1 && e[0].Type == hostapi.EventOrphaned && e[0].WorkspaceID == "ws"
	})
}

// A heartbeat that is older than the box that it lacks must not fail the sandbox:
// the host is asked first.
func TestAHeartbeatOlderThanTheBox(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	var asked atomic.Int64
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "get" {
			asked.Add(1)
		}
		return nil
	})
	h.Silence(true) // the last heartbeat has no boxes
	running(p, h, id)
	testcluster.Await(t, "the question", func() bool { return asked.Load() >= 2 })
	becomes(t, p, id, record.SandboxRunning)
	h.Silence(false)
}

func TestBoxesWithoutARow(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	running(p, h, id)
	other := strings.Repeat("b", 26)
	h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
		boxes[other] = hostapi.Box{ID: other, Generation: 1, Status: hostapi.StatusRunning}
	})
	testcluster.Await(t, "end of the orphan", func() bool { _, there := h.Boxes()[other]; return !there })
	if _, there := h.Boxes()[id]; !there {
		t.Fatal("a box with a row was deleted")
	}
}

func TestABoxOnTheWrongHost(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h1, h2 := p.Host("h1", 4096), p.Host("h2", 4096)
	running(p, h1, id)
	h2.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
		boxes[id] = hostapi.Box{ID: id, Generation: 1, Status: hostapi.StatusRunning}
	})
	testcluster.Await(t, "end of the double", func() bool { return len(h2.Boxes()) == 0 })
	if len(h1.Boxes()) != 1 {
		t.Fatal("the right one is gone")
	}
}

func TestASandboxInTransitionWithoutAFlow(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	for _, status := range []record.SandboxStatus{record.SandboxStarting, record.SandboxDeleting} {
		running(p, h, id)
		p.Update(func(tx *raftstore.Tx) error {
			s, _ := raftstore.Get(tx, record.Sandboxes, id)
			c := s.Clone()
			c.Status = status
			raftstore.Delete(tx, record.Sandboxes, id)
			testcluster.PutSandbox(tx, c)
			return nil
		})
		if rows := p.Settled(h); len(rows) != 0 {
			t.Fatalf("a sandbox is %s for ever", status)
		}
	}
}
