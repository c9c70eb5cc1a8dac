package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/traffic"
	"github.com/berth-cloud/berth/timescale"
)

// received counts the bytes of a request's body.
type received struct {
	io.ReadCloser
	n atomic.Int64
}

// of counts a request's body from now on.
func (c *received) of(r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	c.ReadCloser = r.Body
	r.Body = c
}

// Read implements io.Reader.
func (c *received) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// record notes a request to an app that this replica has answered.
func (v *visitApp) record(r *http.Request) {
	if !v.known || v.answer.elsewhere {
		return
	}
	took := time.Since(v.answer.begun)
	first := v.answer.took
	if v.answer.status == 0 {
		first = took
	}
	v.apps.book.Record(v.id, traffic.Request{
		ID: r.Header.Get(headerRequestID), Method: r.Method, Path: r.URL.EscapedPath(), Status: v.answer.status, Class: int(v.class), Held: !v.until.IsZero(),
		First: first, Took: took, Received: v.body.n.Load(), Sent: v.answer.bytes,
	})
}

// ClassNames are the names of the classes of requests, by their numbers.
func ClassNames() []string {
	names := make([]string, len(allClasses))
	for _, c := range allClasses {
		names[c] = c.String()
	}
	return names
}

const (
	maxQuestion = 4 << 10
	// maxTraffic is the size of the largest report, in bytes: an entry takes some 600,
	// where its path needs no escapes, and a minute, or an hour of one of thousands of
	// apps, 400.
	maxTraffic = 8 << 20
)

// trafficLimit is how long another replica may take to answer.
var trafficLimit = timescale.Limit(2 * time.Second)

// Traffic asks all replicas what they have counted of an app, each what ask returns for
// it. missing are those that did not answer.
func (e *Edge) Traffic(ctx context.Context, appID string, ask func(replica string) traffic.Question) (reports []traffic.Report, missing []string) {
	if e.apps == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, trafficLimit)
	defer cancel()
	own := e.trafficHere(appID, ask(e.apps.cfg.Self))
	reports = append(reports, own)
	var others map[string]string
	if e.apps.cfg.Others != nil {
		others = e.apps.cfg.Others()
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for id, address := range others {
		q := ask(id)
		wg.Go(func() {
			report, err := e.askTraffic(ctx, address, appID, q)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				e.cfg.Log.DebugContext(ctx, "a replica does not tell of an app's requests", "replica", id, "error", err)
				missing = append(missing, id)
				return
			}
			report.Replica = id
			reports = append(reports, report)
		})
	}
	wg.Wait()
	slices.Sort(missing)
	return reports, missing
}

func (e *Edge) trafficHere(appID string, q traffic.Question) traffic.Report {
	report := e.apps.book.Report(appID, q)
	report.Replica = e.apps.cfg.Self
	e.mu.Lock()
	report.Open = e.count[appID]
	e.mu.Unlock()
	return report
}

func (e *Edge) askTraffic(ctx context.Context, address, appID string, q traffic.Question) (out traffic.Report, err error) {
	return askReplica[traffic.Report](ctx, e, address, peer.PathApps+url.PathEscape(appID)+"/traffic", q)
}

// askReplica asks another replica for a report.
func askReplica[T any](ctx context.Context, e *Edge, address, path string, q any) (out T, err error) {
	resp, err := peer.Ask(ctx, e.apps.cfg.Transport, address, path, q)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return out, fmt.Errorf("status %d", resp.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxTraffic+1))
	if err != nil {
		return out, err
	}
	if len(raw) > maxTraffic {
		return out, errors.New("the report is too large")
	}
	return out, json.Unmarshal(raw, &out)
}

// Hours returns what the replicas have counted of all apps in the present hour and the one
// before; missing are those that did not answer.
func (e *Edge) Hours(ctx context.Context) (counted []traffic.Counted, missing []string) {
	if e.apps == nil {
		return nil, nil
	}
	counted = append(counted, e.hoursHere())
	if e.apps.cfg.Others == nil {
		return counted, nil
	}
	for id, address := range e.apps.cfg.Others() {
		limited, cancel := context.WithTimeout(ctx, trafficLimit)
		one, err := askReplica[traffic.Counted](limited, e, address, pathHours, struct{}{})
		cancel()
		if err != nil {
			missing = append(missing, id)
			continue
		}
		one.Replica = id
		counted = append(counted, one)
	}
	slices.Sort(missing)
	return counted, missing
}

func (e *Edge) hoursHere() traffic.Counted {
	return traffic.Counted{Replica: e.apps.cfg.Self, Epoch: e.apps.book.Epoch, Hours: e.apps.book.Hours()}
}

func (e *Edge) serveTraffic(w http.ResponseWriter, r *http.Request) {
	var q traffic.Question
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxQuestion)).Decode(&q); err != nil {
		peer.Refuse(w, apierror.Invalid("invalid json", "a question about an app's requests"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(e.trafficHere(r.PathValue("id"), q)) // the asker may be gone
}
