package box_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/vmm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	idA = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	idB = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// What tests of boxes share with those of the parts beside them.
type daemon = boxtest.Daemon

var (
	spec  = boxtest.Spec
	start = boxtest.Start
	put   = boxtest.Put
	await = boxtest.Await
	must  = boxtest.Must
	world = boxtest.Faulty
	cold  = boxtest.Cold

	blockAt = boxtest.BlockAt

	wantStatus  = boxtest.WantStatus
	nothingLeft = boxtest.NothingLeft
	withEvents  = boxtest.WithEvents
)

func TestCreateExecPauseResumeDelete(t *testing.T) {
	ctx := t.Context()
	w := boxtest.NewWorld(t)
	d := start(t, w)

	b, err := d.Put(ctx, idA, spec(1))
	must(t, err)
	if b.Status != hostapi.StatusRunning || b.MemoryMB != 512 || b.VMMPID == 0 || b.StartedAt.IsZero() {
		t.Errorf("box = %+v", b)
	}
	engine := map[string]bool{}
	for _, s := range b.Stages {
		engine[s.Name] = s.Engine
	}
	for name, want := range map[string]bool{"admission": false, "slot": false, "files": false, "cgroup": false, "vmm_start": true, "restore": true, "resume": true, "identity": false} {
		if got, ok := engine[name]; !ok || got != want {
			t.Errorf("stage %s: present=%v engine=%v, want engine=%v", name, ok, got, want)
		}
	}
	if b.CreateDuration <= 0 || b.CreateOwnDuration > b.CreateDuration {
		t.Errorf("create took %s, %s of it ours", b.CreateDuration, b.CreateOwnDuration)
	}

	res, err := d.Exec(ctx, idA, hostapi.ExecRequest{Argv: []string{"hello"}, Timeout: time.Minute})
	must(t, err)
	if string(res.Stdout) != "hello" || res.ExitCode != 0 {
		t.Errorf("exec = %+v", res)
	}

	b, err = d.Pause(ctx, idA)
	must(t, err)
	if b.Status != hostapi.StatusPaused {
		t.Errorf("status = %s after pause", b.Status)
	}
	if _, err := d.Exec(ctx, idA, hostapi.ExecRequest{Argv: []string{"x"}, Timeout: time.Minute}); !errors.Is(err, hosterr.ErrNotRunning) {
		t.Errorf("exec in a paused box: %v, want ErrNotRunning", err)
	}
	if _, err = d.Pause(ctx, idA); !errors.Is(err, hosterr.ErrIllegalState) {
		t.Errorf("second pause: %v, want ErrIllegalState", err)
	}
	b, err = d.Resume(ctx, idA)
	must(t, err)
	if b.Status != hostapi.StatusRunning {
		t.Errorf("status = %s after resume", b.Status)
	}

	must(t, d.Delete(ctx, idA, 1))
	must(t, d.Delete(ctx, idA, 1)) // already done
	nothingLeft(t, w, d)
	if _, err := d.Get(idA); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("Get = %v, want ErrNotFound", err)
	}
}

func TestAFailureAtEachStepOfACreateLeavesNothing(t *testing.T) {
	for _, step := range boxtest.CreateSteps {
		t.Run(step, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			fail := true
			var mu sync.Mutex
			w.SetStep(func(_ context.Context, name string) error {
				mu.Lock()
				defer mu.Unlock()
				if fail && name == step {
					return boxtest.ErrInjected
				}
				return nil
			})
			d := start(t, w)
			if _, err := d.Put(t.Context(), idA, spec(1)); err == nil {
				t.Fatal("create succeeded")
			}
			nothingLeft(t, w, d)
			if _, err := d.Get(idA); !errors.Is(err, hosterr.ErrNotFound) {
				t.Errorf("Get = %v, want ErrNotFound", err)
			}
			// The same generation may be tried again.
			mu.Lock()
			fail = false
			mu.Unlock()
			if _, err := d.Put(t.Context(), idA, spec(1)); err != nil {
				t.Errorf("second attempt: %v", err)
			}
		})
	}
}

func TestWhatCannotBeTakenApartIsTriedAgain(t *testing.T) {
	for _, step := range boxtest.DeleteSteps {
		t.Run(step, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			var mu sync.Mutex
			failures := 1
			w.SetStep(func(_ context.Context, name string) error {
				mu.Lock()
				defer mu.Unlock()
				if name == step && failures > 0 {
					failures--
					return boxtest.ErrInjected
				}
				return nil
			})
			d := start(t, w)
			_, err := d.Put(t.Context(), idA, spec(1))
			must(t, err)
			if err := d.Delete(t.Context(), idA, 1); !errors.Is(err, boxtest.ErrInjected) {
				t.Fatalf("Delete = %v, want the injected failure", err)
			}
			if b, err := d.Get(idA); err == nil && b.Status != hostapi.StatusDeleting {
				t.Errorf("status = %s, want deleting", b.Status)
			}
			await(t, func() bool { return len(w.Left()) == 0 })
			if got := d.Ledger.Tombstone(idA); got != 1 {
				t.Errorf("tombstone = %d, want 1", got)
			}
		})
	}
}

