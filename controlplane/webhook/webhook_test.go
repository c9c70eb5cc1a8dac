package webhook_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestEndpoints(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	w := r.webhooks()
	in := api.CreateWebhookEndpoint{URL: "https://example.com/hook", Events: []api.WebhookEventType{api.WebhookQuotaWarning, api.WebhookFailoverStarted, api.WebhookQuotaWarning}}
	e, err := w.Create(t.Context(), caller, in, testplane.Key("k", "body"))
	if err != nil || e.URL != in.URL || !strings.HasPrefix(e.Secret, "whsec_") || len(e.Secret) != len("whsec_")+44 || e.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", e, err)
	}
	if diff := cmp.Diff([]api.WebhookEventType{api.WebhookFailoverStarted, api.WebhookQuotaWarning}, e.Events); diff != "" {
		t.Error(diff)
	}
	if again, err := w.Create(t.Context(), caller, in, testplane.Key("k", "body")); err != nil || again.ID != e.ID || again.Secret != e.Secret {
		t.Errorf("the same key: %+v, %v", again, err)
	}
	if row, ok := raftstore.Get(r.Leader().Store.View(), record.WebhookEndpoints, e.ID); !ok || !bytes.HasPrefix(row.SecretSealed, []byte("webhook.secret/"+e.ID)) {
		t.Errorf("the secret is not sealed for its row: %+v", row)
	}

	got, err := w.Get(t.Context(), caller, e.ID)
	got.CreatedAt.Time = got.CreatedAt.Truncate(time.Millisecond) // as the answer has it
	if diff := cmp.Diff(e.WebhookEndpoint, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	got, err = w.Patch(t.Context(), caller, e.ID, api.PatchWebhookEndpoint{Events: api.SetTo([]api.WebhookEventType{})})
	if err != nil || got.URL != in.URL || got.Events == nil || len(got.Events) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = w.Patch(t.Context(), caller, e.ID, api.PatchWebhookEndpoint{URL: api.SetTo("https://example.com/other")})
	if err != nil || got.URL != "https://example.com/other" {
		t.Errorf("%+v, %v", got, err)
	}
	rotated, err := w.Rotate(t.Context(), caller, e.ID)
	if err != nil || rotated.ID != e.ID || rotated.Secret == e.Secret || !strings.HasPrefix(rotated.Secret, "whsec_") {
		t.Errorf("%+v, %v", rotated, err)
	}

	for name, call := range map[string]func(c core.Caller) error{
		"get": func(c core.Caller) error { _, err := w.Get(t.Context(), c, e.ID); return err },
		"patch": func(c core.Caller) error {
			_, err := w.Patch(t.Context(), c, e.ID, api.PatchWebhookEndpoint{URL: api.SetTo("https://example.com")})
			return err
		},
		"rotate": func(c core.Caller) error { _, err := w.Rotate(t.Context(), c, e.ID); return err },
		"test":   func(c core.Caller) error { _, err := w.Test(t.Context(), c, e.ID); return err },
		"deliveries": func(c core.Caller) error {
			_, _, err := w.Deliveries(t.Context(), c, e.ID, core.ListOptions{})
			return err
		},
		"replay": func(c core.Caller) error { _, err := w.Replay(t.Context(), c, e.ID, "wd_x"); return err },
		"delete": func(c core.Caller) error { return w.Delete(t.Context(), c, e.ID) },
	} {
		t.Run("a stranger's "+name, func(t *testing.T) { testplane.Want(t, call(stranger), apierror.ENotFound, "not found") })
		t.Run("an operator's "+name, func(t *testing.T) { testplane.Want(t, call(core.Caller{Admin: true}), apierror.EUnauthorized, "") })
	}
	if page, _, err := w.List(t.Context(), stranger, core.ListOptions{}); err != nil || len(page) != 0 {
		t.Errorf("a stranger lists %+v, %v", page, err)
	}
	if err := w.Delete(t.Context(), caller, e.ID); err != nil {
		t.Fatal(err)
	}
	testplane.Want(t, w.Delete(t.Context(), caller, e.ID), apierror.ENotFound, "not found")
	if again, err := w.Create(t.Context(), caller, in, testplane.Key("k", "body")); err != nil || !reflect.DeepEqual(again, e) {
		t.Errorf("the same key after the delete: %+v, %v", again, err)
	}
}

