package sandbox_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A tenant may read the sandbox of an app or a database, and nothing else.
func TestAManagedSandboxIsItsOwners(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	past := time.Now().Add(-time.Hour)
	r.Change(sb.ID, func(s *record.Sandbox) {
		s.Owner, s.ExpiresAt = &record.Owner{Type: "other", ID: "a1"}, past
	})
	ctx, c, ttl := t.Context(), testplane.Caller, int64(5)
	refused := func(what string, err error) {
		t.Helper()
		if e := testplane.Want(t, err, apierror.EConflict, sandbox.ErrManaged.Message); what != "delete" && e.Detail != "it belongs to the other a1, which alone changes and enters it" {
			t.Errorf("%s: %q", what, e.Detail)
		}
	}
	refused("delete", r.Delete(ctx, c, sb.ID))
	_, err := r.Pause(ctx, c, sb.ID)
	refused("pause", err)
	_, err = r.PatchLifecycle(ctx, c, sb.ID, api.PatchLifecycle{TTLSeconds: api.SetTo(ttl)})
	refused("lifecycle", err)
	_, err = r.Commands.Exec(ctx, c, sb.ID, api.Exec{Cmd: api.Shell("true")})
	refused("exec", err)
	_, err = r.Files.Read(ctx, c, sb.ID, "/etc/passwd", http.Header{})
	refused("read", err)
	_, err = r.Ports.Add(ctx, c, sb.ID, api.AddPort{Port: 80})
	refused("port", err)
	_, err = r.Ports.PreviewToken(ctx, c, sb.ID, api.CreatePreviewToken{})
	refused("preview token", err)
	_, err = r.Commands.LanguageServer(ctx, c, sb.ID, "python")
	refused("language server", err)
	_, err = r.Node.Snapshots.Create(ctx, c, sb.ID, api.CreateSnapshot{}, core.Idempotency{})
	refused("snapshot", err)
	_, err = r.Node.Forks.Fork(ctx, c, sb.ID, api.Fork{}, core.Idempotency{})
	refused("fork", err)
	_, err = r.Node.Forks.Promote(ctx, c, sb.ID, api.Promote{TreeID: "tree-1"})
	refused("promote", err)

	r.Passes(5) // and no loop ends it
	if got, err := r.Get(ctx, c, sb.ID); err != nil || got.Status != api.SandboxRunning || got.Owner == nil || got.Owner.ID != "a1" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := r.Lifecycle(ctx, c, sb.ID); err != nil {
		t.Error(err)
	}
	if _, err := r.Logs.Events(ctx, c, sb.ID, api.EventQuery{}); err != nil {
		t.Error(err)
	}
	// Reading its logs does not wake it.
	r.H1.Become(sb.ID, hostapi.StatusHibernated)
	becomes(t, r.Plane, sb.ID, record.SandboxHibernated)
	if text, err := r.Logs.Text(ctx, c, sb.ID, api.LogQuery{Stream: "both"}); err == nil {
		text.Close()
	}
	if n := r.H1.Transitions("wake"); n != 0 {
		t.Errorf("%d wakes", n)
	}
}

// EnsureRunning brings a managed sandbox to run from any status.
func TestEnsureRunning(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{Persistent: true})
	r.Change(sb.ID, func(s *record.Sandbox) {
		s.Exclusive, s.Owner = true, &record.Owner{Type: "other", ID: "a1"}
	})
	for _, status := range []hostapi.Status{hostapi.StatusRunning, hostapi.StatusPaused, hostapi.StatusHibernated, hostapi.StatusFailed} {
		before, _ := r.Plane.Sandbox(sb.ID)
		r.H1.Become(sb.ID, status)
		// With the old row, and with the current one.
		for range 2 {
			now, err := r.EnsureRunning(t.Context(), before)
			if err != nil || now.Status != record.SandboxRunning || now.Error != "" {
				t.Fatalf("from %s: %+v, %v", status, now, err)
			}
			r.H1.Become(sb.ID, status)
			testcluster.Await(t, "the row", func() bool {
				before, _ = r.Plane.Sandbox(sb.ID)
				return before.Status == record.SandboxStatus(status)
			})
		}
		if _, err := r.EnsureRunning(t.Context(), before); err != nil {
			t.Fatal(err)
		}
	}
	// According to a row from before its host returned, it has failed: a hibernated
	// one is woken, and not booted from its disk.
	r.H1.Become(sb.ID, hostapi.StatusHibernated)
	becomes(t, r.Plane, sb.ID, record.SandboxHibernated)
	before, _ := r.Plane.Sandbox(sb.ID)
	before = before.Clone()
	before.Status = record.SandboxFailed
	restarts, wakes := r.H1.Transitions("restart"), r.H1.Transitions("wake")
	if now, err := r.EnsureRunning(t.Context(), before); err != nil || now.Status != record.SandboxRunning {
		t.Errorf("%+v, %v", now, err)
	}
	if restarts != r.H1.Transitions("restart") || wakes+1 != r.H1.Transitions("wake") {
		t.Error("it was booted from its disk")
	}
	if n := r.H1.Transitions("restart"); n != 2 && n != 3 {
		t.Errorf("%d restarts", n)
	}
	row, _ := r.Plane.Sandbox(sb.ID)
	r.H1.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
		delete(boxes, sb.ID)
	})
	var refusal *hostapi.Error
	if _, err := r.EnsureRunning(t.Context(), row); !errors.As(err, &refusal) || refusal.Code != hostapi.CodeNotFound {
		t.Error(err)
	}
}

// The last heartbeat before a restart says that the box has failed, and may be looked at
// after the restart. The next one corrects what the row takes from it.
func TestAFailureFromBeforeARestartIsNotTheLastWord(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{Persistent: true})
	r.Change(sb.ID, func(s *record.Sandbox) {
		s.Exclusive, s.Owner = true, &record.Owner{Type: "other", ID: "a1"}
	})
	r.H1.Become(sb.ID, hostapi.StatusFailed)
	failed := becomes(t, r.Plane, sb.ID, record.SandboxFailed)
	r.H1.Silence(true)
	if now, err := r.EnsureRunning(t.Context(), failed); err != nil || now.Status != record.SandboxRunning {
		t.Fatalf("%+v, %v", now, err)
	}
	becomes(t, r.Plane, sb.ID, record.SandboxFailed) // by the old heartbeat
	r.H1.Silence(false)
	becomes(t, r.Plane, sb.ID, record.SandboxRunning)
}