func TestConcurrentPutsMakeOneBox(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := d.Put(t.Context(), idA, spec(1)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(d.List()); n != 1 {
		t.Errorf("%d boxes, want 1", n)
	}
	if got := d.ReservedMB(); got != 600 {
		t.Errorf("%d MB reserved, want 600", got)
	}
}

func TestACreateOutlivesItsCallerAndIsJoined(t *testing.T) {
	w := boxtest.NewWorld(t)
	reached, proceed := make(chan struct{}), make(chan struct{})
	w.SetStep(blockAt("restore", reached, proceed))
	d := start(t, w)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := d.Put(ctx, idA, spec(1)); first <- err }()
	<-reached
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("first Put = %v, want context.Canceled", err)
	}
	if b, err := d.Get(idA); err != nil || b.Status != hostapi.StatusStarting {
		t.Errorf("Get = %s, %v; want starting", b.Status, err)
	}
	second := make(chan error, 1)
	go func() { _, err := d.Put(t.Context(), idA, spec(1)); second <- err }()
	close(proceed)
	must(t, <-second)
}

func TestDeleteCutsOffACreateAtEachStep(t *testing.T) {
	for _, step := range []string{"take", "cgroup", "start", "restore", "resume", "identity"} {
		t.Run(step, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			reached := make(chan struct{})
			w.SetStep(blockAt(step, reached, nil))
			d := start(t, w)
			put := make(chan error, 1)
			go func() { _, err := d.Put(t.Context(), idA, spec(1)); put <- err }()
			<-reached
			must(t, d.Delete(t.Context(), idA, 1))
			if err := <-put; !errors.Is(err, hosterr.ErrStaleGeneration) {
				t.Errorf("Put = %v, want ErrStaleGeneration", err)
			}
			nothingLeft(t, w, d)
			if _, err := d.Put(t.Context(), idA, spec(1)); !errors.Is(err, hosterr.ErrStaleGeneration) {
				t.Errorf("Put of the deleted generation = %v, want ErrStaleGeneration", err)
			}
		})
	}
}

func TestGenerations(t *testing.T) {
	ctx := t.Context()
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(ctx, idA, spec(2))
	must(t, err)
	pid := w.VMM(idA).PID()

	if _, err := d.Put(ctx, idA, spec(1)); !errors.Is(err, hosterr.ErrStaleGeneration) {
		t.Errorf("older Put = %v, want ErrStaleGeneration", err)
	}
	if err := d.Delete(ctx, idA, 1); !errors.Is(err, hosterr.ErrStaleGeneration) {
		t.Errorf("older Delete = %v, want ErrStaleGeneration", err)
	}
	b, err := d.Put(ctx, idA, spec(3))
	must(t, err)
	if b.Generation != 3 || b.VMMPID == pid {
		t.Errorf("a younger Put left generation %d with VMM %d", b.Generation, b.VMMPID)
	}
	must(t, d.Delete(ctx, idA, 0)) // whatever is there
	if _, err := d.Put(ctx, idA, spec(3)); !errors.Is(err, hosterr.ErrStaleGeneration) {
		t.Errorf("Put of a deleted generation = %v, want ErrStaleGeneration", err)
	}
	// A delete that arrives before the create it follows.
	must(t, d.Delete(ctx, idB, 5))
	if _, err := d.Put(ctx, idB, spec(5)); !errors.Is(err, hosterr.ErrStaleGeneration) {
		t.Errorf("late Put = %v, want ErrStaleGeneration", err)
	}
	_, err = d.Put(ctx, idB, spec(6))
	must(t, err)
}

func TestVMMDeathFailsTheBoxAtOnce(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	drain(d.Changed())
	w.VMM(idA).Die(syscall.SIGKILL)
	b := changed(t, d, idA, hostapi.StatusFailed)
	if b.Signal != "KILL" || b.ExitCode == nil || b.Error == "" {
		t.Errorf("box = %+v, want failed by KILL", b)
	}
	if _, err := d.Exec(t.Context(), idA, hostapi.ExecRequest{Argv: []string{"x"}, Timeout: time.Second}); !errors.Is(err, hosterr.ErrNotRunning) {
		t.Errorf("exec = %v, want ErrNotRunning", err)
	}
	if _, err := d.Resume(t.Context(), idA); !errors.Is(err, hosterr.ErrIllegalState) {
		t.Errorf("resume = %v, want ErrIllegalState", err)
	}
	rec, _ := d.Ledger.Get(idA)
	if rec.State != ledger.Failed {
		t.Errorf("ledger says %s, want failed", rec.State)
	}
	must(t, d.Delete(t.Context(), idA, 1))
	nothingLeft(t, w, d)
}

