package stack

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// A process that ends before supervision begins, which is when the stack is
// healthy, is not started again: waiting for it would hide why it ended.
func TestProcessThatDiesAtTheStartEndsTheWaiting(t *testing.T) {
	for _, supervise := range []bool{false, true} {
		p := shell(t, "echo no such address >&2; exit 3")
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		s := &Stack{Options: Options{Supervise: supervise}}
		ctx, cancel := context.WithTimeout(t.Context(), timescale.Limit(10*time.Second))
		defer cancel()
		err := s.await(ctx, "x is ready", []*Process{p}, func(context.Context) error { return errors.New("it is not") })
		if err == nil || ctx.Err() != nil {
			t.Fatalf("supervise %t: got %v after the time limit: %v", supervise, err, ctx.Err())
		}
		for _, part := range []string{"x (exit status 3)", "no such address"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("supervise %t: %q lacks %q", supervise, err, part)
			}
		}
	}
}

// What the supervisor starts again is waited for.
func TestSupervisedProcessMayDieWhileItIsAwaited(t *testing.T) {
	p := shell(t, "exec sleep 60")
	s := &Stack{Options: Options{Supervise: true, Notify: func(string, ...any) {}}, HostProc: []*Process{p}}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	s.startSupervising()
	defer func() {
		s.stopSupervising()
		s.supervised.Wait()
	}()
	first := p.PID()
	if err := p.signal(9); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	err := s.await(t.Context(), "x runs again", s.HostProc, func(context.Context) error {
		if !p.Running() || p.PID() == first {
			return errors.New("it does not")
		}
		return nil
	})
	if err != nil {
		t.Errorf("the wait ended: %v", err)
	}
}
