package box_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

const fenceReason = "no leader for a lease"

func exclusive(generation uint64) hostapi.BoxSpec {
	s := spec(generation)
	s.Exclusive = true
	return s
}

// Exclusive boxes are ended and say why; the others run on.
func TestAFenceEndsExclusiveBoxesAlone(t *testing.T) {
	ctx := t.Context()
	d := start(t, boxtest.NewWorld(t))
	for id, s := range map[string]hostapi.BoxSpec{idA: exclusive(1), idB: spec(1)} {
		_, err := d.Put(ctx, id, s)
		must(t, err)
	}
	d.Fence(ctx, fenceReason)
	await(t, func() bool { b, _ := d.Get(idA); return b.Status == hostapi.StatusFailed })
	if b := wantStatus(t, d, idA, hostapi.StatusFailed); b.Error != fenceReason || b.VMMPID != 0 {
		t.Errorf("the exclusive box is %+v", b)
	}
	wantStatus(t, d, idB, hostapi.StatusRunning)
	d.Fence(ctx, fenceReason) // again is no harm
	must(t, d.Delete(ctx, idA, 1))
}

// Who hears that an exclusive box has failed may start another in its place, so
// neither the ledger nor anybody else is told before its VMM has ended, also where
// that takes several attempts.
func TestNoBoxHasFailedBeforeItsVMMHasEnded(t *testing.T) {
	for name, end := range map[string]func(d *daemon, breaks func(step string)){
		"a fence": func(d *daemon, breaks func(string)) {
			breaks("nothing else")
			d.Fence(t.Context(), fenceReason)
			d.Fence(t.Context(), fenceReason)
		},
		"a wake that went wrong": func(d *daemon, breaks func(string)) {
			_, err := d.Hibernate(t.Context(), idA)
			must(t, err)
			breaks("resume")
			if _, err := d.Wake(t.Context(), idA); err == nil {
				t.Error("it woke")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			d := start(t, w)
			_, err := d.Put(t.Context(), idA, exclusive(1))
			must(t, err)
			var mu sync.Mutex
			var broken string         // the step, and with it the first attempt to kill
			var before []ledger.State // what the ledger said at each attempt
			w.SetStep(func(_ context.Context, step string) error {
				mu.Lock()
				defer mu.Unlock()
				if broken != "" && step == "kill" {
					rec, _ := d.Ledger.Get(idA)
					before = append(before, rec.State)
				}
				if step == broken || step == "kill" && len(before) == 1 {
					return boxtest.ErrInjected
				}
				return nil
			})
			end(d, func(step string) {
				mu.Lock()
				defer mu.Unlock()
				broken = step
			})
			early := 0
			await(t, func() bool {
				b, _ := d.Get(idA)
				rec, _ := d.Ledger.Get(idA)
				told := b.Status == hostapi.StatusFailed || rec.State == ledger.Failed
				if told && w.VMM(idA) != nil { // it lived then: none is started here
					early++
				}
				return b.Status == hostapi.StatusFailed && d.ReservedMB() == 0
			})
			w.SetStep(nil)
			mu.Lock()
			if early > 0 || len(before) != 2 || slices.Contains(before, ledger.Failed) {
				t.Errorf("the ledger said %q when it was to be killed; %d times it had failed while its VMM lived", before, early)
			}
			mu.Unlock()
			must(t, d.Delete(t.Context(), idA, 1))
			nothingLeft(t, w, d)
		})
	}
}

