package heartbeat

import (
	"log/slog"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/internal/testca"
)

// A heartbeat that hangs in the report of the host's state is no progress; one that
// nobody takes is, and so is the time until the next.
func TestProgressIsThatHeartbeatsAreTried(t *testing.T) {
	ca := testca.New(t)
	r := newReplica(t, ca, "replica:r1")
	s := run(t, ca, r.addr)
	receive(t, r.got)
	receive(t, s.replies)
	for range 3 { // the next one is an hour away
		awaitProgress(t, s.sender)
	}

	nobody := run(t, ca, "127.0.0.1:1")
	for range 3 {
		awaitProgress(t, nobody.sender)
	}

	asked, answer := make(chan struct{}), make(chan struct{})
	hung := New(Config{
		Report: func() hostapi.Heartbeat {
			asked <- struct{}{}
			<-answer
			return hostapi.Heartbeat{HostID: "h1"}
		},
		Peers: []string{r.addr}, Interval: time.Hour, Log: slog.New(slog.DiscardHandler),
		TLS: hostapi.PeerTLS(ca.Issue(t, "host:h1"), ca.Pool, hostapi.IsReplica),
	})
	ended := make(chan struct{})
	go func() { defer close(ended); hung.Run(t.Context()) }()
	<-asked
	if err := hung.Progress(t.Context()); err == nil {
		t.Error("a report that hangs is progress")
	}
	close(answer)
	receive(t, r.got)
	awaitProgress(t, hung)
	go func() { // the farewell
		for range asked {
		}
	}()
	t.Cleanup(func() { <-ended; close(asked) })
}

func awaitProgress(t *testing.T, s *Sender) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.Progress(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-tick.C
	}
}
