package edge

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/berth-cloud/berth/controlplane/core"
)

// headerRequestID names a request, here and on the sandbox's host.
const headerRequestID = "X-Request-Id"

// internal is what the names of our own headers begin with.
const internal = "Berth-"

// disown removes from what a program answers the headers that are ours to set:
// replicas believe each other what they say with them.
func disown(h http.Header) {
	for k := range h {
		if strings.HasPrefix(k, internal) {
			delete(h, k)
		}
	}
	delete(h, headerRequestID)
}

// fewFields refuses a head of too many lines.
func fewFields(h http.Header) error {
	n := 0
	for _, values := range h {
		n += len(values)
	}
	if n > maxFields {
		return fmt.Errorf("the head of the response has %d lines, at most %d", n, maxFields)
	}
	return nil
}

// nameRequest gives a request an id: the client's own where it is usable.
func nameRequest(r *http.Request) {
	given := ""
	if v := r.Header.Values(headerRequestID); len(v) == 1 {
		given = v[0]
	}
	r.Header.Set(headerRequestID, core.RequestID(given))
}