func TestTenEndpointsAWorkspace(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	w := r.webhooks()
	for i := range webhook.DefaultMaxEndpoints {
		r.register(fmt.Sprintf("https://example.com/%d", i))
	}
	one := api.CreateWebhookEndpoint{URL: "https://example.com/one-more"}
	_, err := w.Create(t.Context(), caller, one, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.ERateLimited, "max webhook endpoints reached"); e.Fields["max"] != 10 || e.Fields["active"] != 10 {
		t.Errorf("%v", e.Fields)
	}
	if _, err := w.Create(t.Context(), stranger, one, core.Idempotency{}); err != nil {
		t.Errorf("another workspace's: %v", err)
	}
	page, next, err := w.List(t.Context(), caller, core.ListOptions{Limit: 3})
	if err != nil || len(page) != 3 || page[0].URL != "https://example.com/9" || next == "" {
		t.Fatalf("%+v, %q, %v", page, next, err)
	}
	if err := w.Delete(t.Context(), caller, page[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Create(t.Context(), caller, one, core.Idempotency{}); err != nil {
		t.Errorf("in the place of a deleted one: %v", err)
	}
}

func TestTheOperatorSaysHowManyEndpointsThereAre(t *testing.T) {
	r := newRig(t, 1, webhook.Config{MaxEndpoints: 1})
	r.register("https://example.com/1")
	_, err := r.webhooks().Create(t.Context(), caller, api.CreateWebhookEndpoint{URL: "https://example.com/2"}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.ERateLimited, "max webhook endpoints reached"); e.Fields["max"] != 1 || e.Fields["active"] != 1 {
		t.Errorf("%v", e.Fields)
	}
}

func TestASuspendedWorkspaceRegistersNothing(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Suspended: true})
		return nil
	})
	_, err := r.webhooks().Create(t.Context(), caller, api.CreateWebhookEndpoint{URL: "https://example.com"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EForbidden, "account suspended")
}

// withoutAStore returns use cases without a store: the tests expect a refusal before the
// store is used.
func withoutAStore(cfg webhook.Config) *webhook.Webhooks {
	return webhook.New(core.New(core.Core{}), cfg)
}

func TestURLsThatAreRefused(t *testing.T) {
	const private = "url is not public"
	for url, message := range map[string]string{
		"":                              "url is required",
		"example.com":                   "invalid url",
		"http://example.com":            "invalid url",
		"ftp://example.com":             "invalid url",
		"https:example.com":             "invalid url",
		"https://":                      "invalid url",
		"https:///hook":                 "invalid url",
		"https://:443/":                 "invalid url",
		"https://example.com:0":         "invalid url",
		"https://example.com:65536":     "invalid url",
		"https://exa mple.com":          "invalid url",
		"https://a:b@example.com":       "invalid url",
		"https://example.com/#fragment": "invalid url",
		"https://example.com/\x7f":      "invalid url",
		"https://e.com/" + strings.Repeat("a", 2048): "invalid url",
		"https://127.0.0.1":                          private,
		"https://10.1.2.3/hook":                      private,
		"https://192.168.0.1:8443":                   private,
		"https://169.254.169.254/latest":             private,
		"https://100.64.0.1":                         private,
		"https://0.0.0.0":                            private,
		"https://[::1]":                              private,
		"https://[::ffff:10.0.0.1]":                  private,
		"https://[64:ff9b::a00:1]":                   private,
		"https://[fe80::1%25eth0]":                   private,
		"https://[fd00::1]":                          private,
		"https://localhost":                          private,
		"https://LOCALHOST.":                         private,
		"https://a.localhost":                        private,
		"https://metadata.google.internal":           private,
		"https://printer.local":                      private,
		"https://intranet":                           private,
		"https://127.1":                              private,
		"https://2130706433":                         private,
		"https://0x7f000001":                         private,
		"https://0x7f.1":                             private,
		"https://127.0.0.1.":                         private,
	} {
		t.Run(url, func(t *testing.T) {
			_, err := withoutAStore(webhook.Config{}).Create(t.Context(), caller, api.CreateWebhookEndpoint{URL: url}, core.Idempotency{})
			testplane.Want(t, err, apierror.EInvalid, message)
			_, err = withoutAStore(webhook.Config{}).Patch(t.Context(), caller, "we-1", api.PatchWebhookEndpoint{URL: api.SetTo(url)})
			testplane.Want(t, err, apierror.EInvalid, message)
		})
	}
}

