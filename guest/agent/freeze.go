package agent

import (
	"errors"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
)

const (
	// FreezeHold is how long a frozen guest waits for its identity by default.
	FreezeHold = 30 * time.Second
	maxHold    = 10 * time.Minute
)

var errTooLate = errors.New("the caller no longer waits")

// freeze stops the workload's processes before the guest is captured.
func (s *Server) freeze(w http.ResponseWriter, r *http.Request) {
	var f guestapi.Freeze
	if err := decode(w, r, &f); err != nil {
		badRequest(w, err)
		return
	}
	if f.HoldMS <= 0 || f.HoldMS > maxHold.Milliseconds() || f.WaitMS <= 0 || f.WaitMS > f.HoldMS {
		badRequest(w, errors.New("hold_ms and wait_ms: want at least 1, wait_ms no more than hold_ms, and ten minutes at most"))
		return
	}
	// Not while an identity is applied, which ends with a thaw.
	s.identityMu.Lock()
	defer s.identityMu.Unlock()
	if time.Now().UnixNano() > f.NotAfter {
		fail(w, http.StatusConflict, errTooLate)
		return
	}
	moving, err := s.cfg.Freezer.Freeze(ms(f.HoldMS), ms(f.WaitMS))
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	reply(w, http.StatusOK, guestapi.Frozen{Moving: moving})
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
