package heartbeat

import (
	"slices"
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/internal/testca"
)

// takesParts has a replica take parts.
func (r *replica) takesParts() *replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.part = make(chan hostapi.HeartbeatPart, 64)
	return r
}

func TestALeaderThatHasHeardTheHostIsSentWhatChanged(t *testing.T) {
	ca := testca.New(t)
	r := newReplica(t, ca, "replica:r1").takesParts()
	s := run(t, ca, r.addr)
	if hb := receive(t, r.got); hb.Sequence != 1 {
		t.Fatalf("first = %+v", hb)
	}
	for sequence := uint64(2); sequence < 5; sequence++ {
		s.changed <- struct{}{}
		if p := receive(t, r.part); p.Sequence != sequence || p.Before != sequence-1 || !slices.Contains(p.Same, hostapi.ListBoxes) {
			t.Fatalf("part = %+v", p)
		}
	}
}

func TestALeaderThatLacksTheLastHeartbeatGetsAWholeOne(t *testing.T) {
	ca := testca.New(t)
	r := newReplica(t, ca, "replica:r1").takesParts()
	s := run(t, ca, r.addr)
	receive(t, r.got)
	r.mu.Lock()
	r.gap = true
	r.mu.Unlock()
	s.changed <- struct{}{}
	if hb := receive(t, r.got); hb.Sequence != 2 {
		t.Fatalf("%+v", hb)
	}
	s.changed <- struct{}{}
	if p := receive(t, r.part); p.Before != 2 {
		t.Fatalf("%+v", p)
	}
}

func TestAnotherLeaderGetsAWholeOne(t *testing.T) {
	ca := testca.New(t)
	r1, r2 := newReplica(t, ca, "replica:r1").takesParts(), newReplica(t, ca, "replica:r2").takesParts()
	s := run(t, ca, r1.addr)
	receive(t, r1.got)
	r1.set(r2.addr)
	s.changed <- struct{}{}
	if hb := receive(t, r2.got); hb.Sequence != 2 {
		t.Fatalf("%+v", hb)
	}
	s.changed <- struct{}{}
	receive(t, r2.part)
}

// A leader of an earlier version is asked once.
func TestALeaderThatKnowsNoPartsIsSentWholeOnes(t *testing.T) {
	ca := testca.New(t)
	r := newReplica(t, ca, "replica:r1")
	s := run(t, ca, r.addr)
	for sequence := uint64(1); sequence < 4; sequence++ {
		if hb := receive(t, r.got); hb.Sequence != sequence {
			t.Fatalf("%+v, want %d", hb, sequence)
		}
		receive(t, s.replies)
		s.changed <- struct{}{}
	}
}
