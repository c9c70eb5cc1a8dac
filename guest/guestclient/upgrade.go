package guestclient

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// Tunnel is a connection to a port of the guest's loopback, by way of guestd.
type Tunnel struct{ upgraded }

// Connect has guestd connect to a port of the guest's loopback. A port where nothing
// listens is an *Error, as is one connection too many, with guestapi.CodeLimit.
func (c *Client) Connect(ctx context.Context, port int) (*Tunnel, error) {
	conn, err := c.upgrade(ctx, target(guestapi.PathConnect, url.Values{"port": {strconv.Itoa(port)}}), guestapi.UpgradeBytes, nil)
	if err != nil {
		return nil, err
	}
	return &Tunnel{conn}, nil
}

// upgraded is a connection that speaks HTTP no more.
type upgraded struct {
	net.Conn
	in io.Reader // what was read ahead, then the connection
}

// upgrade sends a request to which guestd answers 101. A refusal is an *Error.
func (c *Client) upgrade(ctx context.Context, target, protocol string, body func() ([]byte, error)) (upgraded, error) {
	conn, resp, err := c.request(ctx, http.MethodPost, target, body, http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}})
	if err != nil {
		return upgraded{}, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		return upgraded{}, asError(resp.StatusCode, raw)
	}
	return upgraded{Conn: conn, in: resp.Body}, nil
}

// Read implements io.Reader.
func (c *upgraded) Read(p []byte) (int, error) { return c.in.Read(p) }

// CloseWrite says that nothing more will be written; reading goes on.
func (c *upgraded) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// SetLinger is net.TCPConn's.
func (c *upgraded) SetLinger(sec int) error {
	if tcp, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return tcp.SetLinger(sec)
	}
	return nil
}

// Reset aborts the connection: the other end learns of it at once, also while it
// takes no more data.
func (c *upgraded) Reset() {
	_ = c.SetLinger(0)
	_ = c.Close()
}
