package main

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/httpapi"
)

// planeMetrics measures everything alike.
type planeMetrics struct{ httpapi.Metrics }

func planeUsage(history time.Duration) api.ResourceUsage {
	at := time.Date(2026, 11, 20, 13, 5, 9, 0, time.UTC)
	u := api.ResourceUsage{
		At: api.Time{Time: at}, Since: api.Time{Time: at}, CPU: 2, CPUSeconds: 12.84, MemoryBytes: 187 << 20, MemoryLimitBytes: 512 << 20,
		DiskBytes: 96 << 20, DiskLimitBytes: 4 << 30, NetworkReceivedBytes: 2048, NetworkSentBytes: 100, IntervalSeconds: 10,
	}
	for t := time.Duration(0); t < history; t += 30 * time.Second {
		u.History = append(u.History, api.UsageSample{At: api.Time{Time: at}, Seconds: 10, CPUSeconds: 5, MemoryBytes: 1 << 20, DiskBytes: 1 << 20, NetworkReceivedBytes: 7})
	}
	return u
}

func (planeMetrics) Sandbox(_ context.Context, _ core.Caller, id string, history time.Duration) (api.SandboxUsage, error) {
	if id == "unknown" {
		return api.SandboxUsage{}, apierror.NotFound()
	}
	return api.SandboxUsage{SandboxID: id, Status: api.SandboxRunning, Usage: planeUsage(history)}, nil
}

func (planeMetrics) Database(_ context.Context, _ core.Caller, id string, history time.Duration) (api.DatabaseUsage, error) {
	if strings.HasSuffix(id, "ff") {
		return api.DatabaseUsage{DatabaseID: id, Status: api.DatabaseProvisioning}, nil
	}
	u := planeUsage(history)
	return api.DatabaseUsage{DatabaseID: id, Status: api.DatabaseRunning, Clients: new(3), ArchiveLagSeconds: new(1.5), Usage: &u}, nil
}

func (planeMetrics) App(_ context.Context, _ core.Caller, id string) (api.AppMetrics, error) {
	u := planeUsage(0)
	at := api.Time{Time: time.Date(2026, 11, 20, 13, 5, 0, 0, time.UTC)}
	return api.AppMetrics{
		AppID: id, Status: api.AppRunning, Missing: []string{"r3"}, Since: &at, OpenRequests: 2, Wakes: 1,
		Requests: api.RequestCounts{Count: 7, Statuses: api.StatusCounts{S2xx: 6, S5xx: 1}, Held: 3, SentBytes: 2048, Latency: api.Latency{P50MS: 12.5}},
		Minutes:  []api.AppMinute{{At: at, Requests: 7, Errors: 1, P95MS: 80}}, Instances: []api.InstanceUsage{{Usage: &u}, {Error: "agent unreachable"}},
	}, nil
}

var planeRequests = []api.AppRequest{
	{At: api.Time{Time: time.Date(2026, 11, 20, 13, 5, 9, 0, time.UTC)}, Method: "GET", Path: "/a", Status: 200, Class: "real", DurationMS: 19, SentBytes: 5120},
	{At: api.Time{Time: time.Date(2026, 11, 20, 13, 5, 10, 0, time.UTC)}, Method: "HEAD", Path: "/b", PathCut: true, Class: "quiet", Held: true},
}

func (planeMetrics) Requests(context.Context, core.Caller, string, int) ([]api.AppRequest, error) {
	return planeRequests, nil
}

func (planeMetrics) FollowRequests(context.Context, core.Caller, string, int) (core.Follower[api.AppRequest], error) {
	return &planeFollower{left: planeRequests}, nil
}

type planeFollower struct{ left []api.AppRequest }

func (f *planeFollower) Next() (api.AppRequest, error) {
	if len(f.left) == 0 {
		return api.AppRequest{}, io.EOF
	}
	one := f.left[0]
	f.left = f.left[1:]
	return one, nil
}

func (*planeFollower) Close() error { return nil }
