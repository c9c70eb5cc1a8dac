package webhook_test

import (
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

const events = 5

// arrived waits until every event has been delivered and returns how often each arrived.
func (r *rig) arrived(hook *receiver, id string) map[string]int {
	r.t.Helper()
	testcluster.Await(r.t, "the deliveries", func() bool {
		all := r.deliveries(id)
		for _, d := range all {
			if d.Status != api.WebhookDelivered {
				return false
			}
		}
		return len(all) == events
	})
	times := hook.times()
	if len(times) != events {
		r.t.Errorf("%d of %d events arrived", len(times), events)
	}
	return times
}

// cut returns a function that takes the leader off the network.
func (r *rig) cut() func() {
	return sync.OnceFunc(func() {
		for _, rep := range r.Replicas {
			if rep.Store.IsLeader() {
				r.Cut(rep)
			}
		}
	})
}

// The leader is lost after it has recorded an attempt and before it sends the request.
func TestALeaderThatIsLostBeforeItSendsLosesNothing(t *testing.T) {
	tier.Slow(t)
	var lose func()
	var once sync.Once
	enqueued := make(chan struct{})
	r := newRig(t, 3, webhook.Config{Timeout: time.Hour, Allowed: func(netip.Addr) bool {
		reached := true
		once.Do(func() {
			<-enqueued
			lose()
			reached = false
		})
		return reached
	}})
	lose = r.cut()
	hook := newReceiver(t, nil)
	e := r.register(hook.URL)
	for range events {
		r.enqueue("ws", api.WebhookQuotaWarning, api.WebhookQuota{})
	}
	close(enqueued)
	for id, n := range r.arrived(hook, e.ID) {
		if n != 1 {
			t.Errorf("%s arrived %d times", id, n)
		}
	}
}

// The leader is lost after a request has arrived and before it sees the response.
func TestALeaderThatIsLostBeforeItHearsSendsOneTwice(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, webhook.Config{Timeout: time.Hour})
	lose := r.cut()
	hook := newReceiver(t, nil)
	e := r.register(hook.URL)
	r.test(e.ID)
	r.becomes(e.ID, api.WebhookDelivered, 1)
	enqueued := make(chan struct{})
	hook.say(func(w http.ResponseWriter, _ *http.Request) {
		<-enqueued
		lose()
		w.WriteHeader(http.StatusOK)
	})
	for range events - 1 {
		r.enqueue("ws", api.WebhookQuotaWarning, api.WebhookQuota{})
	}
	close(enqueued)
	twice := 0
	for id, n := range r.arrived(hook, e.ID) {
		switch n {
		case 1:
		case 2:
			twice++
		default:
			t.Errorf("%s arrived %d times", id, n)
		}
	}
	if twice != 1 {
		t.Errorf("%d arrived twice", twice)
	}
	told := 0
	for _, d := range r.deliveries(e.ID) {
		if a := d.Attempts[0]; len(d.Attempts) == 2 && a.StatusCode == nil && a.DurationMS == nil && a.Error != nil {
			told++
		}
	}
	if told != 1 {
		t.Errorf("%d tell of an attempt that was interrupted", told)
	}
}

// Attempts may be what ends leaders, so two interrupted ones in a row count as one failed.
func TestAttemptsThatAreInterruptedCount(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	hook := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	e := r.register(hook.URL)
	id := r.test(e.ID).ID
	r.becomes(e.ID, api.WebhookFailed, 1)
	r.Update(func(tx *raftstore.Tx) error {
		row, _ := raftstore.Get(tx, record.WebhookDeliveries, id)
		d := row.Clone()
		d.Attempts = append(d.Attempts, record.WebhookAttempt{Ended: true, Error: d.Attempts[0].Error}, record.WebhookAttempt{Ended: true, Error: webhook.Interrupted}, record.WebhookAttempt{})
		raftstore.Put(tx, record.WebhookDeliveries, d)
		return nil
	})
	testcluster.Await(t, "two tries", func() bool {
		d, _ := raftstore.Get(r.Leader().Store.View(), record.WebhookDeliveries, id)
		return d.Tries == 2 && d.Open() == nil && len(d.Attempts) == 4
	})
	if n := len(hook.requests()); n != 1 {
		t.Errorf("sent %d times", n)
	}
}
