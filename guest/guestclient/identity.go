package guestclient

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// errNoDatagrams says that an identity must go by a connection.
var errNoDatagrams = errors.New("no answer to datagrams")

// Waits for an answer, doubled each time, before a datagram is sent again, and
// before a connection is tried. A guest on a busy host takes its time.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 4 * time.Second
)

// connectionTries is how often an identity goes by a connection that is cut.
const connectionTries = 8

// What a message takes to its guest is what the guest's clock is late by
// afterwards, at most. A busy guest is told the time again, in the hope of a
// moment in which it is not.
const (
	clockSlack = 30 * time.Millisecond
	clockTries = 5
)

// IdentityCall is a new identity on its way to a guest, once. It serves one
// goroutine at a time.
type IdentityCall struct {
	client *Client
	id     guestapi.Identity
	began  time.Time // when it was first sent
	conn   net.Conn  // of the datagrams
	lost   error     // why there is none
	msg    []byte
}

// NewIdentityCall prepares to give the guest a new identity.
func (c *Client) NewIdentityCall(id guestapi.Identity) *IdentityCall {
	return &IdentityCall{client: c, id: id}
}

// Send sends the identity, with the time of now, and waits for nothing. Of a guest
// that stands still it is the first that it sees when it goes on, which must be
// soon. Whether it can be sent, Wait tells; it sends what was not.
func (i *IdentityCall) Send(ctx context.Context) {
	i.began = time.Now()
	if i.lost = i.open(ctx); i.lost == nil {
		i.lost = i.write()
	}
}

// Wait returns what the guest confirmed, and ends the call.
func (i *IdentityCall) Wait(ctx context.Context) (guestapi.IdentityConfirmation, error) {
	done, slack, err := i.wait(ctx)
	for tries := 1; err == nil && slack > clockSlack && tries < clockTries; tries++ {
		// The guest has its identity, and knows that this is the same.
		if _, slack, err = i.client.NewIdentityCall(i.id).wait(ctx); err != nil {
			return done, fmt.Errorf("set the clock again: %w", err)
		}
	}
	return done, err
}

// Close ends a call that is not waited for, or was already.
func (i *IdentityCall) Close() {
	if i.conn != nil {
		i.conn.Close()
	}
}

// wait returns by how much the guest's clock is late at most.
func (i *IdentityCall) wait(ctx context.Context) (done guestapi.IdentityConfirmation, slack time.Duration, err error) {
	defer i.Close()
	if i.began.IsZero() {
		i.Send(ctx)
	}
	sent := i.began
	defer func() { slack = time.Since(sent) - time.Duration(done.TookMicrosecond)*time.Microsecond }()
	done, err = i.byDatagram(ctx)
	if !errors.Is(err, errNoDatagrams) {
		return done, 0, err
	}
	for tries := 1; ; tries++ {
		err := i.client.call(ctx, http.MethodPost, guestapi.PathIdentity, func() ([]byte, error) {
			sent = time.Now()
			i.id.UnixNanos = sent.UnixNano()
			return json.Marshal(&i.id)
		}, &done)
		if tries == connectionTries || !wasCut(err) {
			return done, 0, err
		}
	}
}

// wasCut tells whether the guest ended the connection before it answered. One
// that gets to the datagrams after all cuts, with ResetTCP, every connection
// there is: this one too. One that had no processor for long finds that the
// request took too long to come.
func wasCut(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func (i *IdentityCall) open(ctx context.Context) error {
	if i.client.datagrams == nil {
		return errNoDatagrams
	}
	i.msg = make([]byte, guestapi.CallIDSize, 2<<10)
	if _, err := rand.Read(i.msg); err != nil {
		return err
	}
	var err error
	if i.conn, err = i.client.datagrams(ctx); err != nil {
		return errors.Join(errNoDatagrams, err)
	}
	return nil
}

// write sends the datagram, with the time of now. Of an identity that is too large
// for one it sends the id: a guest that polls for a datagram does nothing else.
func (i *IdentityCall) write() error {
	i.id.UnixNanos = time.Now().UnixNano()
	raw, err := json.Marshal(&i.id)
	if err != nil {
		return err
	}
	tooLarge := guestapi.CallIDSize+len(raw) > guestapi.MaxIdentityDatagram
	if tooLarge {
		raw = nil
	}
	i.msg = append(i.msg[:guestapi.CallIDSize], raw...)
	if _, err := i.conn.Write(i.msg); tooLarge || err != nil {
		return errors.Join(errNoDatagrams, err)
	}
	return nil
}

// byDatagram returns errNoDatagrams where it cannot tell what the guest makes of
// it: to give the same identity again, by a connection, does no harm.
func (i *IdentityCall) byDatagram(ctx context.Context) (done guestapi.IdentityConfirmation, err error) {
	if i.lost != nil {
		return done, i.lost
	}
	defer context.AfterFunc(ctx, func() { i.conn.Close() })()
	answer := make([]byte, maxAnswer)
	var body []byte
	for wait := firstWait; ; wait *= 2 {
		body, err = i.read(answer, wait)
		if !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil || 2*wait > lastWait {
			break
		}
		if err = i.write(); err != nil {
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return done, fmt.Errorf("guest %s: %w", guestapi.PathIdentity, context.Cause(ctx))
	case err != nil: // the port is closed, say
		return done, errors.Join(errNoDatagrams, err)
	}
	if status := int(binary.BigEndian.Uint16(body)); status != http.StatusOK {
		return done, asError(status, body[2:])
	}
	if err := json.Unmarshal(body[2:], &done); err != nil {
		return done, fmt.Errorf("guest %s: decode answer: %w", guestapi.PathIdentity, err)
	}
	return done, nil
}

// read returns the answer, from its status on.
func (i *IdentityCall) read(buf []byte, wait time.Duration) ([]byte, error) {
	if err := i.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	for {
		n, err := i.conn.Read(buf)
		if err != nil {
			return nil, err
		}
		if n >= guestapi.CallIDSize+2 && bytes.Equal(buf[:guestapi.CallIDSize], i.msg[:guestapi.CallIDSize]) {
			return buf[guestapi.CallIDSize:n], nil
		}
	}
}
