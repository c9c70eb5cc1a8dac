package sandbox_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

type transitionFunc func(context.Context, core.Caller, string) (api.Sandbox, error)

func transition(r *testplane.Rig, name string) transitionFunc {
	return map[string]transitionFunc{"pause": r.Pause, "resume": r.Resume, "hibernate": r.Hibernate, "wake": r.Wake}[name]
}

// TestStateTable tries every transition from every status.
func TestStateTable(t *testing.T) {
	to := map[string]map[string]string{
		"running":    {"pause": "paused", "hibernate": "hibernated", "wake": "running"},
		"paused":     {"resume": "running"},
		"hibernated": {"wake": "running"},
	}
	get := map[string][]string{"running": nil, "paused": {"pause"}, "hibernated": {"hibernate"}}
	r := testplane.NewRig(t, 1)
	for from, path := range get {
		for _, name := range []string{"pause", "resume", "hibernate", "wake"} {
			t.Run(name+" of "+from, func(t *testing.T) {
				sb := r.Must(t, api.CreateSandbox{})
				for _, p := range path {
					if _, err := transition(r, p)(t.Context(), testplane.Caller, sb.ID); err != nil {
						t.Fatal(err)
					}
				}
				got, err := transition(r, name)(t.Context(), testplane.Caller, sb.ID)
				if next := to[from][name]; next != "" {
					if err != nil || string(got.Status) != next {
						t.Fatalf("%q, %v; want %q", got.Status, err, next)
					}
				} else if e := testplane.Want(t, err, apierror.EConflict, "sandbox is "+from); e.Detail == "" {
					t.Error("no remedy is named")
				}
				after, err := r.Get(t.Context(), testplane.Caller, sb.ID)
				if err != nil || string(after.Status) != string(r.H1.Boxes()[sb.ID].Status) {
					t.Fatalf("the record says %q, the host %q, %v", after.Status, r.H1.Boxes()[sb.ID].Status, err)
				}
				if err := r.Delete(t.Context(), testplane.Caller, sb.ID); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// What can never be woken is no fault of the service, and no retry helps.
func TestASavedMemoryThatCannotBeUsed(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	if _, err := r.Hibernate(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	uses := map[string]func() error{
		"wake": func() error { _, err := r.Wake(t.Context(), testplane.Caller, sb.ID); return err },
		"exec": func() error {
			_, err := r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Shell("true")})
			return err
		},
		"preview": func() error { return r.Ports.WakeForPreview(t.Context(), sb.ID) },
	}
	refuse := func(e *hostapi.Error) {
		r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
			if c.Op == "wake" && !c.Done {
				return e
			}
			return nil
		})
	}
	refuse(&hostapi.Error{
		Code: hostapi.CodeBadSnapshot, Message: "snapshot is refused", Detail: "wake sandbox: snapshot is refused: its memory was saved by v52, this host has v53",
	})
	for name, use := range uses {
		e := testplane.Want(t, use(), apierror.EUnprocessable, "snapshot cannot be restored")
		if e.Detail != "its saved memory cannot be used: its memory was saved by v52, this host has v53" || e.RetryAfter != 0 {
			t.Errorf("%s: detail %q, retry after %s", name, e.Detail, e.RetryAfter)
		}
	}
	refuse(&hostapi.Error{Code: hostapi.CodeTemplateMissing, Message: "template is not ready on this host"})
	for name, use := range uses {
		if e := testplane.Want(t, use(), apierror.EBadGateway, "agent unreachable"); e.Detail != "its template is not ready on its host" {
			t.Errorf("%s: detail %q", name, e.Detail)
		}
	}
	r.H1.SetFault(nil)
	if err := uses["exec"](); err != nil {
		t.Errorf("once it can be woken: %v", err)
	}
}

func TestRemedies(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	if _, err := r.Pause(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	_, err := r.Hibernate(t.Context(), testplane.Caller, sb.ID)
	if e := testplane.Want(t, err, apierror.EConflict, "sandbox is paused"); e.Detail != "cannot hibernate it: resume it first" {
		t.Errorf("detail %q", e.Detail)
	}
	for _, status := range []record.SandboxStatus{record.SandboxStarting, record.SandboxFailed, record.SandboxDeleting} {
		r.Update(func(tx *raftstore.Tx) error {
			s, _ := raftstore.Get(tx, record.Sandboxes, sb.ID)
			c := s.Clone()
			c.Status, c.StartedBy = status, "tests"
			raftstore.Delete(tx, record.Sandboxes, sb.ID)
			testcluster.PutSandbox(tx, c)
			return nil
		})
		_, err := r.Wake(t.Context(), testplane.Caller, sb.ID)
		var e *apierror.Error
		if errors.As(err, &e); e == nil || e.Code != apierror.EConflict && e.Code != apierror.ENotFound {
			t.Errorf("%s: %v", status, err)
		}
	}
	_, err = r.Pause(t.Context(), core.Caller{WorkspaceID: "other"}, sb.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
}

// If a host accepts an illegal transition without changing anything, as another
// version might, the transition still fails.
func TestATransitionThatChangesNothingIsRefused(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	if _, err := r.Pause(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	_, err := r.Pause(t.Context(), testplane.Caller, sb.ID)
	if e := testplane.Want(t, err, apierror.EConflict, "sandbox is paused"); e.Detail != "cannot pause it: there is nothing to do" {
		t.Errorf("detail %q", e.Detail)
	}
}

// If a host refuses a transition because of a status that another transition has
// ended meanwhile, it is asked again, a few times.
func TestATransitionIsAskedForAgainWhereItsStatusIsBack(t *testing.T) {
	tier.Slow(t)
	for refusals, wantErr := range map[int32]bool{1: false, 2: false, 99: true} {
		r := testplane.NewRig(t, 1)
		sb := r.Must(t, api.CreateSandbox{})
		var asked atomic.Int32
		r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
			if c.Op == "pause" && asked.Add(1) <= refusals {
				return &hostapi.Error{Code: hostapi.CodeIllegalState, Message: "illegal state", Detail: "hibernated"}
			}
			return nil
		})
		got, err := r.Pause(t.Context(), testplane.Caller, sb.ID)
		switch {
		case wantErr:
			testplane.Want(t, err, apierror.EConflict, "illegal state")
			if asked.Load() != 3 {
				t.Errorf("asked %d times", asked.Load())
			}
		case err != nil || got.Status != "paused":
			t.Errorf("after %d: %q, %v", refusals, got.Status, err)
		}
	}
}

func TestTransitionsThatHostsRefuse(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	if _, err := r.Hibernate(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	for code, c := range map[hostapi.Code]struct {
		code    apierror.Code
		message string
	}{
		hostapi.CodeNoMemory:  {apierror.EInsufficient, "insufficient host memory for sandbox"},
		hostapi.CodeNoSlot:    {apierror.EInsufficient, "insufficient host memory for sandbox"},
		hostapi.CodeNoDisk:    {apierror.EInsufficient, "insufficient host storage for sandbox"},
		hostapi.CodeGuest:     {apierror.EBadGateway, "agent unreachable"},
		hostapi.CodeDraining:  {apierror.EBadGateway, "agent unreachable"},
		hostapi.CodeNotFound:  {apierror.ENotFound, "sandbox not found or not running"},
		hostapi.CodeStaleTerm: {apierror.EUnavailable, ""},
		hostapi.CodeInternal:  {apierror.EInternal, "internal error"},
	} {
		r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
			if c.Op == "wake" {
				return &hostapi.Error{Code: code, Message: "why"}
			}
			return nil
		})
		_, err := r.Wake(t.Context(), testplane.Caller, sb.ID)
		testplane.Want(t, err, c.code, c.message)
		_, err = r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Shell("true")})
		testplane.Want(t, err, c.code, c.message)
	}
	if got, err := r.Get(t.Context(), testplane.Caller, sb.ID); err != nil || got.Status != "hibernated" {
		t.Fatalf("%q, %v", got.Status, err)
	}
}

