package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/identity"
)

// identityLine begins the request that the front answers itself.
const identityLine = "POST " + guestapi.PathIdentity + " HTTP/1.1\r\n"

// restOfBody bounds the wait for the rest of an identity whose beginning came.
const restOfBody = 2 // seconds

// answerIdentity is the identity request without net/http; see front.
func (s *Server) answerIdentity(fd int, remote netip.AddrPort, buf []byte, n int) (int, bool) {
	received := arrival(fd)
	waits := false
	for {
		body, _, ok := parseRequest(buf[:n], identityLine)
		if !ok || n == len(buf) {
			return n, false
		}
		if body != nil {
			status, answer := s.takeIdentity(body, received, remote)
			writeAnswer(fd, status, answer)
			return n, true
		}
		if !waits {
			waits = true
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: restOfBody})
		}
		more, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || more <= 0 {
			return n, false // net/http has longer time-outs, and the words for it
		}
		n += more
	}
}

// arrival is when the last bytes on a connection came. The difference from now
// is what it took to wake the agent: tens of milliseconds where the guest's
// code is translated on its way, and all of them would be missing on the clock.
func arrival(fd int) time.Time {
	now := time.Now()
	info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO)
	if err != nil || info.Last_data_recv > 1000 {
		return now
	}
	return now.Add(-time.Duration(info.Last_data_recv) * time.Millisecond)
}

func writeAnswer(fd, status int, body []byte) {
	head := make([]byte, 0, 128+len(body))
	head = append(head, "HTTP/1.1 "...)
	head = strconv.AppendInt(head, int64(status), 10)
	head = append(head, " \r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "...)
	head = strconv.AppendInt(head, int64(len(body)), 10)
	head = append(head, "\r\n\r\n"...)
	head = append(head, body...)
	// It fits into an empty send buffer; a caller that is gone has no use for it.
	_, _ = unix.Write(fd, head)
}

// identity is the same by net/http, for requests that the front does not know.
func (s *Server) identity(w http.ResponseWriter, r *http.Request) {
	received := time.Now()
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		badRequest(w, err)
		return
	}
	status, answer := s.takeIdentity(raw, received, remoteOf(r))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

// takeIdentity gives the guest a new identity and returns the answer.
func (s *Server) takeIdentity(raw []byte, received time.Time, remote netip.AddrPort) (int, []byte) {
	s.identityMu.Lock()
	defer s.identityMu.Unlock()
	var id guestapi.Identity
	err := decodeIdentity(raw, s.scratch[:], &id)
	if err == nil {
		err = identity.Check(&id)
	}
	if err != nil {
		return refusal(http.StatusBadRequest, err)
	}
	s.mu.Lock()
	current := s.generation
	s.mu.Unlock()
	if id.Generation < current {
		return refusal(http.StatusConflict, fmt.Errorf("generation %d is over, this guest is at %d", id.Generation, current))
	}
	if id.Generation != current {
		s.detachAll()
	}
	done, err := s.cfg.Guest.Apply(&id, received, remote)
	if err != nil {
		s.cfg.Log.Error("identity not taken on", "generation", id.Generation, "error", err)
		return refusal(http.StatusInternalServerError, err)
	}
	s.mu.Lock()
	s.generation, s.env = id.Generation, id.Env
	s.mu.Unlock()
	done.TookMicrosecond = time.Since(received).Microseconds()
	return http.StatusOK, encodeConfirmation(&done)
}

func refusal(status int, err error) (int, []byte) {
	raw, _ := json.Marshal(guestapi.Error{Error: err.Error()})
	return status, raw
}

// encodeConfirmation writes what encoding/json would.
func encodeConfirmation(c *guestapi.IdentityConfirmation) []byte {
	b := make([]byte, 0, 192)
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
