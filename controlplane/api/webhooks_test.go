package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// webhookCase is one of testdata/webhooks.json, which the other clients read too.
type webhookCase struct {
	Name, Secret, Signature, Body string
	Now                           int64
	Valid                         bool
}

func TestVerifyWebhook(t *testing.T) {
	raw, err := os.ReadFile("testdata/webhooks.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []webhookCase
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			e, err := VerifyWebhook(c.Secret, http.Header{"X-Service-Signature": {c.Signature}}, []byte(c.Body), time.Unix(c.Now, 0))
			switch {
			case c.Valid && (err != nil || e.ID != "wd_k7m2qz4xw3v5n6a2j7p4t5r6sd" || e.Type != WebhookEndpointTest || e.Workspace != "ws-k7m2"):
				t.Errorf("%+v, %v", e, err)
			case !c.Valid && (e != nil || !errors.Is(err, ErrWebhookSignature)):
				t.Errorf("%+v, %v", e, err)
			}
		})
	}
	first := cases[0]
	if got := SignWebhook(first.Secret, time.Unix(first.Now, 0), []byte(first.Body)); got != first.Signature {
		t.Errorf("it is signed %s", got)
	}
	if _, err := VerifyWebhook("", http.Header{}, nil, time.Now()); err == nil || errors.Is(err, ErrWebhookSignature) {
		t.Errorf("without a secret: %v", err)
	}
	at, noJSON := time.Unix(first.Now, 0), []byte("[")
	if _, err := VerifyWebhook("s", http.Header{"X-Service-Signature": {SignWebhook("s", at, noJSON)}}, noJSON, at); err == nil || errors.Is(err, ErrWebhookSignature) {
		t.Errorf("of no JSON: %v", err)
	}
}

func FuzzVerifyWebhook(f *testing.F) {
	f.Add("t=1,v1=00", []byte(`{}`))
	f.Add("v1=,t=-9223372036854775808", []byte(`{"id":1}`))
	f.Fuzz(func(t *testing.T, signature string, body []byte) {
		if e, err := VerifyWebhook("s", http.Header{"X-Service-Signature": {signature}}, body, time.Unix(1, 0)); err == nil &&
			!strings.Contains(strings.ToLower(signature), strings.TrimPrefix(SignWebhook("s", time.Unix(1, 0), body), "t=1,v1=")) {
			t.Errorf("%q is taken: %+v", signature, e)
		}
	})
}

func TestRequestsOfWebhooksAreAsWritten(t *testing.T) {
	var got []string
	r := newReplica(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		got = append(got, strings.Join([]string{req.Method, req.RequestURI, req.Header.Get(HeaderIdempotencyKey), string(body)}, "|"))
		if req.Method == http.MethodGet && req.URL.Path != "/v1/webhooks/endpoints/a" {
			answer(http.StatusOK, `[]`)(w, req)
			return
		}
		answer(http.StatusOK, `{}`)(w, req)
	})
	c := newClient(t, r.URL)
	ctx := context.Background()
	for _, call := range []func() error{
		func() error {
			_, err := c.CreateWebhookEndpoint(ctx, CreateWebhookEndpoint{URL: "https://e.com", Events: []WebhookEventType{WebhookQuotaWarning}}, "key")
			return err
		},
		func() error { _, err := c.GetWebhookEndpoint(ctx, "a"); return err },
		func() error { _, _, err := c.ListWebhookEndpoints(ctx, Page{Limit: 3}); return err },
		func() error {
			_, err := c.PatchWebhookEndpoint(ctx, "a", PatchWebhookEndpoint{Events: SetTo([]WebhookEventType{})})
			return err
		},
		func() error { _, err := c.RotateWebhookSecret(ctx, "a"); return err },
		func() error { _, err := c.TestWebhookEndpoint(ctx, "../a"); return err },
		func() error { _, err := c.ListWebhookEvents(ctx); return err },
		func() error { _, _, err := c.ListWebhookDeliveries(ctx, "a", Page{}); return err },
		func() error { _, err := c.ReplayWebhookDelivery(ctx, "a", "wd_1"); return err },
		func() error { return c.DeleteWebhookEndpoint(ctx, "a") },
	} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{
		`POST|/v1/webhooks/endpoints|key|{"url":"https://e.com","events":["quota.warning"]}`,
		"GET|/v1/webhooks/endpoints/a||",
		"GET|/v1/webhooks/endpoints?limit=3||",
		`PATCH|/v1/webhooks/endpoints/a||{"events":[]}`,
		"POST|/v1/webhooks/endpoints/a/rotate||{}",
		"POST|/v1/webhooks/endpoints/..%2Fa/test||{}",
		"GET|/v1/webhooks/events||",
		"GET|/v1/webhooks/endpoints/a/deliveries||",
		"POST|/v1/webhooks/endpoints/a/deliveries/wd_1/replay||{}",
		"DELETE|/v1/webhooks/endpoints/a||",
	}, got); diff != "" {
		t.Error(diff)
	}
}
