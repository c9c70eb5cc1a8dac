package hostd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/netfab/slot"
	"github.com/berth-cloud/berth/timescale"
)

// databases is how guests reach the PostgreSQL routers.
func (c Config) databases() (slot.Databases, error) {
	d := slot.Databases{Domain: strings.ToLower(c.DBDomain), Port: c.DBRouterPort, MaxConnections: c.DBConnections}
	for _, s := range c.DBRouters {
		a, err := netip.ParseAddrPort(strings.TrimSpace(s))
		if err != nil || !a.Addr().Is4() {
			return d, fmt.Errorf("BERTH_DB_ROUTERS: %q is no IPv4 address:port of a PostgreSQL router", s)
		}
		d.Routers = append(d.Routers, a)
	}
	switch {
	case c.DBRouterPort < 0 || c.DBRouterPort > 65535:
		return d, fmt.Errorf("BERTH_DB_ROUTER_PORT is %d: want the port that clients of databases are told", c.DBRouterPort)
	case c.DBConnections < 0 || c.DBConnections > 10_000:
		return d, fmt.Errorf("BERTH_DB_GUEST_CONNECTIONS is %d: want 1 to 10000 connections of one guest to databases, or 0 for the default", c.DBConnections)
	}
	if err := d.Check(); err != nil {
		return d, fmt.Errorf("BERTH_DB_ROUTERS and BERTH_DB_DOMAIN: %w", err)
	}
	return d, nil
}

// routerCheckTimeout bounds a try to reach a router.
var routerCheckTimeout = timescale.Limit(5 * time.Second)

// routers are tried from this machine, from which guests' connections come.
func (p *preflight) routers() (string, error) {
	d, err := p.cfg.databases()
	if err != nil {
		return "", err
	}
	if len(d.Routers) == 0 {
		return "none are named: guests reach those that are at public addresses of no replica (BERTH_DB_ROUTERS)", nil
	}
	errs := make([]error, len(d.Routers))
	var tries sync.WaitGroup
	for i, a := range d.Routers {
		tries.Go(func() {
			dialer := net.Dialer{Timeout: routerCheckTimeout}
			c, err := dialer.DialContext(p.ctx, "tcp4", a.String())
			if err != nil {
				errs[i] = fmt.Errorf("BERTH_DB_ROUTERS: %w", err)
				return
			}
			c.Close()
		})
	}
	tries.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d take connections", len(d.Routers)), nil
}

func (p *preflight) databaseCA() (string, error) {
	ca, err := p.cfg.databaseCA()
	switch {
	case err != nil:
		return "", err
	case ca == nil:
		return "none of its own: that of databases is public (BERTH_DB_CA)", nil
	}
	return p.cfg.DBCA + ", which guests trust too", nil
}

// maxAuthority bounds the file of BERTH_DB_CA, in bytes. It goes into every guest.
const maxAuthority = 64 << 10

// databaseCA reads the authority of databases' certificates that guests are to trust,
// nil if there is none of their own.
func (c Config) databaseCA() ([]byte, error) {
	if c.DBCA == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(c.DBCA)
	if err != nil {
		return nil, fmt.Errorf("BERTH_DB_CA: %w", err)
	}
	if len(raw) > maxAuthority || !image.OnlyCertificates(raw) {
		return nil, fmt.Errorf("BERTH_DB_CA: %s is not a file of PEM certificates alone, of at most %d bytes", c.DBCA, maxAuthority)
	}
	return raw, nil
}
