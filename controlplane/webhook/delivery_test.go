package webhook_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestADeliveryIsSigned(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	hook := newReceiver(t, nil)
	e := r.register(hook.URL + "/a?b=c")
	sent := r.test(e.ID)
	if sent.Type != api.WebhookEndpointTest || sent.Status != api.WebhookPending || !strings.HasPrefix(sent.ID, "wd_") || sent.NextAttemptAt == nil {
		t.Errorf("%+v", sent)
	}
	d := r.becomes(e.ID, api.WebhookDelivered, 1)
	a := d.Attempts[0]
	if d.ID != sent.ID || d.NextAttemptAt != nil || a.StatusCode == nil || *a.StatusCode != 204 || a.Error != nil || a.DurationMS == nil {
		t.Errorf("%+v", d)
	}
	got := hook.requests()[0]
	event, err := api.VerifyWebhook(e.Secret, got.header, got.body, r.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(api.WebhookEvent{
		ID: d.ID, Type: api.WebhookEndpointTest, CreatedAt: d.CreatedAt, Workspace: "ws", Data: api.Object(`{"endpoint_id":"` + e.ID + `"}`),
	}, *event, cmp.Transformer("ms", func(t api.Time) string { return t.String() })); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{
		"X-Service-Event": "endpoint.test", "X-Service-Delivery": d.ID, "Webhook-Id": d.ID, "Content-Type": "application/json", "Webhook-Signature": standard(t, e.Secret, got),
	} {
		if got.header.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.header.Get(name), want)
		}
	}
	rotated, err := r.webhooks().Rotate(t.Context(), caller, e.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.test(e.ID)
	r.becomes(e.ID, api.WebhookDelivered, 1)
	got = hook.requests()[1]
	if _, err := api.VerifyWebhook(e.Secret, got.header, got.body, r.clock.Now()); err == nil {
		t.Error("it is signed with the former secret")
	}
	if _, err := api.VerifyWebhook(rotated.Secret, got.header, got.body, r.clock.Now()); err != nil {
		t.Error(err)
	}
}

// standard computes the signature as specified by https://www.standardwebhooks.com.
func standard(t *testing.T, secret string, q request) string {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(q.header.Get("webhook-id") + "." + q.header.Get("webhook-timestamp") + "."))
	mac.Write(q.body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func TestWhoGetsAnEvent(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	hook := newReceiver(t, nil)
	all, some, others := r.register(hook.URL), r.register(hook.URL, api.WebhookQuotaWarning), r.register(hook.URL, api.WebhookDeploymentFailed)
	r.enqueue("ws", api.WebhookQuotaWarning, api.WebhookQuota{CreditUSD: 5.4})
	r.enqueue("other", api.WebhookQuotaWarning, api.WebhookQuota{CreditUSD: 5.4})
	r.becomes(all.ID, api.WebhookDelivered, 1)
	r.becomes(some.ID, api.WebhookDelivered, 1)
	r.test(others.ID) // sent whatever it subscribes to
	if d := r.becomes(others.ID, api.WebhookDelivered, 1); d.Type != api.WebhookEndpointTest || len(r.deliveries(others.ID)) != 1 {
		t.Errorf("%+v", d)
	}
	if n := len(hook.requests()); n != 3 {
		t.Errorf("%d requests", n)
	}
}

func TestWhatIsTooMuchForAnEvent(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	r.register("http://127.0.0.1:9")
	for name, data := range map[string]any{
		"long": api.WebhookDeployment{Error: strings.Repeat("x", webhook.MaxData)}, "no JSON": make(chan int),
	} {
		err := r.Leader().Store.Update(t.Context(), func(tx *raftstore.Tx) error { return webhook.Enqueue(tx, "ws", api.WebhookDeploymentFailed, data) })
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// What Text returns fits into an event, whatever characters the text contains.
func TestTextsFitIntoAnEvent(t *testing.T) {
	c := testcluster.New(t, 1)
	c.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.WebhookEndpoints, &record.WebhookEndpoint{Meta: record.Meta{ID: "we-1"}, WorkspaceID: "ws"})
		return nil
	})
	for _, piece := range []string{"x", "<", "\n", "\x01", `"`, "é", "\u2028", "\xff", "𝄞", "\x7f"} {
		whole := strings.Repeat(piece, 10<<10)
		text := webhook.Text(whole)
		if begin, cut := strings.CutSuffix(text, "…"); !cut || !strings.HasPrefix(whole, begin) || len(begin) < 500 || !utf8.ValidString(begin) && piece != "\xff" {
			t.Errorf("%q: %d bytes are left", piece, len(text))
		}
		c.Update(func(tx *raftstore.Tx) error {
			id := strings.Repeat("i", 64)
			return webhook.Enqueue(tx, "ws", api.WebhookDeploymentFailed, api.WebhookDeployment{DeploymentID: id, AppID: id, Status: "failed", GitCommit: id, Error: text})
		})
	}
	if got := webhook.Text("what fits"); got != "what fits" {
		t.Errorf("%q", got)
	}
}