// A guest that reboots is another machine than the one that was restored: its
// memory is gone, and with it who it is.
func TestAGuestThatRebootsFailsItsBox(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	drain(d.Changed())
	w.VMM(idA).Reboot("")
	b := changed(t, d, idA, hostapi.StatusFailed)
	if b.Signal != "" || b.ExitCode != nil || !strings.Contains(b.Error, "rebooted") {
		t.Errorf("box = %+v, want failed, for its guest rebooted", b)
	}
	must(t, d.Delete(t.Context(), idA, 1))
	nothingLeft(t, w, d)
}

func TestAGuestThatRebootsDuringItsCreateEndsIt(t *testing.T) {
	w := boxtest.NewWorld(t)
	reached := make(chan struct{})
	w.SetStep(blockAt("identity", reached, nil))
	d := start(t, w)
	put := make(chan error, 1)
	go func() { _, err := d.Put(t.Context(), idA, spec(1)); put <- err }()
	<-reached
	w.VMM(idA).Reboot("Kernel panic - not syncing: for this test")
	err := <-put
	if err == nil || !strings.Contains(err.Error(), "the guest rebooted") || !strings.Contains(err.Error(), "for this test") {
		t.Errorf("Put = %v, want one that says that the guest rebooted, and what it said last", err)
	}
	nothingLeft(t, w, d)
}

func TestVMMDeathDuringACreateEndsItAtOnce(t *testing.T) {
	w := boxtest.NewWorld(t)
	reached := make(chan struct{})
	w.SetStep(blockAt("identity", reached, nil))
	d := start(t, w)
	put := make(chan error, 1)
	go func() { _, err := d.Put(t.Context(), idA, spec(1)); put <- err }()
	<-reached
	w.VMM(idA).Die(syscall.SIGSEGV)
	if err := <-put; err == nil || !strings.Contains(err.Error(), "killed by signal SEGV") {
		t.Errorf("Put = %v, want one that names the signal", err)
	}
	nothingLeft(t, w, d)
}

func TestAGuestThatDoesNotConfirmItsIdentityIsNotRunning(t *testing.T) {
	for name, body := range map[string]string{
		"another generation": `{"generation":7,"entropy_bits":4096}`,
		"too little entropy": `{"generation":1,"entropy_bits":8}`,
		"no JSON":            `confirmed!`,
		"nothing":            ``,
	} {
		t.Run(name, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte(body)) })
			d := start(t, w)
			if _, err := d.Put(t.Context(), idA, spec(1)); !errors.Is(err, hosterr.ErrGuest) {
				t.Errorf("Put = %v, want ErrGuest", err)
			}
			nothingLeft(t, w, d)
		})
	}
}

func TestColdBoot(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	s := spec(1)
	s.Boot = hostapi.BootCold
	b, err := d.Put(t.Context(), idA, s)
	must(t, err)
	if b.Boot != hostapi.BootCold || b.Status != hostapi.StatusRunning {
		t.Errorf("box = %+v", b)
	}
	if state, _ := w.VMM(idA).State(t.Context()); state != vmm.StateRunning {
		t.Errorf("VM is %s", state)
	}
	must(t, d.Delete(t.Context(), idA, 1))
	nothingLeft(t, w, d)
}

func TestCloseEndsCreatesAndLeavesVMsAlone(t *testing.T) {
	w := boxtest.NewWorld(t)
	reached := make(chan struct{})
	d := start(t, w)
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	w.SetStep(blockAt("restore", reached, nil))
	put := make(chan error, 1)
	go func() { _, err := d.Put(t.Context(), idB, spec(1)); put <- err }()
	<-reached
	d.Close()
	if err := <-put; !errors.Is(err, hosterr.ErrDraining) {
		t.Errorf("Put = %v, want ErrDraining", err)
	}
	if w.VMM(idA) == nil || w.VMM(idB) != nil {
		t.Error("want the running VM left alone and the other one gone")
	}
	if _, err := d.Put(t.Context(), id(3), spec(1)); !errors.Is(err, hosterr.ErrDraining) {
		t.Errorf("late Put = %v, want ErrDraining", err)
	}
}

// changed waits until a box has a status that the host tells its leader of at once.
func changed(t *testing.T, d *daemon, id string, want hostapi.Status) hostapi.Box {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case <-d.Changed(): // maybe of its create
		case <-deadline:
			t.Fatalf("no change to %s within 10 s", want)
		}
		if b, err := d.Get(id); err == nil && b.Status == want {
			return b
		}
	}
}

func drain(ch <-chan struct{}) {
	select {
	case <-ch:
	default:
	}
}

func id(i int) string { return strings.Repeat("a", 25) + string(rune('a'+i)) }

func memory(of string) hostapi.CaptureSpec {
	return hostapi.CaptureSpec{BoxID: of, Generation: 1, Memory: true}
}
