package httpapi

import (
	"net/http"
	"strings"

	"github.com/berth-cloud/berth/controlplane/api"
)

// Routing tells what the table of routes says of a request, for whoever stands
// before the API.
type Routing struct{ mux *http.ServeMux }

// ServeHTTP implements http.Handler; a mux finds handlers, and nothing calls them.
func (route) ServeHTTP(http.ResponseWriter, *http.Request) {}

// NewRouting reads the table.
func NewRouting() *Routing {
	r := &Routing{mux: http.NewServeMux()}
	for _, rt := range routes() {
		r.mux.Handle(rt.method+" "+muxPath(rt.path), rt)
	}
	return r
}

// muxPath is a path of gin's in net/http's form.
func muxPath(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if name, ok := strings.CutPrefix(p, ":"); ok {
			parts[i] = "{" + name + "}"
		}
	}
	return strings.Join(parts, "/")
}

func (r *Routing) find(req *http.Request) (route, bool) {
	h, _ := r.mux.Handler(req) // for a path that is not clean it is a redirection
	rt, ok := h.(route)
	return rt, ok
}

// AnyReplica reports whether every replica answers the request for itself.
func (r *Routing) AnyReplica(req *http.Request) bool {
	rt, ok := r.find(req)
	return ok && rt.doc.anyReplica
}

// Repeatable reports whether the request may be done twice: it changes nothing,
// or the second time answers with what the first has made. A request that is
// upgraded starts something each time.
func (r *Routing) Repeatable(req *http.Request) bool {
	rt, ok := r.find(req)
	switch {
	case !ok, rt.doc.websocket, req.Header.Get("Upgrade") != "":
		return false
	case rt.method == http.MethodGet:
		return true
	}
	return rt.doc.idempotent && req.Header.Get(api.HeaderIdempotencyKey) != ""
}
