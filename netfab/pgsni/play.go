package pgsni

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// maxSASL bounds a client's SASL message in bytes, as PostgreSQL's
// PG_MAX_SASL_MESSAGE_LENGTH does.
const maxSASL = 1024

// decoy plays the login of a database that does not exist until the password is
// refused, in the words and the time of one that does. checks says whether it is
// the router that checks passwords there.
func (c *conn) decoy(st *startup, checks bool) error {
	user := st.get("user")
	s := &scramServer{user: user, verifier: decoyVerifier(c.router.cfg.DecoySecret, c.name, user)}
	r := &rhythm{until: c.router.life.Done(), first: &c.router.firstAnswer, later: &c.router.laterAnswer}
	if checks {
		s.binding = endPointBinding(c.wire.leaf)
		r = &rhythm{}
	}
	_, _, err := c.play(s, st, r)
	return err
}

// checkLogin checks the client's password by the backend's verifier, without the
// server. It answers nil where the server has to do it.
func (c *conn) checkLogin(v Verifying, st *startup) (*checked, error) {
	user := st.get("user")
	verifier, err := c.verifier(v, user)
	switch {
	case errors.Is(err, ErrPassThrough):
		return nil, nil
	case errors.Is(err, ErrUnknown):
		return nil, c.decoy(st, true)
	case err != nil:
		return nil, err
	}
	s := &scramServer{user: user, verifier: verifier, binding: endPointBinding(c.wire.leaf)}
	final, clientKey, err := c.play(s, st, &rhythm{})
	if err != nil {
		return nil, err
	}
	return &checked{final: final, client: scramClient{verifier: verifier, clientKey: clientKey}}, nil
}

// play does the server's part of a login up to the client's proof.
func (c *conn) play(s *scramServer, st *startup, r *rhythm) (final string, clientKey []byte, err error) {
	_ = c.wire.SetDeadline(time.Now().Add(c.router.cfg.AuthTimeout))
	defer func() { _ = c.wire.SetDeadline(time.Time{}) }()
	r.answer(time.Since(c.began))
	opening := c.negotiation(st)
	if err := c.send(append(opening, &pgproto3.AuthenticationSASL{AuthMechanisms: s.mechanisms()})...); err != nil {
		return "", nil, err
	}
	mechanism, message, err := c.initialResponse()
	if err != nil {
		return "", nil, err
	}
	r.answer(0)
	reply, err := s.first(mechanism, message)
	if err != nil {
		return "", nil, err
	}
	if err := c.send(&pgproto3.AuthenticationSASLContinue{Data: []byte(reply)}); err != nil {
		return "", nil, err
	}
	response, err := c.saslMessage()
	if err != nil {
		return "", nil, err
	}
	r.answer(0)
	return s.final(string(response))
}

// negotiation is the answer to a client that asks for more protocol than the
// servers have.
func (c *conn) negotiation(st *startup) []pgproto3.BackendMessage {
	newest := c.router.cfg.ServerMinor
	if options := st.protocolOptions(); st.minor() > newest || len(options) > 0 {
		return []pgproto3.BackendMessage{&pgproto3.NegotiateProtocolVersion{
			NewestMinorProtocol: protocolMajor<<16 | min(newest, st.minor()), UnrecognizedOptions: options,
		}}
	}
	return nil
}

// initialResponse reads a SASLInitialResponse. A client may leave its message
// out; it is then asked for it.
func (c *conn) initialResponse() (mechanism, message string, err error) {
	body, err := c.saslMessage()
	if err != nil {
		return "", "", err
	}
	name, rest, ok := bytes.Cut(body, []byte{0})
	if !ok || len(rest) < 4 {
		return "", "", badMessage()
	}
	length := int32(binary.BigEndian.Uint32(rest)) // -1 says that there is none
	rest = rest[4:]
	if length >= 0 {
		if int(length) != len(rest) {
			return "", "", badMessage()
		}
		return string(name), string(rest), nil
	}
	if err := c.send(&pgproto3.AuthenticationSASLContinue{}); err != nil {
		return "", "", err
	}
	body, err = c.saslMessage()
	return string(name), string(body), err
}

func badMessage() *Refusal { return refuse(codeProtocolViolation, "invalid message format") }

// saslMessage reads the body of one SASL message.
func (c *conn) saslMessage() ([]byte, error) {
	kind, body, err := readMessage(c, maxSASL)
	switch {
	case isTimeout(err):
		return nil, refuse(codeQueryCanceled, messageAuthTimeout)
	case err != nil:
		return nil, err
	case kind != 'p':
		return nil, refuse(codeProtocolViolation, "expected SASL response, got message type %d", kind)
	}
	return body, nil
}

// send sends messages to the client in one piece.
func (c *conn) send(messages ...pgproto3.BackendMessage) error {
	out, err := encode(messages...)
	if err != nil {
		return err
	}
	_, err = c.stream.Write(out)
	return err
}

func encode[M interface{ Encode([]byte) ([]byte, error) }](messages ...M) (out []byte, err error) {
	for _, m := range messages {
		if out, err = m.Encode(out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readMessage reads one message whose body has at most limit bytes.
func readMessage(r io.Reader, limit int) (kind byte, body []byte, err error) {
	var head [messageHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	length := int64(binary.BigEndian.Uint32(head[1:])) - 4
	if length < 0 || length > int64(limit) {
		return head[0], nil, fmt.Errorf("%w: message %q of %d bytes", errNotOurs, head[0], length)
	}
	body = make([]byte, length)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}
