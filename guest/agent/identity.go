package agent

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/identity"
)

// identity gives the guest a new identity, one at a time.
func (s *Server) identity(w http.ResponseWriter, r *http.Request) {
	received := time.Now()
	id, err := readIdentity(w, r)
	if err != nil {
		badRequest(w, err)
		return
	}
	s.identityMu.Lock()
	defer s.identityMu.Unlock()
	if s.current.supersedes(id) {
		fail(w, http.StatusConflict, fmt.Errorf("generation %d is over, this guest is at %d", id.Generation, s.current.generation))
		return
	}
	if !id.Resumed && !s.current.is(id) {
		s.detachAll()
	}
	done, err := s.cfg.Guest.Apply(id, received, remoteOf(r))
	if err != nil {
		s.cfg.Log.Error("identity not taken on", "generation", id.Generation, "error", err)
		fail(w, http.StatusInternalServerError, err)
		return
	}
	s.cfg.Freezer.Thaw()
	s.current.begin(id)
	s.mu.Lock()
	s.generation, s.env = id.Generation, id.Env
	s.mu.Unlock()
	done.TookMicrosecond = time.Since(received).Microseconds()
	reply(w, http.StatusOK, done)
}

// readIdentity reads an identity that can be applied as a whole.
func readIdentity(w http.ResponseWriter, r *http.Request) (*guestapi.Identity, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, guestapi.MaxIdentity))
	if err != nil {
		return nil, err
	}
	id := &guestapi.Identity{}
	if err := id.UnmarshalBinary(raw); err != nil {
		return nil, err
	}
	return id, identity.Check(id)
}
