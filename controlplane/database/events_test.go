package database_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// told returns the failover events of a webhook endpoint: the started ones, then the
// completed ones.
func (r *rig) told(endpointID string) (out []api.WebhookEvent) {
	r.t.Helper()
	rows := raftstore.Find(r.Leader().Store.View(), record.WebhookDeliveries, "endpoint", endpointID)
	for _, t := range []api.WebhookEventType{api.WebhookFailoverStarted, api.WebhookFailoverCompleted} {
		for _, row := range rows {
			var e api.WebhookEvent
			if err := json.Unmarshal(row.Body, &e); err != nil {
				r.t.Fatal(err)
			}
			if e.Type == t {
				out = append(out, e)
			}
		}
	}
	if len(out) != len(rows) {
		r.t.Errorf("%d events, %d of them of a failover", len(rows), len(out))
	}
	return out
}

// A failover sends an event when it starts and when it completes. A create and a refused
// failover send none.
func TestEndpointsAreToldOfAFailover(t *testing.T) {
	r := newRig(t, 3, 1, nil)
	e, err := r.LeaderNode().Webhooks.Create(t.Context(), caller, api.CreateWebhookEndpoint{URL: "http://127.0.0.1:9"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now().Add(-12*time.Second))
	if _, err := r.failOver(d.ID, false); err == nil {
		t.Fatal("a failover of what runs is taken")
	}
	if got := r.told(e.ID); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	out, err := r.failOver(d.ID, true)
	if err != nil {
		t.Fatal(err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
	events := r.told(e.ID)
	box, _ := r.box(d.ID)
	want := []api.WebhookFailover{
		{DatabaseID: d.ID, Label: "orders", Status: api.DatabaseRestoring, Forced: true, Detail: out.Error},
		{DatabaseID: d.ID, Label: "orders", Status: api.DatabaseRunning, Forced: true, AgentID: box.HostID},
	}
	if len(events) != len(want) {
		t.Fatalf("%+v", events)
	}
	for i := range want {
		var got api.WebhookFailover
		if err := json.Unmarshal(events[i].Data, &got); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want[i], got); diff != "" || events[i].Workspace != "ws" {
			t.Error(diff, events[i].Workspace)
		}
	}
}