func TestURLsThatAreTaken(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	strict := webhook.New(core.New(core.Core{Store: r.Leader().Store, Sealer: testplane.Sealer{}, Clock: r.clock.Now}), webhook.Config{})
	for _, url := range []string{
		"https://example.com", "https://EXAMPLE.com.:8443/a?b=c", "https://8.8.8.8/hook", "https://[2606:4700::1111]:8443", "https://bücher.example",
	} {
		if _, err := strict.Create(t.Context(), caller, api.CreateWebhookEndpoint{URL: url}, core.Idempotency{}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"http://127.0.0.1:8080", "https://localhost", "http://hook.internal/x"} {
		r.register(url)
	}
}

// Who tries webhooks on a stack of their own learns what allows it.
func TestARefusedURLNamesWhatAllowsIt(t *testing.T) {
	for _, c := range []struct {
		url, detail string
		private     bool
	}{
		{"http://127.0.0.1:9000/", "it must begin with https://; for local development, BERTH_WEBHOOK_ALLOW_PRIVATE=true in the control plane's environment allows http:// too", false},
		{"https://127.0.0.1:9000/", "internal and private-network addresses are refused; for local development, BERTH_WEBHOOK_ALLOW_PRIVATE=true in the control plane's environment allows them", false},
		{"ftp://127.0.0.1", "it must begin with https:// or http://", true},
	} {
		_, err := withoutAStore(webhook.Config{AllowPrivate: c.private}).Create(t.Context(), caller, api.CreateWebhookEndpoint{URL: c.url}, core.Idempotency{})
		if detail := apierror.As(err).Detail; detail != c.detail {
			t.Errorf("%s: %q", c.url, detail)
		}
	}
}

func TestWhatElseIsRefused(t *testing.T) {
	w := withoutAStore(webhook.Config{})
	_, err := w.Create(t.Context(), caller, api.CreateWebhookEndpoint{URL: "https://example.com", Events: []api.WebhookEventType{"sandbox.running"}}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInvalid, "unknown event type")
	for message, in := range map[string]api.PatchWebhookEndpoint{
		"no updatable fields provided (supported: url, events)": {},
		"url is required":    {URL: api.SetNull[string]()},
		"invalid events":     {Events: api.SetNull[[]api.WebhookEventType]()},
		"unknown event type": {Events: api.SetTo([]api.WebhookEventType{""})},
	} {
		_, err := w.Patch(t.Context(), caller, "we-1", in)
		testplane.Want(t, err, apierror.EInvalid, message)
	}
}

func TestPublicAddresses(t *testing.T) {
	for _, a := range []string{"8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8"} {
		if !webhook.Public(netip.MustParseAddr(a)) {
			t.Errorf("%s is refused", a)
		}
	}
	for _, a := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1", "172.31.255.255",
		"192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1",
		"240.0.0.1", "255.255.255.255",
		"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:100.64.0.1",
		"64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::1", "3fff::1", "5f00::1",
		"fc00::1", "fd00::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2606:4700::1%eth0",
	} {
		if webhook.Public(netip.MustParseAddr(a)) {
			t.Errorf("%s is taken", a)
		}
	}
}

// A repeated idempotency key reveals the secret that it was first answered with, and no
// later one: the owner may have rotated the secret because of who has the key.
func TestARepeatedCreateRevealsNoLaterSecret(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	in, key := api.CreateWebhookEndpoint{URL: "http://127.0.0.1:9"}, core.Idempotency{Key: "k", BodySHA256: []byte("body")}
	create := func() (api.NewWebhookEndpoint, error) { return r.webhooks().Create(t.Context(), caller, in, key) }
	first, err := create()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := create(); err != nil || again.ID != first.ID || again.Secret != first.Secret {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := r.webhooks().Rotate(t.Context(), caller, first.ID); err != nil {
		t.Fatal(err)
	}
	if again, err := create(); err != nil || again.Secret != first.Secret {
		t.Errorf("after the rotation: %+v, %v", again, err)
	}
}
