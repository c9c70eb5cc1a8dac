package edge

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/traffic"
	"github.com/berth-cloud/berth/controlplane/wake"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Apps configures the edge of apps.
type Apps struct {
	Suffix string // of host names; "": they have none, and Proxy alone reaches them
	// Domain returns the app of a domain that its workspace has verified, from this
	// replica's copy of the store; nil: there are none. name is as DomainName makes it.
	Domain func(name string) (appID string, ok bool)
	// Find returns an app from this replica's copy of the store.
	Find func(appID string) (App, bool)
	// Awake brings an app to run, and returns once an instance serves. Only the leader
	// calls it.
	Awake func(ctx context.Context, appID string) error
	// Heard takes what a replica has seen since its last report, with all of its open
	// requests. Only the leader calls it.
	Heard func(replica string, seen []Activity)

	Self      string // id of this replica
	Leader    func() (id, address string)
	Term      func() uint64     // in which it leads
	Transport http.RoundTripper // to the peer ports

	// Hold is how long a request waits for an app to wake; default 10 s.
	Hold time.Duration
	// MaxRequests limits the requests to one app at a time; default 4096.
	MaxRequests int
	// ReportEvery is the time between reports to the leader; default 2 s.
	ReportEvery time.Duration
	Clock       func() time.Time // default: time.Now
	// Others returns the peer addresses of the other replicas, by their ids; nil: there
	// are none.
	Others func() map[string]string
}

// App is what the edge needs to know of an app.
type App struct {
	Function  bool // it is invoked by the API, and has no host name
	Status    record.AppStatus
	Live      bool // a deployment of it is or was served
	Suspended bool // its workspace is
	// Instances are those that serve it: none that drains.
	Instances []Instance
}

// Instance is a sandbox that serves an app at a port.
type Instance struct {
	SandboxID string
	Port      int
}

const defaultMaxAppRequests = 4096

var (
	defaultHold = timescale.Limit(10 * time.Second)
	// wakeLimit is how long a replica waits for one wake; those who come later begin
	// another wait. The leader may need longer, to build the app anew.
	wakeLimit = timescale.Limit(2 * time.Minute)
)

// apps is the part of an Edge that apps need.
type apps struct {
	cfg    Apps
	wakes  *wake.Shared
	ledger *ledger
	book   *traffic.Book
}

