package agent

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// maxTransfers bounds the requests that may wait for a disk or for a caller.
// Each may hold a thread: a tenant can make a file system that never answers.
const maxTransfers = 128

var errBusy = errors.New("too many requests at once")

// transfer enters a request that may last. It ends when its caller goes away,
// and at a new identity: the caller then is one of the guest that this one was
// restored from, and its connection here would stay silent for ever. Where ok is
// false, the request is answered.
func (s *Server) transfer(w http.ResponseWriter, r *http.Request) (ctx context.Context, leave func(), ok bool) {
	ctx, cancel := context.WithCancel(r.Context())
	conn := http.NewResponseController(w)
	cut := func() {
		cancel()
		past := time.Unix(1, 0)
		_ = conn.SetReadDeadline(past)
		_ = conn.SetWriteDeadline(past)
	}
	key := &cut
	s.mu.Lock()
	full := len(s.transfers) >= maxTransfers
	if !full {
		if s.transfers == nil {
			s.transfers = map[*func()]struct{}{}
		}
		s.transfers[key] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		cancel()
		fail(w, http.StatusServiceUnavailable, errBusy)
		return nil, nil, false
	}
	return ctx, func() {
		s.mu.Lock()
		delete(s.transfers, key)
		s.mu.Unlock()
		cancel()
	}, true
}
