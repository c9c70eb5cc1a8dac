package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/identity"
)

// identity is how one comes that is too large for a datagram, and how a host
// tries whose datagrams are not answered.
func (s *Server) identity(w http.ResponseWriter, r *http.Request) {
	received := time.Now()
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		badRequest(w, err)
		return
	}
	status, answer, _ := s.takeIdentity(nil, raw, received, remoteOf(r))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

// takeIdentity gives the guest a new identity and appends the answer to b; it is a take.
func (s *Server) takeIdentity(b, raw []byte, received time.Time, remote netip.AddrPort) (status int, answer []byte, stayAwake bool) {
	s.identityMu.Lock()
	defer s.identityMu.Unlock()
	id := &s.coming
	err := decodeIdentity(raw, &s.room, id)
	if err == nil {
		err = identity.Check(id)
	}
	if err != nil {
		return refusal(b, http.StatusBadRequest, err)
	}
	if s.life.outlived(id) {
		return refusal(b, http.StatusConflict, fmt.Errorf("generation %d is over, this guest is at %d", id.Generation, s.life.generation))
	}
	if !id.Resumed && !s.life.began(id) {
		s.detachAll()
	}
	done, err := s.cfg.Guest.Apply(id, received, remote)
	if err == nil {
		err = s.settle(id)
	}
	if err != nil {
		s.cfg.Log.Error("identity not taken on", "generation", id.Generation, "error", err)
		return refusal(b, http.StatusInternalServerError, err)
	}
	s.life.begin(id)
	s.mu.Lock()
	s.generation, s.env = id.Generation, id.Env
	s.mu.Unlock()
	done.TookMicrosecond = time.Since(received).Microseconds()
	return http.StatusOK, appendConfirmation(b, &done), id.StayAwake
}

func refusal(b []byte, status int, err error) (int, []byte, bool) {
	raw, _ := json.Marshal(guestapi.Error{Error: err.Error()})
	return status, append(b, raw...), false
}

// appendConfirmation appends what encoding/json would write.
func appendConfirmation(b []byte, c *guestapi.IdentityConfirmation) []byte {
	field := func(name string, value int64) {
		b = append(b, name...)
		b = strconv.AppendInt(b, value, 10)
	}
	b = append(b, `{"generation":`...)
	b = strconv.AppendUint(b, c.Generation, 10)
	field(`,"entropy_bits":`, int64(c.EntropyBits))
	field(`,"clock_stepped_ms":`, c.ClockSteppedMS)
	field(`,"connections_cut":`, int64(c.ConnectionsCut))
	field(`,"took_microseconds":`, c.TookMicrosecond)
	return append(b, '}')
}