func newApps(cfg Apps) *apps {
	if cfg.Hold == 0 {
		cfg.Hold = defaultHold
	}
	if cfg.MaxRequests == 0 {
		cfg.MaxRequests = defaultMaxAppRequests
	}
	if cfg.ReportEvery == 0 {
		cfg.ReportEvery = reportEvery
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	return &apps{cfg: cfg, ledger: newLedger(cfg.Clock), book: traffic.New(cfg.Clock, core.RandomText(12))}
}

// visitApp is a visit to an app.
type visitApp struct {
	*Edge
	id     string
	noun   string // what it is called: "app" or "function"
	class  class
	whole  *http.Request // as the client sent it, for the leader
	proxy  string        // the prefix of a path of the API; "": the app's own host name
	answer *answer
	body   received

	known bool      // there is such an app
	noted bool      // the request counts as the app's last
	tried []string  // sandboxes that have refused it
	until time.Time // the end of its wait for a wake; zero: it does not wait
	woken time.Time // when the leader said that an instance serves; zero: it has not
}

func (e *Edge) serveApp(w http.ResponseWriter, r *http.Request) {
	id, ok := parseApp(r.Host, e.cfg.Apps.Suffix)
	if !ok {
		e.refuse(w, r, http.StatusNotFound, "not found", "an app's host name is <app_id>."+e.cfg.Apps.Suffix)
		return
	}
	e.visitApp(w, r, &visitApp{id: id, noun: nounApp, whole: r})
}

// domain returns the app at whose domain a request is.
func (e *Edge) domain(host string) (appID string, ok bool) {
	if e.apps == nil || e.apps.cfg.Domain == nil {
		return "", false
	}
	name := DomainName(host)
	if name == "" {
		return "", false
	}
	return e.apps.cfg.Domain(name)
}

// The words for apps and functions in answers.
const (
	nounApp      = "app"
	nounFunction = "function"
)

func (e *Edge) visitApp(w http.ResponseWriter, r *http.Request, v *visitApp) {
	v.Edge, v.answer = e, &answer{ResponseWriter: w, begun: time.Now()}
	if v.noun == nounApp {
		v.class = classify(r)
	} // else it is real: who invokes a function means it
	r = r.WithContext(r.Context()) // the server's own keeps its body: see stall.Body
	v.body.of(r)
	defer func() {
		e.metrics.served(v, r, e.cfg.Log)
		v.record(r)
	}()
	if !e.enter(v.id, e.apps.cfg.MaxRequests) {
		_, v.known = e.apps.cfg.Find(v.id)
		w.Header().Set("Retry-After", "1")
		e.refuse(v.answer, r, http.StatusServiceUnavailable, "too many requests at once to this "+v.noun, "")
		return
	}
	defer e.leave(v.id)
	e.serve(v.answer, r, v)
}

// find implements visit.
func (v *visitApp) find(w http.ResponseWriter, r *http.Request) (target, step) {
	for {
		app, ok := v.apps.cfg.Find(v.id)
		v.known = ok
		if next := v.refused(w, r, app, ok); next != send {
			return target{}, next
		}
		if !v.noted && v.class.resetsIdle() {
			v.noted = true
			v.apps.ledger.request(v.id)
		}
		if to, ok := v.choose(app); ok {
			return to, send
		}
		if next := v.hold(w, r, app); next != again {
			return target{}, next
		}
	}
}

// refused answers a request that no instance will ever serve.
func (v *visitApp) refused(w http.ResponseWriter, r *http.Request, app App, ok bool) step {
	switch {
	case (!ok || !app.Live) && app.Status != record.AppDeleting && v.elsewhere(r):
		return away // it may have just been created or deployed
	case !ok, app.Status == record.AppDeleting, app.Function != (v.noun == nounFunction):
		v.refuse(w, r, http.StatusNotFound, "not found", "")
	case app.Suspended:
		v.refuseSuspended(w, r)
	case !app.Live && app.Function:
		v.refuse(w, r, http.StatusNotFound, errNoCode, "")
	case !app.Live:
		v.refuse(w, r, http.StatusNotFound, errNotLive, "")
	default:
		return send
	}
	return over
}

// choose takes the instance with the fewest open requests. The request counts from
// now on.
func (v *visitApp) choose(app App) (target, bool) {
	var serve []target
	var ids []string
	for _, i := range app.Instances {
		s, address, ok := v.cfg.Find(i.SandboxID)
		if ok && s.Status == record.SandboxRunning && address != "" && !slices.Contains(v.tried, i.SandboxID) {
			serve, ids = append(serve, target{sandbox: s, address: address, port: i.Port}), append(ids, i.SandboxID)
		}
	}
	if len(serve) == 0 {
		return target{}, false
	}
	n := v.apps.ledger.begin(v.id, ids)
	to := serve[n]
	to.function = v.noun == nounFunction
	to.leave = func() { v.apps.ledger.end(v.id, ids[n], v.class.resetsIdle()) }
	if to.prefix = v.proxy; to.prefix != "" && v.apps.cfg.Suffix != "" && v.noun == nounApp {
		to.host = v.id + "." + v.apps.cfg.Suffix
	}
	return to, true
}

// serves implements visit. An instance that drains serves what it has begun.
func (v *visitApp) serves(to target) bool {
	s, _, ok := v.cfg.Find(to.sandbox.ID)
	return ok && s.Status == record.SandboxRunning && s.Generation == to.sandbox.Generation
}

// again implements visit: another instance may serve it.
func (v *visitApp) again(a *attempt) (now, later bool) {
	v.tried = append(v.tried, a.target.sandbox.ID)
	app, _ := v.apps.cfg.Find(v.id)
	for _, i := range app.Instances {
		if s, _, ok := v.cfg.Find(i.SandboxID); ok && s.Status == record.SandboxRunning && !slices.Contains(v.tried, i.SandboxID) {
			return true, false
		}
	}
	v.tried = nil
	return false, a.retryable() || a.stale()
}

// forward implements visit.
func (v *visitApp) forward(w http.ResponseWriter, _ *http.Request) {
	v.answer.elsewhere = true
	v.cfg.Forward.ServeHTTP(w, v.whole)
}

// fail implements visit.
func (v *visitApp) fail(w http.ResponseWriter, r *http.Request, a *attempt) {
	v.cfg.Log.DebugContext(r.Context(), "app failed", "request_id", r.Header.Get(headerRequestID), "app_id", v.id,
		"sandbox_id", hostapi.ShortID(a.target.sandbox.ID), "port", a.target.port, "error", a.err)
	var timeout net.Error
	switch {
	case hostapi.HasCode(a.err, hostapi.CodePortClosed):
		v.refuse(w, r, http.StatusBadGateway, v.noun+" does not listen", "nothing listens on port "+strconv.Itoa(a.target.port), v.log(r, a))
	case hosts.Unreachable(a.err), a.stale():
		w.Header().Set("Retry-After", "1")
		v.refuse(w, r, http.StatusBadGateway, v.noun+" unreachable", "")
	case errors.As(a.err, &timeout) && timeout.Timeout():
		v.refuse(w, r, http.StatusGatewayTimeout, "the "+v.noun+" does not answer", "no response began within "+headerTimeout.String())
	default:
		v.refuse(w, r, http.StatusBadGateway, "the "+v.noun+" broke off", "", v.log(r, a))
	}
}

// log returns the last lines of a function's log for the answer to an invocation that failed.
func (v *visitApp) log(r *http.Request, a *attempt) map[string]any {
	if a.target.function {
		if lines := v.lastLines(r.Context(), a, ""); len(lines) > 0 {
			return map[string]any{"log": lines}
		}
	}
	return nil
}
