package httpapi

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/stats"
)

type fakeMetrics struct {
	Metrics
	asked stats.Query
}

func (f *fakeMetrics) Sandboxes(_ context.Context, _ core.Caller, q stats.Query) ([]api.SandboxMetrics, error) {
	f.asked = q
	return []api.SandboxMetrics{{
		At: exampleDay, Day: "2026-11-20", Template: "base", Starts: 2,
	}}, nil
}

type fakePreviews struct {
	Ports
	asked api.CreatePreviewToken
}

func (f *fakePreviews) PreviewToken(_ context.Context, _ core.Caller, id string, in api.CreatePreviewToken) (api.PreviewAccess, error) {
	f.asked = in
	return api.PreviewAccess{Token: "tok", ExpiresAt: api.Time{Time: time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)}, URL: "http://80-" + id + ".x/?berth_token=tok"}, nil
}

func TestSandboxMetrics(t *testing.T) {
	fake := &fakeMetrics{}
	r := newRig(t, func(c *Config) { c.Metrics = fake })
	got := r.call(http.MethodGet, "/v1/metrics/sandboxes?from=2026-11-01&to=2026-11-20&template=base", "tenant", "")
	none := `{"count":0,"p50":0,"p90":0,"p99":0,"max":0}`
	want := `[{"at":"2026-11-20T00:00:00.000Z","day":"2026-11-20","template":"base","sandboxes":0,"starts":2,"wakes":0,"hibernations":0,"forks":0,"deaths":0,` +
		`"boot_ms":` + none + `,"wake_ms":` + none + `,"hibernate_ms":` + none + `}]`
	if got.Code != 200 || strings.TrimSpace(got.Body.String()) != want {
		t.Errorf("%d %s\nwant %s", got.Code, got.Body, want)
	}
	if q := fake.asked; q.From.Format(time.DateOnly) != "2026-11-01" || q.To.Format(time.DateOnly) != "2026-11-20" || q.Label != "base" || q.Hourly {
		t.Errorf("asked for %+v", q)
	}
	for _, query := range []string{"from=yesterday", "to=2026-13-01", "from=2026-11-20T00:00:00Z", "bucket=", "bucket=minute", "template=" + strings.Repeat("x", 200)} {
		if got := r.call(http.MethodGet, "/v1/metrics/sandboxes?"+query, "tenant", ""); got.Code != 400 {
			t.Errorf("%s: %d %s", query, got.Code, got.Body)
		}
	}
}

func TestPreviewToken(t *testing.T) {
	fake := &fakePreviews{}
	r := newRig(t, func(c *Config) { c.Ports = fake })
	got := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/preview-tokens", "tenant", `{"port":80,"ttl_seconds":60}`)
	want := `{"token":"tok","expires_at":"2026-11-20T14:00:00.000Z","url":"http://80-` + testID + `.x/?berth_token=tok"}`
	if got.Code != 201 || strings.TrimSpace(got.Body.String()) != want || *fake.asked.Port != 80 || *fake.asked.TTLSeconds != 60 {
		t.Errorf("%d %s (asked for %+v)\nwant %s", got.Code, got.Body, fake.asked, want)
	}
}
