package httpapi

import (
	"net/http"
	"strings"

	"github.com/berth-cloud/berth/controlplane/api"
)

// Routing applies the table of routes to requests, for the handlers in front of the
// API.
type Routing struct{ mux *http.ServeMux }

// ServeHTTP implements http.Handler, so that a mux can find routes. It is never
// called.
func (route) ServeHTTP(http.ResponseWriter, *http.Request) {}

// NewRouting returns the table's Routing.
func NewRouting() *Routing {
	r := &Routing{mux: http.NewServeMux()}
	for _, rt := range routes() {
		r.mux.Handle(rt.method+" "+muxPath(rt.path), rt)
	}
	return r
}

// muxPath converts gin's form of a path to net/http's.
func muxPath(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if name, ok := strings.CutPrefix(p, ":"); ok {
			parts[i] = "{" + name + "}"
		}
		if name, ok := strings.CutPrefix(p, "*"); ok {
			parts[i] = "{" + name + "...}"
		}
	}
	return strings.Join(parts, "/")
}

func (r *Routing) find(req *http.Request) (route, bool) {
	h, _ := r.mux.Handler(req) // for a path that is not clean it is a redirect
	rt, ok := h.(route)
	return rt, ok
}

// AnyReplica reports whether any replica may answer the request.
func (r *Routing) AnyReplica(req *http.Request) bool {
	rt, ok := r.find(req)
	return ok && rt.doc.anyReplica
}

// Repeatable reports whether the request may be executed twice: it changes nothing,
// or the second execution returns the first answer. An upgraded request starts
// something each time, and what a tenant's program does is not known.
func (r *Routing) Repeatable(req *http.Request) bool {
	rt, ok := r.find(req)
	switch {
	case !ok, rt.doc.websocket, rt.doc.proxied, req.Header.Get("Upgrade") != "":
		return false
	case rt.method == http.MethodGet:
		return true
	case rt.access == signed:
		return true // an event that is received again has no effect, and git hosts send none again
	}
	return rt.doc.idempotent && req.Header.Get(api.HeaderIdempotencyKey) != ""
}
