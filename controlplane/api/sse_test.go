package api

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

func TestAStreamIsSilentOnlyWhileItIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancelCause(t.Context())
		r, w := io.Pipe()
		stop := context.AfterFunc(ctx, func() { r.CloseWithError(context.Cause(ctx)) })
		defer stop()
		s := newServerEvents(ctx, end, r)
		defer s.close()
		go func() { _, _ = io.WriteString(w, "data: 1\n\ndata: 2\n\n") }()
		for range 2 {
			if _, _, err := s.next(); err != nil {
				t.Fatal(err)
			}
			<-time.After(2 * silence) // the caller has the event
		}
		began := time.Now()
		if _, _, err := s.next(); !errors.Is(err, errSilent) {
			t.Errorf("%v", err)
		}
		if d := time.Since(began); d != silence {
			t.Errorf("it was ended after %s", d)
		}
	})
}
