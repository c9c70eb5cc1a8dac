package guestclient

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// errNoDatagrams says that an identity must go by a connection.
var errNoDatagrams = errors.New("no answer to datagrams")

// Waits for an answer, doubled each time, before a datagram is sent again, and
// before a connection is tried. A guest that was resumed a moment ago may not
// have been sent the first; one on a busy host takes its time.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 4 * time.Second
)

// identityByDatagram returns errNoDatagrams where it cannot tell what the guest
// makes of it: to give the same identity again, by a connection, does no harm.
func (c *Client) identityByDatagram(ctx context.Context, id guestapi.Identity) (guestapi.IdentityConfirmation, error) {
	var done guestapi.IdentityConfirmation
	if c.datagrams == nil {
		return done, errNoDatagrams
	}
	conn, err := c.datagrams(ctx)
	if err != nil {
		return done, errors.Join(errNoDatagrams, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	msg := make([]byte, guestapi.CallIDSize, 2<<10)
	if _, err := rand.Read(msg); err != nil {
		return done, err
	}
	answer := make([]byte, maxAnswer)
	for wait := firstWait; wait <= lastWait; wait *= 2 {
		id.UnixNanos = time.Now().UnixNano()
		raw, err := json.Marshal(&id)
		if err != nil {
			return done, err
		}
		msg = append(msg[:guestapi.CallIDSize], raw...)
		if len(msg) > guestapi.MaxIdentityDatagram {
			return done, errNoDatagrams
		}
		body, err := exchange(conn, msg, answer, wait)
		switch {
		case ctx.Err() != nil:
			return done, fmt.Errorf("guest %s: %w", guestapi.PathIdentity, context.Cause(ctx))
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
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
	return done, errNoDatagrams
}

// exchange sends a datagram and returns the answer to it, from its status on.
func exchange(conn net.Conn, msg, buf []byte, wait time.Duration) ([]byte, error) {
	if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(msg); err != nil {
		return nil, err
	}
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		if n >= guestapi.CallIDSize+2 && bytes.Equal(buf[:guestapi.CallIDSize], msg[:guestapi.CallIDSize]) {
			return buf[guestapi.CallIDSize:n], nil
		}
	}
}
