package agent

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// maxTransfers bounds the requests that may wait for a disk or for a caller.
// Each may hold a thread: a workload can make a file system that never answers.
// maxFollowers bounds those that wait for new output besides: a client may keep one for each
// of its commands, and they must not keep others from files.
const (
	maxTransfers = 128
	maxFollowers = 128
)

// cuts are requests that last; each function ends one.
type cuts map[*func()]struct{}

var errBusy = errors.New("too many requests at once")

// transfer registers a request that may take long. Its context ends when the
// caller disconnects, and at a new identity: the caller then belongs to the guest
// that this one was restored from, and its connection would stay silent for ever.
// Where ok is false, the request has been answered.
func (s *Server) transfer(w http.ResponseWriter, r *http.Request) (ctx context.Context, leave func(), ok bool) {
	return s.register(w, r, s.transfers, maxTransfers)
}

// outputs registers a request for output, which may wait for more.
func (s *Server) outputs(w http.ResponseWriter, r *http.Request, follow bool) (ctx context.Context, leave func(), ok bool) {
	if !follow {
		return s.transfer(w, r)
	}
	return s.register(w, r, s.followers, maxFollowers)
}

func (s *Server) register(w http.ResponseWriter, r *http.Request, in cuts, most int) (ctx context.Context, leave func(), ok bool) {
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
	full := len(in) >= most
	if !full {
		in[key] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		cancel()
		fail(w, http.StatusServiceUnavailable, errBusy)
		return nil, nil, false
	}
	return ctx, func() {
		s.mu.Lock()
		delete(in, key)
		s.mu.Unlock()
		cancel()
	}, true
}
