package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// hook is a receiver of webhooks on this machine, which refuses the first one.
func hook(t *testing.T) (url string, events <-chan *api.WebhookEvent, secret chan<- string) {
	t.Helper()
	arrived, key := make(chan *api.WebhookEvent, 10), make(chan string, 1)
	var seen atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		s := <-key
		key <- s
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		event, err := api.VerifyWebhook(s, r.Header, body, time.Now())
		if err != nil {
			t.Errorf("a webhook cannot be verified: %v", err)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		arrived <- event
	}))
	t.Cleanup(server.Close)
	return server.URL, arrived, key
}

// An endpoint is registered, refuses once, and gets the event again, signed.
func TestWebhookArrives(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	url, events, secret := hook(t)
	e, err := c.CreateWebhookEndpoint(t.Context(), api.CreateWebhookEndpoint{URL: url, Events: []api.WebhookEventType{api.WebhookFailoverStarted}}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.DeleteWebhookEndpoint(ctx, e.ID); err != nil {
			t.Errorf("delete the endpoint: %v", err)
		}
	})
	secret <- e.Secret
	d, err := c.through(t, 1).TestWebhookEndpoint(t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case event := <-events:
		var data api.WebhookTest
		if err := json.Unmarshal(event.Data, &data); err != nil || event.ID != d.ID || event.Type != api.WebhookEndpointTest || data.EndpointID != e.ID {
			t.Errorf("it is %+v, %v", event, err)
		}
	case <-ctx.Done():
		t.Fatal("no event came")
	}
	eventually(t, time.Minute, "the delivery in the list", func(ctx context.Context) error {
		all, _, err := c.ListWebhookDeliveries(ctx, e.ID, api.Page{})
		switch {
		case err != nil:
			return err
		case len(all) != 1 || all[0].Status != api.WebhookDelivered || !answered(all[0], 503) || !answered(all[0], 200):
			return fmt.Errorf("they are %+v", all)
		}
		return nil
	})
}

// answered reports whether an attempt of a delivery was answered with a status.
func answered(d api.WebhookDelivery, status int) bool {
	return slices.ContainsFunc(d.Attempts, func(a api.WebhookAttempt) bool { return a.StatusCode != nil && *a.StatusCode == status })
}