// A host has made a transition when its leader is cut off and cannot commit it. The
// host's heartbeats tell the next leader.
func TestATransitionThatCannotBeWrittenDown(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		op, becomes, detail string
		asleep              bool
		call                func(r *testplane.Rig, id string) error
	}{
		"a transition": {
			op: "hibernate", becomes: "hibernated", detail: "it may or may not have happened",
			call: func(r *testplane.Rig, id string) error {
				_, err := r.Hibernate(t.Context(), testplane.Caller, id)
				return err
			},
		},
		"a command's wake": {
			op: "wake", becomes: "running", detail: "the sandbox may have been woken; nothing else was done", asleep: true,
			call: func(r *testplane.Rig, id string) error {
				_, err := r.Commands.Exec(t.Context(), testplane.Caller, id, api.Exec{Cmd: api.Shell("true")})
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := testplane.NewRig(t, 3)
			sb := r.Must(t, api.CreateSandbox{})
			if c.asleep {
				if _, err := r.Hibernate(t.Context(), testplane.Caller, sb.ID); err != nil {
					t.Fatal(err)
				}
			}
			leader := r.LeaderNode()
			r.H1.SetFault(func(_ context.Context, call fakehost.Call) error {
				if call.Op == c.op && call.Done {
					r.Cut(leader.Replica)
				}
				return nil
			})
			e := testplane.Want(t, c.call(r, sb.ID), apierror.EUnavailable, "control plane unavailable")
			if e.Detail != c.detail || e.RetryAfter == 0 {
				t.Errorf("%+v", e)
			}
			testcluster.Await(t, "its record", func() bool {
				row, ok := r.Sandbox(sb.ID)
				return ok && string(row.Status) == c.becomes
			})
		})
	}
}