func TestTheSchedule(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	hook := newReceiver(t, status(500))
	e, marker := r.register(hook.URL), r.register(newReceiver(t, nil).URL, api.WebhookEndpointTest)
	r.enqueue("ws", api.WebhookFailoverStarted, api.WebhookFailover{DatabaseID: "db"})
	delays := []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 8 * time.Hour}
	for i, delay := range delays {
		d := r.becomes(e.ID, api.WebhookFailed, i+1)
		a := d.Attempts[i]
		if a.StatusCode == nil || *a.StatusCode != 500 || a.Error == nil || d.NextAttemptAt.Sub(a.At.Time) != delay {
			t.Errorf("after attempt %d: %+v", i+1, d)
		}
		r.clock.add(delay - time.Millisecond)
		r.test(marker.ID) // wait for another pass
		r.becomes(marker.ID, api.WebhookDelivered, 1)
		if n := hook.times()[d.ID]; n != i+1 {
			t.Errorf("%d attempts before attempt %d is due", n, i+2)
		}
		r.clock.add(time.Millisecond)
	}
	d := r.becomes(e.ID, api.WebhookDead, 6)
	if d.NextAttemptAt != nil {
		t.Errorf("%+v", d)
	}
	// Each attempt is signed with its own time, the body is always the same.
	bodies, sent := map[string]bool{}, 0
	for _, q := range hook.requests() {
		if q.header.Get(api.HeaderWebhookDelivery) != d.ID {
			continue
		}
		bodies[string(q.body)] = true
		at := d.Attempts[sent].At
		sent++
		seconds := strconv.FormatInt(at.Unix(), 10)
		if _, err := api.VerifyWebhook(e.Secret, q.header, q.body, at.Time); err != nil || !strings.HasPrefix(q.header.Get(api.HeaderWebhookSignature), "t="+seconds+",") {
			t.Errorf("attempt %d at %s: %v, %q", sent, seconds, err, q.header.Get(api.HeaderWebhookSignature))
		}
		if got := q.header.Get(api.HeaderStandardWebhookTimestamp); got != seconds || q.header.Get(api.HeaderStandardWebhookSignature) != standard(t, e.Secret, q) {
			t.Errorf("attempt %d at %s: %v", sent, seconds, q.header)
		}
	}
	if len(bodies) != 1 || hook.times()[d.ID] != 6 {
		t.Errorf("%d different bodies in %d attempts", len(bodies), hook.times()[d.ID])
	}

	// Replay starts another full round of attempts, also after the delivery arrived.
	if d, err := r.webhooks().Replay(t.Context(), caller, e.ID, d.ID); err != nil || d.Status != api.WebhookPending || d.NextAttemptAt == nil {
		t.Fatalf("%+v, %v", d, err)
	}
	r.becomes(e.ID, api.WebhookFailed, 7)
	hook.say(nil)
	r.clock.add(time.Minute)
	r.becomes(e.ID, api.WebhookDelivered, 8)
	if _, err := r.webhooks().Replay(t.Context(), caller, e.ID, d.ID); err != nil {
		t.Fatal(err)
	}
	r.becomes(e.ID, api.WebhookDelivered, 9)
}

