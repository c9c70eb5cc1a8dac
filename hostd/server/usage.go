package server

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Usage is what the route of usage calls.
type Usage interface {
	// Next returns the batch after one that was written down. now is the leader's clock.
	Next(after hostapi.UsageCursor, now time.Time) (hostapi.UsageBatch, error)
}

func (s *Server) usageRoutes(route func(string, func(*http.Request) (any, error))) {
	route("GET "+hostapi.PathUsage, s.withTerm(s.usage))
}

// usage hands out a batch, and forgets the one before: a deposed leader must not have it
// forgotten.
func (s *Server) usage(r *http.Request) (any, error) {
	if s.cfg.Usage == nil {
		return nil, errNoRoute
	}
	q := r.URL.Query()
	sequence, err := strconv.ParseUint(q.Get("sequence"), 10, 64)
	if err != nil || len(q.Get("epoch")) > hostapi.MaxCluster {
		return nil, fmt.Errorf("%w: want an epoch and a sequence", hosterr.ErrInvalid)
	}
	now, err := time.Parse(time.RFC3339Nano, q.Get("now"))
	if err != nil {
		return nil, fmt.Errorf("%w: now is no time", hosterr.ErrInvalid)
	}
	return s.cfg.Usage.Next(hostapi.UsageCursor{Epoch: q.Get("epoch"), Sequence: sequence}, now)
}
