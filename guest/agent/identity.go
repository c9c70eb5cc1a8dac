package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/identity"
)

// identity gives the guest a new identity and confirms it.
func (s *Server) identity(w http.ResponseWriter, r *http.Request) {
	received := time.Now()
	var id guestapi.Identity
	if err := decode(w, r, &id); err != nil {
		badRequest(w, err)
		return
	}
	if err := identity.Check(&id); err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	s.identityMu.Lock()
	defer s.identityMu.Unlock()
	s.mu.Lock()
	current := s.generation
	s.mu.Unlock()
	if id.Generation < current {
		fail(w, http.StatusConflict, fmt.Errorf("generation %d is over, this guest is at %d", id.Generation, current))
		return
	}
	if id.Generation != current {
		s.detachAll()
	}
	done, err := s.guest.Apply(r.Context(), &id, received, remoteOf(r))
	if err == nil {
		err = saveState(s.cfg.StateDir, state{Generation: id.Generation, Env: id.Env})
	}
	if err != nil {
		s.cfg.Log.Error("identity not taken on", "generation", id.Generation, "error", err)
		fail(w, http.StatusInternalServerError, err)
		return
	}
	s.mu.Lock()
	s.generation, s.env = id.Generation, id.Env
	s.mu.Unlock()
	done.TookMicrosecond = time.Since(received).Microseconds()
	reply(w, http.StatusOK, done)
}

// state is what outlives an agent.
type state struct {
	Generation uint64            `json:"generation"`
	Env        map[string]string `json:"env"`
}

const stateFile = "identity.json"

// loadState returns the zero state before the first identity.
func loadState(dir string) (state, error) {
	var st state
	raw, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return st, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &st)
	}
	if err != nil {
		return st, fmt.Errorf("read the last identity: %w", err)
	}
	return st, nil
}

func saveState(dir string, st state) error {
	raw, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return identity.WriteFile(filepath.Join(dir, stateFile), raw, 0o600)
}
