package guestio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/timescale"
)

// A Debian guest's file of the authorities that its programs trust, and the file from
// which update-ca-certificates adds ours to it.
const (
	bundlePath    = "/etc/ssl/certs/ca-certificates.crt"
	authorityPath = "/usr/local/share/ca-certificates/berth-databases.crt"
	maxBundle     = 4 << 20 // bytes
)

// trustTimeout bounds how long a guest may take for it.
var trustTimeout = timescale.Limit(30 * time.Second)

// Trust has the guest's programs trust the configured authority. Nobody waits for it, and
// what fails is logged alone: it is for development.
func (g *Guests) Trust(ctx context.Context, slot int) {
	if g.cfg.Authority == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, trustTimeout)
	defer cancel()
	if err := trust(ctx, g.agent(slot), g.cfg.Authority); err != nil {
		g.cfg.Log.WarnContext(ctx, "a guest does not trust the authority of databases", "slot", slot, "error", err)
	}
}

func trust(ctx context.Context, agent *guestclient.Client, authority []byte) error {
	// Written last: a child of a fork has it with all that comes before.
	own, err := read(ctx, agent, authorityPath)
	if err != nil || bytes.Equal(own, authority) {
		return err
	}
	bundle, err := read(ctx, agent, bundlePath)
	if err != nil {
		return err
	}
	// An image without a bundle has programs that bring their own, or none.
	if bundle != nil && !bytes.Contains(bundle, authority) {
		if n := len(bundle); n > 0 && bundle[n-1] != '\n' {
			bundle = append(bundle, '\n')
		}
		if err := agent.PutFile(ctx, bundlePath, 0o644, append(bundle, authority...)); err != nil {
			return fmt.Errorf("write %s: %w", bundlePath, err)
		}
	}
	if err := agent.PutFile(ctx, authorityPath, 0o644, authority); err != nil {
		return fmt.Errorf("write %s: %w", authorityPath, err)
	}
	return nil
}

// read returns nil where there is no such file.
func read(ctx context.Context, agent *guestclient.Client, path string) ([]byte, error) {
	content, _, err := agent.ReadFile(ctx, path)
	var refusal *guestclient.Error
	if errors.As(err, &refusal) && refusal.Status == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	defer content.Close()
	raw, err := io.ReadAll(io.LimitReader(content, maxBundle+1))
	if err == nil && len(raw) > maxBundle {
		err = fmt.Errorf("it has more than %d bytes", maxBundle)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if raw == nil {
		raw = []byte{}
	}
	return raw, nil
}