func TestReplaysThatAreRefused(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	release := make(chan struct{})
	hook := newReceiver(t, func(http.ResponseWriter, *http.Request) { <-release })
	other, e := r.register("http://127.0.0.1:9"), r.register(hook.URL)
	d := r.test(e.ID)
	w := r.webhooks()
	_, err := w.Replay(t.Context(), caller, e.ID, d.ID)
	testplane.Want(t, err, apierror.EConflict, "delivery is pending")
	testcluster.Await(t, "the request", func() bool { return len(hook.requests()) == 1 })
	_, err = w.Replay(t.Context(), caller, e.ID, d.ID)
	testplane.Want(t, err, apierror.EConflict, "delivery is pending")
	close(release)
	r.becomes(e.ID, api.WebhookDelivered, 1)
	_, err = w.Replay(t.Context(), caller, other.ID, d.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = w.Replay(t.Context(), caller, e.ID, "wd_none")
	testplane.Want(t, err, apierror.ENotFound, "not found")
}

func TestADeletedEndpointGetsNothing(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	hook := newReceiver(t, status(500))
	e := r.register(hook.URL)
	r.test(e.ID)
	r.becomes(e.ID, api.WebhookFailed, 1)
	if err := r.webhooks().Delete(t.Context(), caller, e.ID); err != nil {
		t.Fatal(err)
	}
	r.clock.add(time.Minute)
	testcluster.Await(t, "end of its deliveries", func() bool {
		return len(raftstore.All(r.Leader().Store.View(), record.WebhookDeliveries)) == 0
	})
	if n := len(hook.requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// The numbers of kept and of waiting deliveries are limited.
func TestOldDeliveriesAreForgotten(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 1, webhook.Config{})
	hook := newReceiver(t, nil)
	e, gone := r.register("http://127.0.0.1:9"), r.register("http://127.0.0.1:9")
	later := r.clock.Now().Add(time.Hour)
	put := func(n int, endpoint string, status record.WebhookStatus) {
		for i := range n {
			r.Update(func(tx *raftstore.Tx) error {
				d := &record.WebhookDelivery{Meta: record.Meta{ID: fmt.Sprintf("wd_%s-%s-%03d", endpoint, status, i)}, EndpointID: endpoint, Type: "endpoint.test", Status: record.WebhookPending}
				if status.Waiting() {
					d.NextAttemptAt = later
				}
				raftstore.Put(tx, record.WebhookDeliveries, d)
				d = d.Clone()
				d.Status = status
				raftstore.Put(tx, record.WebhookDeliveries, d)
				return nil
			})
		}
	}
	put(webhook.MaxEnded+3, e.ID, record.WebhookDelivered)
	put(webhook.MaxWaiting+2, e.ID, record.WebhookFailed)
	put(2, gone.ID, record.WebhookDelivered)
	if err := r.webhooks().Delete(t.Context(), caller, gone.ID); err != nil {
		t.Fatal(err)
	}
	term := loops.NewTerm(loops.Config{Store: r.Leader().Store, Clock: r.clock.Now, Logger: testcluster.Log()})
	count := func(endpoint string) map[api.WebhookStatus]int {
		out := map[api.WebhookStatus]int{}
		for _, d := range raftstore.Find(r.Leader().Store.View(), record.WebhookDeliveries, "endpoint", endpoint) {
			out[api.WebhookStatus(d.Status)]++
		}
		return out
	}
	r.webhooks().Prune(t.Context(), term)
	want := map[api.WebhookStatus]int{api.WebhookDelivered: webhook.MaxEnded, api.WebhookFailed: webhook.MaxWaiting, api.WebhookDead: 2}
	if diff := cmp.Diff(want, count(e.ID)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[api.WebhookStatus]int{}, count(gone.ID)); diff != "" {
		t.Error(diff)
	}
	if d := r.deliveries(e.ID); d[0].Status != api.WebhookFailed { // the latest deliveries are kept
		t.Errorf("%+v", d[0])
	}
	r.webhooks().Prune(t.Context(), term)
	want[api.WebhookDelivered] -= 2 // the two that are dead by now are later, and count too
	if diff := cmp.Diff(want, count(e.ID)); diff != "" {
		t.Error(diff)
	}
	r.Update(func(tx *raftstore.Tx) error { // waiting deliveries are kept however old they are
		row, _ := raftstore.Get(tx, record.WebhookEndpoints, e.ID)
		row = row.Clone()
		row.URL = hook.URL
		raftstore.Put(tx, record.WebhookEndpoints, row)
		return nil
	})
	r.clock.add(webhook.EndedKept + 2*time.Hour)
	r.webhooks().Prune(t.Context(), term)
	testcluster.Await(t, "what was sent late", func() bool {
		left := count(e.ID)
		return left[api.WebhookFailed] == 0 && left[api.WebhookDelivered] == webhook.MaxWaiting
	})
}

// Neither tests nor replays push out events.
func TestAFloodOfTests(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	e := r.register("http://127.0.0.1:9", api.WebhookFailoverStarted)
	later := r.clock.Now().Add(time.Hour)
	put := func(id string, kind api.WebhookEventType, status record.WebhookStatus) {
		r.Update(func(tx *raftstore.Tx) error {
			d := &record.WebhookDelivery{Meta: record.Meta{ID: id}, EndpointID: e.ID, Type: string(kind), Status: record.WebhookPending, NextAttemptAt: later}
			raftstore.Put(tx, record.WebhookDeliveries, d)
			d = d.Clone()
			d.Status = status
			raftstore.Put(tx, record.WebhookDeliveries, d)
			return nil
		})
	}
	put("wd_old", api.WebhookFailoverStarted, record.WebhookDead)
	put("wd_event", api.WebhookFailoverStarted, record.WebhookFailed)
	for i := range webhook.MaxWaiting - 1 {
		put(fmt.Sprintf("wd_test-%03d", i), api.WebhookEndpointTest, record.WebhookFailed)
	}
	_, err := r.webhooks().Test(t.Context(), caller, e.ID)
	if refused := testplane.Want(t, err, apierror.ERateLimited, "too many deliveries wait"); refused.Fields["max"] != webhook.MaxWaiting {
		t.Errorf("%+v", refused)
	}
	_, err = r.webhooks().Replay(t.Context(), caller, e.ID, "wd_old")
	testplane.Want(t, err, apierror.ERateLimited, "too many deliveries wait")
	put("wd_later", api.WebhookFailoverStarted, record.WebhookFailed)
	term := loops.NewTerm(loops.Config{Store: r.Leader().Store, Clock: r.clock.Now, Logger: testcluster.Log()})
	r.webhooks().Prune(t.Context(), term)
	dead := map[string]string{}
	for _, d := range r.deliveries(e.ID) {
		if d.Status == api.WebhookDead {
			dead[d.ID] = core.OrZero(d.Error)
		}
	}
	if diff := cmp.Diff(map[string]string{"wd_old": "", "wd_test-000": webhook.Crowded}, dead); diff != "" {
		t.Error(diff)
	}
	if _, err := r.webhooks().Replay(t.Context(), caller, e.ID, "wd_event"); err != nil { // it is waiting already
		t.Error(err)
	}
}

// Deliveries that waited in a backup may have arrived since, so they are held as long as
// Cluster.Keep is set, unless somebody replays them. Later events are sent.
func TestARestoredBackupSendsNothingAgainAtOnce(t *testing.T) {
	r := newRig(t, 1, webhook.Config{Delays: []time.Duration{time.Minute}})
	hook := newReceiver(t, status(503))
	e := r.register(hook.URL)
	first, second := r.test(e.ID), r.test(e.ID)
	for _, d := range []api.WebhookDelivery{first, second} {
		testcluster.Await(t, "an attempt", func() bool { return hook.times()[d.ID] == 1 })
	}
	r.becomes(e.ID, api.WebhookFailed, 1)
	var backup bytes.Buffer
	if err := r.Leader().Store.Backup(&backup); err != nil {
		t.Fatal(err)
	}
	hook.say(nil)
	r.clock.add(time.Minute)
	r.becomes(e.ID, api.WebhookDelivered, 2)
	testcluster.Await(t, "both", func() bool { return hook.times()[first.ID] == 2 && hook.times()[second.ID] == 2 })
	restored := raftstore.AmendBy(record.Clusters, record.ClusterID, func(*record.Cluster, bool) *record.Cluster {
		return &record.Cluster{Meta: record.Meta{ID: record.ClusterID}, Name: "cl-restored", Keep: time.Hour}
	})
	if err := r.Leader().Store.RestoreBackup(t.Context(), &backup, nil, restored); err != nil {
		t.Fatal(err)
	}
	later := r.test(e.ID)
	testcluster.Await(t, "what came later", func() bool { return hook.times()[later.ID] == 1 })
	if _, err := r.webhooks().Replay(t.Context(), caller, e.ID, first.ID); err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "what was asked for", func() bool { return hook.times()[first.ID] == 3 })
	if n := hook.times()[second.ID]; n != 2 {
		t.Errorf("sent %d times", n)
	}
	r.Update(func(tx *raftstore.Tx) error {
		row, _ := raftstore.Get(tx, record.Clusters, record.ClusterID)
		row = row.Clone()
		row.Keep = 0
		raftstore.Put(tx, record.Clusters, row)
		return nil
	})
	testcluster.Await(t, "what was held", func() bool { return hook.times()[second.ID] == 3 })
}

func TestBodiesAreAsTheyWereEnqueued(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	hook := newReceiver(t, nil)
	e := r.register(hook.URL)
	data := api.WebhookDeployment{DeploymentID: "d", AppID: "a", Status: "failed", GitCommit: "c", Error: "<html> & \u2028 \"quoted\" ü"}
	r.enqueue("ws", api.WebhookDeploymentFailed, data)
	r.becomes(e.ID, api.WebhookDelivered, 1)
	got := hook.requests()[0]
	event, err := api.VerifyWebhook(e.Secret, got.header, got.body, r.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	var out api.WebhookDeployment
	if err := json.Unmarshal(event.Data, &out); err != nil || out != data {
		t.Errorf("%+v, %v", out, err)
	}
	row := raftstore.All(r.Leader().Store.View(), record.WebhookDeliveries)[0]
	if !bytes.Equal(row.Body, got.body) {
		t.Errorf("sent %s\nkept %s", got.body, row.Body)
	}
}

// The endpoint that has waited longest gets the first turn.
func TestTurnsAreFair(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	r.Update(func(tx *raftstore.Tx) error {
		for _, endpoint := range []string{"a", "b", "c", "d", "later"} {
			for i := range 2 {
				d := &record.WebhookDelivery{Meta: record.Meta{ID: fmt.Sprintf("wd_%s%d", endpoint, i)}, EndpointID: endpoint, Status: record.WebhookPending}
				d.NextAttemptAt = r.clock.Now().Add(time.Minute)
				if endpoint == "later" {
					d.NextAttemptAt = d.NextAttemptAt.Add(time.Second)
				}
				raftstore.Put(tx, record.WebhookDeliveries, d)
			}
		}
		return nil
	})
	now := r.clock.Now()
	term := loops.NewTerm(loops.Config{Store: r.Leader().Store, Clock: func() time.Time { return now.Add(time.Minute) }, Logger: testcluster.Log()})
	got := r.webhooks().Due(term, map[string]time.Time{"a": now, "b": now.Add(-time.Second), "c": now.Add(time.Second), "gone": now})
	if diff := cmp.Diff([]string{"d", "b", "a", "c"}, got); diff != "" {
		t.Error(diff)
	}
}