// TestACrowdWakesOnce execs in a hibernated sandbox from many sides.
func TestACrowdWakesOnce(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{Metadata: []byte(`{"a":1}`)})
	if _, err := r.Hibernate(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			var err error
			if i%3 == 0 {
				_, err = r.Wake(t.Context(), testplane.Caller, sb.ID)
			} else {
				_, err = r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Shell("true")})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := r.H1.Transitions("wake"); n != 1 {
		t.Errorf("%d wakes", n)
	}
	got, err := r.Get(t.Context(), testplane.Caller, sb.ID)
	if err != nil || got.Status != "running" || string(got.Metadata) != `{"a":1}` {
		t.Fatalf("%+v, %v", got, err)
	}
}

// The record lags behind the host if a leader died between the host's answer and the
// commit: the next call notices.
func TestARecordThatIsBehind(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	testcluster.Await(t, "the heartbeat", func() bool {
		return len(r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Boxes) == 1
	})
	r.H1.Silence(true)
	r.H1.Become(sb.ID, hostapi.StatusHibernated)
	if _, err := r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Shell("true")}); err != nil {
		t.Fatal(err)
	}
	r.H1.Become(sb.ID, hostapi.StatusPaused)
	_, err := r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Shell("true")})
	testplane.Want(t, err, apierror.EConflict, "sandbox not running (paused or hibernated) — resume/wake it first")
	_, err = r.Hibernate(t.Context(), testplane.Caller, sb.ID)
	testplane.Want(t, err, apierror.EConflict, "sandbox is paused")
	if got, err := r.Get(t.Context(), testplane.Caller, sb.ID); err != nil || got.Status != "paused" {
		t.Fatalf("%q, %v", got.Status, err)
	}
	r.H1.Silence(false)
}

