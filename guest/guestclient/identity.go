package guestclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// identityTries is how often an identity is sent by a connection that is cut.
const identityTries = 8

// The guest's clock is late by what the message took, at most. Where that is too
// much, because the guest was busy, the identity is sent again.
const (
	clockSlack = 30 * time.Millisecond
	clockTries = 5
)

// Identity gives the guest a new identity and returns what it confirmed. The
// clock is read when it is sent.
func (c *Client) Identity(ctx context.Context, id guestapi.Identity) (guestapi.IdentityConfirmation, error) {
	done, slack, err := c.sendIdentity(ctx, &id)
	for tries := 1; err == nil && slack > clockSlack && tries < clockTries; tries++ {
		// The guest has the identity, and recognizes a repeated one.
		if _, slack, err = c.sendIdentity(ctx, &id); err != nil {
			return done, fmt.Errorf("set the clock again: %w", err)
		}
	}
	return done, err
}

// sendIdentity returns by how much the guest's clock is late at most.
func (c *Client) sendIdentity(ctx context.Context, id *guestapi.Identity) (done guestapi.IdentityConfirmation, slack time.Duration, err error) {
	for tries := 1; ; tries++ {
		var sent time.Time
		err = c.call(ctx, http.MethodPost, guestapi.PathIdentity, func() ([]byte, error) {
			sent = time.Now()
			id.UnixNanos = sent.UnixNano()
			return id.MarshalBinary()
		}, &done)
		if err == nil {
			return done, time.Since(sent) - time.Duration(done.TookMicrosecond)*time.Microsecond, nil
		}
		if tries == identityTries || !wasCut(err) {
			return done, 0, err
		}
	}
}

// wasCut reports whether the guest ended the connection before it answered. An
// identity with ResetTCP aborts every other connection, also one by which the host
// asks again meanwhile. And a guest that got no CPU for long lets the request time
// out.
func wasCut(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
