package pgsni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// maxLoginMessage bounds in bytes what a server says in one message before it is
// ready: parameters, and notices of login triggers.
const maxLoginMessage = 1 << 20

// Kinds of authentication message (manual, "Message Formats").
const (
	authOK       = 0
	authSASL     = 10
	authContinue = 11
	authFinal    = 12
)

// login relays what the server says until it is ready for the first query, or
// closes. Messages that come together go on together.
func (r *relay) login() error {
	r.limit(time.Now().Add(r.router.cfg.AuthTimeout))
	var out []byte
	for said := false; !r.ready; said = true {
		kind, body, err := readMessage(r.from, maxLoginMessage)
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return r.serverClosed(said)
		}
		if err != nil {
			return err
		}
		r.noteAnswer(kind, said)
		if out, err = r.rewrite(out, kind, body); err != nil {
			return err
		}
		if r.ready || r.from.Buffered() == 0 || len(out) >= largeBuffer {
			if _, err := r.stream.Write(out); err != nil {
				return err
			}
			r.toClient.Add(int64(len(out)))
			out = out[:0]
		}
	}
	r.endLogin(outcomeOK, "")
	r.router.cfg.Observe.opened(r.session)
	return nil
}

// serverClosed says how a login ends without a session: the server's last word
// was the reason, or there was none.
func (r *relay) serverClosed(said bool) error {
	if said {
		return nil
	}
	r.router.cfg.Log.Warn("server closed the connection at once", "client", r.addr, "name", r.session.Name)
	return refuse(codeCannotConnectNow, messageUnavailable)
}

// noteAnswer remembers how long the server took, for the logins that are played.
func (r *relay) noteAnswer(kind byte, said bool) {
	switch {
	case r.loggedIn || kind != 'R' && kind != 'E':
	case !said:
		r.router.firstAnswer.note(time.Since(r.began))
	case r.asked.Load() != 0:
		r.router.laterAnswer.note(time.Since(time.Unix(0, r.asked.Load())))
	}
}

// rewrite appends to out what the client gets of a message: the message, but for
// the cancel key, and but for where in the server's source a login failed.
func (r *relay) rewrite(out []byte, kind byte, body []byte) ([]byte, error) {
	switch kind {
	case 'R':
		if len(body) >= 4 && binary.BigEndian.Uint32(body) == authOK {
			if err := r.authenticated(); err != nil {
				return out, err
			}
		}
	case 'K':
		return r.swapKey(out, body)
	case 'E':
		refusal, err := r.readError(body)
		if err != nil {
			return out, err
		}
		if !r.loggedIn {
			return refusal.Encode(out)
		}
	case 'Z':
		r.ready = true
		r.session.Opened = time.Now()
		r.session.Login = r.session.Opened.Sub(r.began)
	}
	out = append(out, kind)
	out = binary.BigEndian.AppendUint32(out, uint32(len(body)+4))
	return append(out, body...), nil
}

// authenticated takes the client off the bound of those that are not logged in
// and under that of those that are.
func (r *relay) authenticated() error {
	if r.loggedIn {
		return fmt.Errorf("%w: a second AuthenticationOk", errNotOurs)
	}
	if !r.router.takeSession() {
		return refuse(codeTooManyConnections, messageTooMany)
	}
	r.loggedIn = true
	r.visitor.leave()
	r.limit(time.Time{})
	return nil
}

// swapKey gives the client a key of the router's own.
func (r *relay) swapKey(out, body []byte) ([]byte, error) {
	if len(body) <= 4 || len(body) > 4+maxSecret {
		return out, fmt.Errorf("%w: cancel key of %d bytes", errNotOurs, len(body))
	}
	real := CancelKey{PID: binary.BigEndian.Uint32(body), Secret: body[4:]}
	r.router.keys.revoke(r.key.PID)
	key, err := r.router.keys.issue(r.backend, real)
	if err != nil {
		return out, err
	}
	r.key = key
	return (&pgproto3.BackendKeyData{ProcessID: key.PID, SecretKey: key.Secret}).Encode(out)
}

// readError reads the server's refusal, without file, line and routine of the
// server's source: a login that is played could not have the right ones.
func (r *relay) readError(body []byte) (*pgproto3.ErrorResponse, error) {
	var e pgproto3.ErrorResponse
	if err := e.Decode(body); err != nil {
		return nil, fmt.Errorf("server's error: %w", err)
	}
	e.File, e.Line, e.Routine = "", 0, ""
	r.sqlstate = e.Code
	return &e, nil
}
