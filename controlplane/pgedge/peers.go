package pgedge

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/timescale"
)

// What replicas ask each other, below peer.PathDatabases:
//
//	POST {id}/index {} → rowIndex; asked of the leader
//	POST {id}/wake  {} → 204 once the database runs; asked of the leader
//	POST cancel     cancelRequest → 204: the request was passed on; 404: no session here has the key
const (
	pathIndex  = peer.PathDatabases + "{id}/index"
	pathWake   = peer.PathDatabases + "{id}/wake"
	pathCancel = peer.PathDatabases + "cancel"
)

// Anybody may send cancel requests, and each is a question to every other replica. So the
// rate of questions is limited, per second. Requests beyond it are lost, as any cancel
// request may be.
const (
	cancelRate  = 50
	cancelBurst = 100
)

const maxPeerBody = 64 << 10

// PeersConfig configures Peers.
type PeersConfig struct {
	Leading func() bool // reports whether this replica leads
	// Leader returns the address of the leader's peer port; "" while there is no leader.
	Leader func() (id, address string)
	// Others returns the addresses of the other replicas' peer ports.
	Others    func() []string
	Transport http.RoundTripper // to the peer ports
	// Lookup finds a database in this replica's copy of the store.
	Lookup Lookup
	// Awake returns once a database runs. It is called on the leader only.
	Awake func(ctx context.Context, id string) error
	Feed  *Feed // nil if no router in a process of its own listens here
	Log   *slog.Logger
}

// Peers asks other replicas, and answers their questions.
type Peers struct {
	cfg     PeersConfig
	limiter *rate.Limiter

	mu     sync.Mutex
	mute   time.Time                                           // until then, logins do not ask the leader
	cancel func(ctx context.Context, key pgsni.CancelKey) bool // of this replica's router
}

// NewPeers returns Peers.
func NewPeers(cfg PeersConfig) *Peers {
	return &Peers{cfg: cfg, limiter: rate.NewLimiter(cancelRate, cancelBurst)}
}

// Routes sets the router that gets the other replicas' cancel requests.
func (p *Peers) Routes(r *Router) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancel = r.Cancel
}

// Handler returns the handler of the other replicas' questions.
func (p *Peers) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathIndex, p.serveIndex)
	mux.HandleFunc("POST "+pathWake, p.serveWake)
	mux.HandleFunc("POST "+pathCancel, p.serveCancel)
	if p.cfg.Feed != nil {
		mux.HandleFunc("POST "+pathTable, p.cfg.Feed.serve)
	}
	return mux
}

// Wake makes the leader wake a database, whichever replica leads. It serves as
// ReachConfig.Wake.
func (p *Peers) Wake(ctx context.Context, id string) error {
	if p.cfg.Leading() {
		return p.cfg.Awake(ctx, id)
	}
	return peer.AskLeader(ctx, p.cfg.Transport, p.cfg.Leader, peer.PathDatabases+url.PathEscape(id)+"/wake", struct{}{})
}

// indexLimit is how long a login waits for the leader to say how new the database's row
// is. If the leader takes longer, logins do not ask it for muteTime and go on without it.
var indexLimit = timescale.Limit(250 * time.Millisecond)

const muteTime = time.Second

// rowIndex is the index of a database's row; 0 if there is no row.
type rowIndex struct {
	Index uint64 `json:"index"`
}

// Latest returns the index of a database's row at the leader. It serves as
// ReachConfig.Latest.
func (p *Peers) Latest(ctx context.Context, id string) (index uint64, ok bool) {
	_, address := p.cfg.Leader()
	if p.cfg.Leading() || address == "" || p.muted() {
		return 0, false
	}
	limited, cancel := context.WithTimeout(ctx, indexLimit)
	defer cancel()
	resp, err := peer.Ask(limited, p.cfg.Transport, address, peer.PathDatabases+url.PathEscape(id)+"/index", struct{}{})
	if err == nil {
		defer resp.Body.Close()
		var out rowIndex
		if resp.StatusCode == http.StatusOK && json.NewDecoder(io.LimitReader(resp.Body, maxPeerBody)).Decode(&out) == nil {
			return out.Index, true
		}
	}
	if ctx.Err() == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mute = time.Now().Add(muteTime)
	}
	return 0, false
}

func (p *Peers) muted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.mute)
}

func (p *Peers) serveIndex(w http.ResponseWriter, r *http.Request) {
	if !p.cfg.Leading() {
		peer.Refuse(w, peer.ErrNotLeading)
		return
	}
	e, _ := p.cfg.Lookup(r.PathValue("id"))
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(rowIndex{e.Index}) // the caller may have given up
}

func (p *Peers) serveWake(w http.ResponseWriter, r *http.Request) {
	if !p.cfg.Leading() {
		peer.Refuse(w, peer.ErrNotLeading)
		return
	}
	ctx := hostapi.WithRequestID(r.Context(), r.Header.Get(hostapi.HeaderRequestID))
	if r.Header.Get(telemetry.HeaderParent) != "" {
		var span telemetry.Span
		ctx, span = telemetry.Serve(ctx, r.Header, r.Pattern)
		span.SetDatabase(r.PathValue("id"))
		defer span.End(nil)
	}
	if err := p.cfg.Awake(ctx, r.PathValue("id")); err != nil {
		if apierror.CodeOf(err) == apierror.EInternal && r.Context().Err() == nil {
			p.cfg.Log.ErrorContext(ctx, "database not woken", "database_id", r.PathValue("id"), "error", err)
		}
		peer.Refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// cancelRequest is a cancel key that a client was given.
type cancelRequest struct {
	PID    uint32 `json:"pid"`
	Secret []byte `json:"secret"`
}

// CancelElsewhere passes a cancel request to all other replicas and to the listening
// routers at once. The one that has the session carries it out.
func (p *Peers) CancelElsewhere(ctx context.Context, key pgsni.CancelKey) {
	if !p.limiter.Allow() {
		p.cfg.Log.DebugContext(ctx, "cancel request dropped: there are too many")
		return
	}
	p.cancelByFeed(key)
	var all sync.WaitGroup
	for _, address := range p.cfg.Others() {
		all.Go(func() {
			resp, err := peer.Ask(ctx, p.cfg.Transport, address, pathCancel, cancelRequest{key.PID, key.Secret})
			if err != nil {
				p.cfg.Log.DebugContext(ctx, "replica not asked whose a cancel request is", "address", address, "error", err)
				return
			}
			resp.Body.Close()
		})
	}
	all.Wait()
}

func (p *Peers) serveCancel(w http.ResponseWriter, r *http.Request) {
	var in cancelRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPeerBody)).Decode(&in); err != nil {
		peer.Refuse(w, apierror.Invalid("invalid json", "a cancel key"))
		return
	}
	p.mu.Lock()
	cancel := p.cancel
	p.mu.Unlock()
	key := pgsni.CancelKey{PID: in.PID, Secret: in.Secret}
	if (cancel == nil || !cancel(r.Context(), key)) && !p.cancelByFeed(key) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// cancelByFeed forwards a cancel request to the routers that listen to this replica.
func (p *Peers) cancelByFeed(key pgsni.CancelKey) bool {
	return p.cfg.Feed != nil && p.cfg.Feed.Cancel(key)
}
