package stats

import (
	"context"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/traffic"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Traffic asks all replicas what they have counted of an app, each what ask returns for
// it. missing are those that did not answer.
type Traffic func(ctx context.Context, appID string, ask func(replica string) traffic.Question) (reports []traffic.Report, missing []string)

// App returns the requests to an app that replicas have counted, and what its instances
// use now.
func (m *Metrics) App(ctx context.Context, c core.Caller, id string) (api.AppMetrics, error) {
	view, err := m.cfg.Core.View(ctx, c)
	if err != nil {
		return api.AppMetrics{}, err
	}
	row, err := app.Owned(view, c, id)
	if err != nil {
		return api.AppMetrics{}, err
	}
	leave, err := m.questions.enter(c.WorkspaceID)
	if err != nil {
		return api.AppMetrics{}, err
	}
	defer leave()
	var instances []api.InstanceUsage
	var wg sync.WaitGroup
	wg.Go(func() { instances = m.instances(ctx, c, view, row) })
	reports, missing := m.cfg.Traffic(ctx, id, func(string) traffic.Question { return traffic.Question{Counts: true} })
	wg.Wait()
	out := merge(reports, m.cfg.Classes)
	out.AppID, out.Status, out.Missing, out.Instances = row.ID, api.AppStatus(row.Status), append([]string{}, missing...), instances
	return out, nil
}

// instances asks the hosts of an app's instances, of which there are a few. One whose
// host does not answer has an error instead.
func (m *Metrics) instances(ctx context.Context, c core.Caller, view raftstore.Reader, row *record.App) []api.InstanceUsage {
	out := make([]api.InstanceUsage, len(row.Instances))
	var wg sync.WaitGroup
	for i, in := range row.Instances {
		out[i] = api.InstanceUsage{SandboxID: in.SandboxID, DeploymentID: in.DeploymentID}
		box, ok := raftstore.Get(view, record.Sandboxes, in.SandboxID)
		if !ok {
			out[i].Error = "it is gone"
			continue
		}
		wg.Go(func() {
			usage, err := m.usage(ctx, c, box, 0)
			if err != nil {
				out[i].Error = apierror.As(err).Message
				return
			}
			out[i].Usage = &usage
		})
	}
	wg.Wait()
	return out
}

// merge adds up what replicas have counted. classes are the names of the classes of
// requests.
func merge(reports []traffic.Report, classes []string) api.AppMetrics {
	out := api.AppMetrics{Replicas: []string{}, Minutes: []api.AppMinute{}}
	var total traffic.Counts
	minutes := map[int64]*traffic.Counts{}
	for _, r := range reports {
		out.Replicas = append(out.Replicas, r.Replica)
		out.OpenRequests += r.Open
		out.Wakes += r.Wakes
		total.Add(r.Total)
		if !r.Since.IsZero() && (out.Since == nil || r.Since.Before(out.Since.Time)) {
			out.Since = &api.Time{Time: r.Since.UTC()}
		}
		for _, min := range r.Minutes {
			if minutes[min.At] == nil {
				minutes[min.At] = &traffic.Counts{}
			}
			minutes[min.At].Add(min.Counts)
		}
	}
	slices.Sort(out.Replicas)
	out.Requests = requestsOf(&total, classes)
	for at, c := range minutes {
		one := api.AppMinute{
			At: api.Time{Time: time.Unix(at, 0).UTC()}, Errors: c.Statuses[5], P50MS: quantile(c, 0.5), P95MS: quantile(c, 0.95),
			ReceivedBytes: c.Received, SentBytes: c.Sent,
		}
		for _, n := range c.Statuses {
			one.Requests += n
		}
		out.Minutes = append(out.Minutes, one)
	}
	slices.SortFunc(out.Minutes, func(a, b api.AppMinute) int { return a.At.Compare(b.At.Time) })
	return out
}

func requestsOf(c *traffic.Counts, classes []string) api.RequestCounts {
	out := api.RequestCounts{
		Statuses: api.StatusCounts{None: c.Statuses[0], S1xx: c.Statuses[1], S2xx: c.Statuses[2], S3xx: c.Statuses[3], S4xx: c.Statuses[4], S5xx: c.Statuses[5]},
		Held:     c.Held, ReceivedBytes: c.Received, SentBytes: c.Sent,
		Latency: api.Latency{SumMS: c.SumMS, P50MS: quantile(c, 0.5), P95MS: quantile(c, 0.95), P99MS: quantile(c, 0.99), Buckets: []api.LatencyBucket{}},
	}
	for _, n := range c.Statuses {
		out.Count += n
	}
	for i, name := range classes {
		if i < len(c.Classes) {
			out.Classes = append(out.Classes, api.ClassCount{Class: name, Count: c.Classes[i]})
		}
	}
	for i, n := range c.Buckets {
		bucket := api.LatencyBucket{Count: n}
		if i < len(traffic.Bounds) {
			bucket.UpToMS = &traffic.Bounds[i]
		}
		out.Latency.Buckets = append(out.Latency.Buckets, bucket)
	}
	return out
}

// quantile estimates a quantile in milliseconds: requests are spread evenly over their
// bucket. What is in the last one took as long as its lower bound, at least.
func quantile(c *traffic.Counts, q float64) float64 {
	total := int64(0)
	for _, n := range c.Buckets {
		total += n
	}
	if total == 0 {
		return 0
	}
	rank, below, lower := q*float64(total), int64(0), int64(0)
	for i, n := range c.Buckets {
		if i == len(traffic.Bounds) {
			break
		}
		if n > 0 && float64(below+n) >= rank {
			at := float64(lower) + float64(traffic.Bounds[i]-lower)*(rank-float64(below))/float64(n)
			return math.Round(at*10) / 10
		}
		below, lower = below+n, traffic.Bounds[i]
	}
	return float64(traffic.Bounds[len(traffic.Bounds)-1])
}

// MaxRequests is how many requests of an app may be asked for.
const MaxRequests = 1000

// Requests returns the latest requests to an app that replicas have kept, oldest first.
func (m *Metrics) Requests(ctx context.Context, c core.Caller, id string, tail int) ([]api.AppRequest, error) {
	f, err := m.requests(ctx, c, id, tail)
	if err != nil {
		return nil, err
	}
	leave, err := m.questions.enter(c.WorkspaceID)
	if err != nil {
		return nil, err
	}
	defer leave()
	return f.ask(ctx), nil
}

// FollowRequests returns the latest requests and then those that end, until the app is
// deleted. It asks the replicas every second.
func (m *Metrics) FollowRequests(ctx context.Context, c core.Caller, id string, tail int) (core.Follower[api.AppRequest], error) {
	f, err := m.requests(ctx, c, id, tail)
	if err != nil {
		return nil, err
	}
	if f.leave, err = m.followers.enter(c.WorkspaceID); err != nil {
		return nil, err
	}
	f.ctx, f.cancel = context.WithCancel(ctx)
	return f, nil
}

func (m *Metrics) requests(ctx context.Context, c core.Caller, id string, tail int) (*requests, error) {
	view, err := m.cfg.Core.View(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, err := app.Owned(view, c, id); err != nil {
		return nil, err
	}
	return &requests{m: m, c: c, id: id, tail: tail, seen: map[string]traffic.Question{}}, nil
}

// requests follows the requests to one app.
type requests struct {
	m      *Metrics
	c      core.Caller
	id     string
	tail   int
	ctx    context.Context
	cancel context.CancelFunc
	leave  func()

	seen  map[string]traffic.Question // by replica: what to ask it next
	asked bool
	next  []api.AppRequest
}

// followEvery is how often replicas are asked for what is followed.
const followEvery = time.Second

// Next implements core.Follower.
func (f *requests) Next() (api.AppRequest, error) {
	for len(f.next) == 0 {
		if f.asked {
			select {
			case <-time.After(followEvery):
			case <-f.ctx.Done():
				return api.AppRequest{}, core.StoreError(f.ctx.Err())
			}
			if !f.m.cfg.Core.Store.IsLeader() {
				return api.AppRequest{}, apierror.Unavailable("leadership has changed", nil)
			}
			if _, err := app.Owned(f.m.cfg.Core.Store.View(), f.c, f.id); err != nil {
				return api.AppRequest{}, io.EOF // it was deleted
			}
		}
		f.next = f.ask(f.ctx)
	}
	one := f.next[0]
	f.next = f.next[1:]
	return one, nil
}

// Close implements core.Follower.
func (f *requests) Close() error {
	f.cancel()
	f.leave()
	return nil
}

// ask returns what has come since the last time: at first, the latest.
func (f *requests) ask(ctx context.Context) []api.AppRequest {
	first := !f.asked
	f.asked = true
	reports, _ := f.m.cfg.Traffic(ctx, f.id, func(replica string) traffic.Question {
		q := f.seen[replica]
		q.Entries = traffic.MaxEntries
		return q
	})
	out := []api.AppRequest{}
	for _, r := range reports {
		f.seen[r.Replica] = traffic.Question{Epoch: r.Epoch, After: r.Last}
		for i := range r.Entries {
			out = append(out, f.show(r.Replica, &r.Entries[i]))
		}
	}
	slices.SortStableFunc(out, func(a, b api.AppRequest) int {
		if n := a.At.Compare(b.At.Time); n != 0 {
			return n
		}
		return strings.Compare(a.Replica, b.Replica)
	})
	if first && len(out) > f.tail {
		out = out[len(out)-f.tail:]
	}
	return out
}

func (f *requests) show(replica string, e *traffic.Entry) api.AppRequest {
	class := ""
	if e.Class >= 0 && e.Class < len(f.m.cfg.Classes) {
		class = f.m.cfg.Classes[e.Class]
	}
	return api.AppRequest{
		At: api.Time{Time: time.UnixMilli(e.At).UTC()}, RequestID: e.ID, Replica: replica, Method: e.Method, Path: e.Path, PathCut: e.Cut, Status: e.Status,
		Class: class, Held: e.Held, FirstByteMS: e.FirstMS, DurationMS: e.TookMS, ReceivedBytes: e.Received, SentBytes: e.Sent,
	}
}
