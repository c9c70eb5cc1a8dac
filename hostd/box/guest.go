package box

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// maxGuestAnswer bounds what is read of an answer: the guest is not trusted.
const maxGuestAnswer = 64 << 10

// dialGuest connects to a box's guestd. It tries again until ctx ends: a guest
// that was resumed a moment ago may drop the first packet, and TCP itself would
// wait a second before it sends another.
func (h *Host) dialGuest(ctx context.Context, slot int) (net.Conn, error) {
	wait := 100 * time.Millisecond
	for {
		dctx, cancel := context.WithTimeout(ctx, wait)
		conn, err := h.slots.Dial(dctx, slot, guestapi.Port)
		cancel()
		if err == nil {
			return conn, nil
		}
		wait = min(2*wait, 2*time.Second)
		// A refused connection comes back at once: guestd is not there yet.
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrGuest, errors.Join(context.Cause(ctx), err))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// guestCall posts in to a route of guestd and decodes the answer into out.
func (h *Host) guestCall(ctx context.Context, slot int, path string, in, out any) error {
	conn, resp, err := h.guestRequest(ctx, slot, path, in, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxGuestAnswer))
	if err != nil {
		return fmt.Errorf("%w: read answer: %w", ErrGuest, err)
	}
	if resp.StatusCode >= 400 {
		return guestError(resp.StatusCode, raw)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%w: decode answer: %w", ErrGuest, err)
	}
	return nil
}

// guestRequest sends one request over a connection of its own, and reads the
// head of the answer. The caller closes the connection.
func (h *Host) guestRequest(ctx context.Context, slot int, path string, in any, header http.Header) (net.Conn, *http.Response, error) {
	conn, err := h.dialGuest(ctx, slot)
	if err != nil {
		return nil, nil, err
	}
	// Only now: an Identity's clock is read while it is encoded.
	body, err := json.Marshal(in)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	resp, err := roundTrip(conn, path, body, header)
	if err != nil {
		conn.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, nil, fmt.Errorf("%w: %w", ErrGuest, err)
	}
	return conn, resp, nil
}

func roundTrip(conn net.Conn, path string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodPost, "http://guest"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header[k] = v
	}
	// One write: a request in two segments waits for a delayed acknowledgement.
	var buf bytes.Buffer
	if err := req.Write(&buf); err != nil {
		return nil, err
	}
	if _, err := conn.Write(buf.Bytes()); err != nil {
		return nil, err
	}
	br := bufio.NewReaderSize(conn, 32<<10)
	resp, err := http.ReadResponse(br, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		// What follows the head is the upgraded protocol's.
		resp.Body = io.NopCloser(br)
	}
	return resp, nil
}

func guestError(status int, raw []byte) error {
	var e guestapi.Error
	if json.Unmarshal(raw, &e) != nil || e.Error == "" {
		return fmt.Errorf("%w: status %d", ErrGuest, status)
	}
	if e.Detail != "" {
		e.Error += ": " + e.Detail
	}
	if status == http.StatusBadRequest {
		return invalid("%s", e.Error)
	}
	return fmt.Errorf("%w: %s (status %d)", ErrGuest, e.Error, status)
}