func TestLifecycle(t *testing.T) {
	r := testplane.NewRig(t, 1)
	hour, zero, minus, huge := int64(3600), int64(0), int64(-1), int64(sandbox.MaxTTLSeconds+1)
	yes, no := true, false
	sb := r.Must(t, api.CreateSandbox{})
	change := func(in api.PatchLifecycle) api.Lifecycle {
		t.Helper()
		got, err := r.PatchLifecycle(t.Context(), testplane.Caller, sb.ID, in)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := r.Lifecycle(t.Context(), testplane.Caller, sb.ID); err != nil || !reflect.DeepEqual(again.ExpiresAt, got.ExpiresAt) || again.Persistent != got.Persistent {
			t.Fatalf("%+v, %v; want %+v", again, err, got)
		}
		return got
	}
	inAnHour := func(l api.Lifecycle) bool {
		if l.ExpiresAt == nil {
			return false
		}
		left := time.Until(l.ExpiresAt.Time)
		return l.TTLSeconds != nil && *l.TTLSeconds == hour && left > 59*time.Minute && left <= time.Hour
	}
	for _, bad := range []*int64{&zero, &minus, &huge} {
		_, err := r.PatchLifecycle(t.Context(), testplane.Caller, sb.ID, api.PatchLifecycle{TTLSeconds: api.SetTo(*bad)})
		testplane.Want(t, err, apierror.EInvalid, "invalid ttl_seconds")
	}
	_, err := r.PatchLifecycle(t.Context(), testplane.Caller, sb.ID, api.PatchLifecycle{})
	testplane.Want(t, err, apierror.EInvalid, "no updatable fields provided (supported: ttl_seconds, persistent)")
	_, err = r.PatchLifecycle(t.Context(), core.Caller{WorkspaceID: "other"}, sb.ID, api.PatchLifecycle{Persistent: api.SetTo(yes)})
	testplane.Want(t, err, apierror.ENotFound, "not found")

	if l := change(api.PatchLifecycle{TTLSeconds: api.SetTo(hour)}); !inAnHour(l) {
		t.Fatalf("%+v", l)
	}
	if l := change(api.PatchLifecycle{Persistent: api.SetTo(yes)}); !inAnHour(l) || !l.Persistent {
		t.Fatalf("%+v", l)
	}
	// The host is told before the row is committed. If that takes longer than the
	// loops' grace, which is short here, they tell it the row's old value meanwhile.
	testcluster.Await(t, "a box that is persistent", func() bool { return r.H1.Boxes()[sb.ID].Persistent })
	// It does not expire while it hibernates, and has its whole time to live again
	// when it wakes.
	if _, err := r.Hibernate(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	if l, err := r.Lifecycle(t.Context(), testplane.Caller, sb.ID); err != nil || l.ExpiresAt != nil || l.TTLSeconds == nil {
		t.Fatalf("%+v, %v", l, err)
	}
	if l := change(api.PatchLifecycle{Persistent: api.SetTo(no)}); !inAnHour(l) {
		t.Fatalf("%+v", l)
	}
	if l := change(api.PatchLifecycle{Persistent: api.SetTo(yes), TTLSeconds: api.SetTo(hour)}); l.ExpiresAt != nil {
		t.Fatalf("%+v", l)
	}
	if sb, err := r.Wake(t.Context(), testplane.Caller, sb.ID); err != nil || time.Until(sb.ExpiresAt.Time) < 59*time.Minute {
		t.Fatalf("%+v, %v", sb, err)
	}
	if l := change(api.PatchLifecycle{TTLSeconds: api.SetNull[int64]()}); l.ExpiresAt != nil || l.TTLSeconds != nil {
		t.Fatalf("%+v", l)
	}
}

func TestTheEndOfAPersistentSandbox(t *testing.T) {
	tier.Slow(t)
	r := testplane.NewRig(t, 1)
	second := int64(1)
	for _, paused := range []bool{false, true} {
		sb := r.Must(t, api.CreateSandbox{TTLSeconds: &second, Persistent: true})
		if paused {
			if _, err := r.Pause(t.Context(), testplane.Caller, sb.ID); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			testcluster.Await(t, "its hibernation", func() bool {
				got, err := r.Get(t.Context(), testplane.Caller, sb.ID)
				return err == nil && got.Status == "hibernated" && got.ExpiresAt == nil
			})
			if _, err := r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Shell("true")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	sb := r.Must(t, api.CreateSandbox{TTLSeconds: &second})
	testcluster.Await(t, "the end of another", func() bool {
		_, err := r.Get(t.Context(), testplane.Caller, sb.ID)
		return apierror.CodeOf(err) == apierror.ENotFound
	})
}

// The death of a VM is in its host's next heartbeat, which is sent at once.
func TestADeadVMFailsWithinASecond(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	r.H1.Become(sb.ID, hostapi.StatusFailed)
	testcluster.Await(t, "its failure", func() bool {
		got, err := r.Get(t.Context(), testplane.Caller, sb.ID)
		return err == nil && got.Status == "failed" && strings.Contains(core.OrZero(got.Error), "virtual machine")
	})
	_, err := r.Resume(t.Context(), testplane.Caller, sb.ID)
	testplane.Want(t, err, apierror.EConflict, "sandbox is failed")
}
