package pgsni

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// checked is a login that the router has checked and the server has yet to.
type checked struct {
	client scramClient
	final  string // server-final-message for the client
}

// errBrokenOff means that the server went away during a login.
var errBrokenOff = errors.New("the server broke off the login")

// errStarting means that the server takes no logins yet: it was booted a moment ago, or
// recovers from a crash. It comes with what the server said.
var errStarting = errors.New("the server is starting")

// login logs in at the server in the client's name, up to where the server says
// AuthenticationOk, which the relay passes on.
func (l *checked) login(r *relay) error {
	r.limit(time.Now().Add(r.router.cfg.AuthTimeout))
	for {
		kind, body, err := readMessage(r.from, maxLoginMessage)
		switch {
		case isTimeout(err):
			return refuse(codeCannotConnectNow, messageUnavailable)
		case err != nil:
			return fmt.Errorf("%w: %w", errBrokenOff, err)
		case kind == 'E':
			return l.refused(r, body)
		case kind != 'R' || len(body) < 4: // NegotiateProtocolVersion, a notice
			continue
		}
		done, err := l.answer(r, binary.BigEndian.Uint32(body), body[4:])
		if done || err != nil {
			return err
		}
	}
}

// answer answers one authentication message.
func (l *checked) answer(r *relay, kind uint32, data []byte) (done bool, err error) {
	switch kind {
	case authSASL:
		if !bytes.Contains(data, []byte(mechanismPlain+"\x00")) {
			return false, fmt.Errorf("%w: no %s", errBadServer, mechanismPlain)
		}
		return false, l.send(r, &pgproto3.SASLInitialResponse{AuthMechanism: mechanismPlain, Data: []byte(l.client.first())})
	case authContinue:
		message, err := l.client.final(string(data))
		if errors.Is(err, errStaleVerifier) {
			r.router.cfg.Log.Warn("verifier out of date", "name", r.session.Name, "user", r.session.User)
			return false, wrongPassword(r.session.User)
		}
		if err != nil {
			return false, err
		}
		return false, l.send(r, &pgproto3.SASLResponse{Data: []byte(message)})
	case authFinal:
		if err := l.client.verify(string(data)); err != nil {
			return false, err
		}
		return true, r.send(&pgproto3.AuthenticationSASLFinal{Data: []byte(l.final)})
	}
	return false, fmt.Errorf("%w: authentication method %d", errBadServer, kind)
}

// refused is the server's refusal, as the client gets it.
func (l *checked) refused(r *relay, body []byte) error {
	e, err := r.readError(body)
	if err != nil {
		return err
	}
	refusal := &Refusal{Code: e.Code, Message: e.Message, Detail: e.Detail, Hint: e.Hint}
	if e.Code == codeCannotConnectNow {
		return fmt.Errorf("%w: %w", errStarting, refusal)
	}
	return refusal
}

func (l *checked) send(r *relay, m pgproto3.FrontendMessage) error {
	out, err := encode(m)
	if err != nil {
		return err
	}
	if _, err = r.server.Write(out); err != nil {
		return fmt.Errorf("%w: %w", errBrokenOff, err)
	}
	return nil
}

// startupFor is the StartupMessage that the server gets after a login that the
// router has negotiated by itself: of a version that the server has, and without
// protocol options, which the client was told are not there.
func startupFor(st *startup, newest uint32) []byte {
	out := binary.BigEndian.AppendUint32(make([]byte, 4), protocolMajor<<16|min(st.minor(), newest))
	for _, p := range st.params {
		if !isProtocolOption(p.name) {
			out = append(append(out, p.name...), 0)
			out = append(append(out, p.value...), 0)
		}
	}
	out = append(out, 0)
	binary.BigEndian.PutUint32(out, uint32(len(out)))
	return out
}