// What sleeps stays asleep. What is on its way to life is met in the end.
func TestAFenceMeetsEveryState(t *testing.T) {
	ctx := t.Context()
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(ctx, idA, exclusive(1))
	must(t, err)
	_, err = d.Hibernate(ctx, idA)
	must(t, err)
	d.Fence(ctx, fenceReason)
	if b, _ := d.Get(idA); b.Status != hostapi.StatusHibernated {
		t.Fatalf("one that slept is %+v", b)
	}
	waiting, goOn := make(chan struct{}), make(chan struct{})
	block := func(step string) {
		w.SetStep(func(ctx context.Context, name string) error {
			if name == step {
				close(waiting)
				select {
				case <-goOn:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	}
	block("resume")
	woken := make(chan error, 1)
	go func() { _, err := d.Wake(ctx, idA); woken <- err }()
	<-waiting
	d.Fence(ctx, fenceReason)
	close(goOn)
	if err := <-woken; err == nil {
		t.Error("it woke in spite of the fence")
	}
	if b, _ := d.Get(idA); b.Status != hostapi.StatusFailed || b.Error != fenceReason {
		t.Errorf("one that was woken is %+v", b)
	}
	waiting, goOn = make(chan struct{}), make(chan struct{})
	block("identity")
	made := make(chan error, 1)
	go func() { _, err := d.Put(ctx, idB, exclusive(1)); made <- err }()
	<-waiting
	d.Fence(ctx, fenceReason)
	if err := <-made; err == nil {
		t.Error("it was made in spite of the fence")
	}
	w.SetStep(nil)
}

// A fence is the reason of one VMM's end. The next one may end for another.
func TestAFenceExplainsOneEnd(t *testing.T) {
	ctx := t.Context()
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(ctx, idA, exclusive(1))
	must(t, err)
	_, err = d.Hibernate(ctx, idA)
	must(t, err)
	reached, proceed := make(chan struct{}), make(chan struct{})
	w.SetStep(blockAt("restore", reached, proceed))
	woken := make(chan error, 1)
	go func() { _, err := d.Wake(ctx, idA); woken <- err }()
	<-reached
	d.Fence(ctx, fenceReason)
	if err := <-woken; err == nil {
		t.Error("it woke in spite of the fence")
	}
	close(proceed)
	_, err = d.Wake(ctx, idA) // the leader is back
	must(t, err)
	w.VMM(idA).Die(syscall.SIGKILL)
	await(t, func() bool { b, _ := d.Get(idA); return b.Status == hostapi.StatusFailed })
	if b, _ := d.Get(idA); b.Error != "VMM died: killed by signal KILL" {
		t.Errorf("it failed of %q", b.Error)
	}
}

// What the guard has ended says so, whether the daemon lived on or comes back; one that
// is not exclusive was not ended by it.
func TestABoxThatTheGuardHasEndedSaysSo(t *testing.T) {
	const guarded = "the guard of its host ended it: the lease was over, and the host's daemon did not end it"
	w := boxtest.NewWorld(t)
	asked := func(_ *box.Config, deps *box.Deps) { deps.Guarded = func(string) bool { return true } }
	l, err := ledger.Open(w.Paths.Ledger(), "h1")
	must(t, err)
	d := boxtest.Run(w, l, asked)
	d.Open()
	idC := strings.Repeat("c", len(idA))
	for id, s := range map[string]hostapi.BoxSpec{idA: exclusive(1), idB: spec(1), idC: exclusive(1)} {
		_, err := d.Put(t.Context(), id, s)
		must(t, err)
	}
	for _, id := range []string{idA, idB} {
		w.VMM(id).Die(syscall.SIGKILL)
		await(t, func() bool { b, _ := d.Get(id); return b.Status == hostapi.StatusFailed })
	}
	d.Close()
	w.VMM(idC).Die(syscall.SIGKILL)
	d = boxtest.Run(w, l, asked)
	for _, rec := range l.Boxes() {
		_, err := d.Recover(t.Context(), rec)
		must(t, err)
	}
	d.Open()
	for id, want := range map[string]string{idA: guarded, idB: "VMM died: killed by signal KILL", idC: guarded} {
		if b := wantStatus(t, d, id, hostapi.StatusFailed); b.Error != want {
			t.Errorf("%s failed of %q, want %q", id, b.Error, want)
		}
	}
	d.Close()
	must(t, l.Close())
}
