package edge

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// errPaused is the error for requests to a paused sandbox.
const errPaused = "sandbox not running (paused or hibernated) — resume/wake it first"

const maxWakes = 2

// Previews configures the previews of sandboxes.
type Previews struct {
	Suffix string // of host names
	// Awake wakes a hibernated sandbox and returns once it runs. Only the leader
	// calls it.
	Awake  func(ctx context.Context, sandboxID string) error
	Tokens authn.PreviewTokens
}

// preview is a visit to a port of a sandbox.
type preview struct {
	*Edge
	name  Name
	wakes int
}

func (e *Edge) servePreview(w http.ResponseWriter, r *http.Request) {
	name, ok := Parse(r.Host, e.cfg.Previews.Suffix)
	if !ok {
		e.refuse(w, r, http.StatusNotFound, "not found", "a preview's host name is <port>-<sandbox_id>."+e.cfg.Previews.Suffix)
		return
	}
	if !e.enter(name.SandboxID, e.cfg.MaxRequests) {
		w.Header().Set("Retry-After", "1")
		e.refuse(w, r, http.StatusServiceUnavailable, "too many requests at once to this sandbox", "")
		return
	}
	defer e.leave(name.SandboxID)
	e.serve(w, r, &preview{Edge: e, name: name})
}

// situation is what a sandbox's status means for a request.
type situation int

const (
	ready situation = iota
	unknown
	busy
	gone
	paused
	asleep
)

func (p *preview) look() (target, situation) {
	s, address, ok := p.cfg.Find(p.name.SandboxID)
	if !ok || s.Owner != nil { // only its owner may reach a managed sandbox
		return target{}, unknown
	}
	t := target{sandbox: s, address: address, port: p.name.Port}
	switch s.Status {
	case record.SandboxRunning:
		if address != "" {
			return t, ready
		}
		return t, gone
	case record.SandboxPaused:
		return t, paused
	case record.SandboxHibernated:
		return t, asleep
	case record.SandboxStarting:
		return t, busy
	}
	return t, gone
}

// find implements visit.
func (p *preview) find(w http.ResponseWriter, r *http.Request) (target, step) {
	for {
		to, status := p.look()
		switch {
		case status != ready && p.elsewhere(r):
			// This copy may lag behind: the sandbox may have just been created or
			// resumed.
			return to, away
		case status == unknown:
			p.refuse(w, r, http.StatusNotFound, "not found", "")
			return to, over
		case !p.authorized(w, r, p.name, to.sandbox):
			return to, over
		case status == busy:
			w.Header().Set("Retry-After", "1")
			p.refuse(w, r, http.StatusServiceUnavailable, "sandbox is starting", "")
			return to, over
		case status == gone:
			p.refuse(w, r, http.StatusNotFound, "sandbox not found or not running", "its status is "+string(to.sandbox.Status))
			return to, over
		case status == paused:
			p.refuse(w, r, http.StatusConflict, errPaused, "")
			return to, over
		case status == ready:
			return to, send
		}
		if !p.wake(w, r) {
			return to, over
		}
	}
}

// wake wakes the sandbox; otherwise it answers.
func (p *preview) wake(w http.ResponseWriter, r *http.Request) bool {
	p.wakes++
	err := p.cfg.Previews.Awake(hostapi.WithRequestID(r.Context(), r.Header.Get(headerRequestID)), p.name.SandboxID)
	if err == nil && p.wakes <= maxWakes {
		return true
	}
	p.unwoken.Do(func() {
		p.cfg.Log.WarnContext(r.Context(), "preview could not wake the sandbox",
			"request_id", r.Header.Get(headerRequestID), "sandbox_id", hostapi.ShortID(p.name.SandboxID), "error", err)
	})
	switch apierror.CodeOf(err) {
	case apierror.EQuota: // its workspace is paused
		w.Header().Set("Retry-After", retrySuspended)
		p.refuse(w, r, http.StatusServiceUnavailable, "workspace is paused", "")
		return false
	case apierror.ERateLimited, apierror.EUnprocessable: // its month is spent; its saved memory is of no use
		w.Header().Set("Retry-After", retrySuspended)
	default:
		w.Header().Set("Retry-After", "1")
	}
	p.refuse(w, r, http.StatusServiceUnavailable, "sandbox could not be woken", "")
	return false
}

// serves implements visit.
func (p *preview) serves(target) bool {
	_, s := p.look()
	return s == ready
}

// again implements visit.
func (p *preview) again(a *attempt) (now, later bool) { return false, a.retryable() }

// forward implements visit.
func (p *preview) forward(w http.ResponseWriter, r *http.Request) { p.cfg.Forward.ServeHTTP(w, r) }

// fail implements visit.
func (p *preview) fail(w http.ResponseWriter, r *http.Request, a *attempt) {
	if a.stopped.Load() {
		if _, now := p.look(); now == paused {
			p.refuse(w, r, http.StatusConflict, errPaused, "")
			return
		}
	}
	p.cfg.Log.DebugContext(r.Context(), "preview failed", "request_id", r.Header.Get(headerRequestID), "sandbox_id", hostapi.ShortID(p.name.SandboxID), "port", p.name.Port, "error", a.err)
	var timeout net.Error
	switch {
	case hostapi.HasCode(a.err, hostapi.CodePortClosed):
		p.refuse(w, r, http.StatusBadGateway, "port is closed", "nothing in the sandbox listens on port "+strconv.Itoa(p.name.Port))
	case hosts.Unreachable(a.err):
		w.Header().Set("Retry-After", "1")
		p.refuse(w, r, http.StatusBadGateway, "agent unreachable", "")
	case errors.As(a.err, &timeout) && timeout.Timeout():
		p.refuse(w, r, http.StatusGatewayTimeout, "the sandbox does not answer", "no response began within "+headerTimeout.String())
	default:
		p.refuse(w, r, http.StatusBadGateway, "the sandbox broke off", "")
	}
}
