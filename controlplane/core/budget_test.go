package core

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

// A workspace whose readers are slow delays only itself.
func TestOutputsAreHeldWithinBounds(t *testing.T) {
	o := newBudget()
	ctx, cancel := context.WithCancel(t.Context())
	if err := o.Admit(t.Context(), ctx, "slow", maxWorkspaceOutputs); err != nil {
		t.Fatal(err)
	}
	impatient, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if err := o.Admit(impatient, t.Context(), "slow", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("past its share: %v", err)
	}
	for _, ws := range []string{"a", "b", "c"} {
		if err := o.Admit(t.Context(), ctx, ws, maxWorkspaceOutputs); err != nil {
			t.Errorf("%s waits for another: %v", ws, err)
		}
	}
	impatient, stop = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if err := o.Admit(impatient, t.Context(), "d", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("past all there is: %v", err)
	}
	cancel() // all have been read
	if err := o.Admit(t.Context(), t.Context(), "slow", 10*maxWorkspaceOutputs); err != nil {
		t.Errorf("more than a share waits for the whole of it: %v", err)
	}
	late := time.After(10 * time.Second)
	for kept := 5; kept > 1; { // what has been read is forgotten soon
		select {
		case <-late:
			t.Fatalf("%d shares are kept", kept)
		case <-time.After(time.Millisecond):
		}
		o.mu.Lock()
		kept = len(o.of)
		o.mu.Unlock()
	}
}

// Input that finds no room is refused after a while, and takes no room from outputs.
func TestInputsAreHeldWithinBounds(t *testing.T) {
	s := &Core{Inputs: newBudget(), Outputs: newBudget()}
	c := Caller{WorkspaceID: "ws"}
	release, err := s.AdmitInput(t.Context(), c, maxWorkspaceOutputs)
	if err != nil {
		t.Fatal(err)
	}
	impatient, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	_, err = s.AdmitInput(impatient, c, 1)
	var own *apierror.Error
	if !errors.As(err, &own) || own.Code != apierror.ERateLimited || own.RetryAfter == 0 {
		t.Errorf("past its share: %v", err)
	}
	if err := s.Outputs.Admit(t.Context(), t.Context(), c.WorkspaceID, maxWorkspaceOutputs); err != nil {
		t.Error(err)
	}
	release()
	release, err = s.AdmitInput(t.Context(), c, maxWorkspaceOutputs)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestWhoWaitsForRoomForInputIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Core{Inputs: newBudget()}
		release, err := s.AdmitInput(t.Context(), Caller{}, maxWorkspaceOutputs)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		if _, err := s.AdmitInput(t.Context(), Caller{}, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
