package slot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/netfab/nft"
	"github.com/berth-cloud/berth/timescale"
)

// Defaults and limits of Databases.
const (
	DefaultDatabasePort        = 5432
	DefaultDatabaseConnections = 100
	maxRouters                 = 16
	maxDomain                  = 200 // characters: with an id before it, it is still a DNS name
)

// Databases says how guests reach the PostgreSQL routers.
type Databases struct {
	// Routers are IPv4 addresses and ports that guests may connect to, whatever else
	// is closed to them. They may be of this machine, its loopback included.
	Routers []netip.AddrPort
	// Domain is what follows a database's id in its name, where guests' questions for
	// such names are answered here (Names) with their gateway, whose Port leads to the
	// Routers. Empty: DNS leads guests to the routers as it does everybody.
	Domain string
	// Port of the gateway, which is what clients of databases are told.
	Port int
	// MaxConnections bounds what one guest may have open to routers.
	MaxConnections int
}

var validDomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

// Check reports what is wrong with d.
func (d Databases) Check() error {
	_, err := d.withDefaults()
	return err
}

func (d Databases) withDefaults() (Databases, error) {
	d.Domain = strings.ToLower(d.Domain)
	switch {
	case len(d.Routers) > maxRouters:
		return d, fmt.Errorf("%d routers of databases: at most %d", len(d.Routers), maxRouters)
	case d.Domain != "" && (len(d.Domain) > maxDomain || !validDomain.MatchString(d.Domain)):
		return d, fmt.Errorf("domain of databases %q: want a host name without a dot at either end", d.Domain)
	case d.Domain != "" && len(d.Routers) == 0:
		return d, errors.New("a domain of databases is answered for, and no router is named: guests would get nowhere")
	case d.Port < 0 || d.Port > 65535 || d.Port == namesPort:
		return d, fmt.Errorf("port %d for databases: want 1 to 65535 and not that of DNS", d.Port)
	case d.MaxConnections < 0:
		return d, fmt.Errorf("%d connections to databases a guest: want more than none", d.MaxConnections)
	}
	for _, a := range d.Routers {
		if !a.IsValid() || !a.Addr().Is4() || a.Port() == 0 || a.Addr().IsUnspecified() || a.Addr().IsMulticast() {
			return d, fmt.Errorf("router of databases %s: want the IPv4 address and the port of one", a)
		}
		if a.Addr().IsLoopback() && d.Domain == "" {
			return d, fmt.Errorf("router of databases %s: guests reach loopback only by their gateway, so a domain is needed too", a)
		}
	}
	if d.Port == 0 {
		d.Port = DefaultDatabasePort
	}
	if d.MaxConnections == 0 {
		d.MaxConnections = DefaultDatabaseConnections
	}
	return d, nil
}

func (d Databases) slotRules() nft.Databases {
	rules := nft.Databases{Domain: d.Domain, MaxConnections: uint32(d.MaxConnections)}
	if d.Domain != "" {
		rules.Port = uint16(d.Port)
	}
	for _, a := range d.Routers {
		if !a.Addr().IsLoopback() { // of the slot's own namespace
			rules.Routers = append(rules.Routers, a)
		}
	}
	return rules
}

func (d Databases) hostRules(serving []netip.AddrPort) nft.Databases {
	rules := nft.Databases{Routers: d.Routers, MaxConnections: uint32(d.MaxConnections)}
	if d.Domain != "" {
		rules.Port, rules.Serving = uint16(d.Port), serving
	}
	return rules
}

// onLoopback is the value of route_localnet for the links of slots: the kernel takes
// packets for loopback from no other link. The rules let those for a router through,
// and refuse all others, in the slot and on the host.
func (d Databases) onLoopback() string {
	if slices.ContainsFunc(d.Routers, func(a netip.AddrPort) bool { return a.Addr().IsLoopback() }) {
		return "1"
	}
	return "0"
}

// routerTimeout is how long a router has to take a connection.
var routerTimeout = timescale.Limit(time.Second)

// lookForRouters finds out which routers guests are led to, and says whether others
// than before. If none answers, it is all: they may be reached from elsewhere.
func (f *Fabric) lookForRouters(ctx context.Context) (moved bool) {
	all := f.cfg.Databases.Routers
	if f.cfg.Databases.Domain == "" || len(all) < 2 {
		return false
	}
	answers := make([]bool, len(all))
	var tries sync.WaitGroup
	for i, a := range all {
		tries.Go(func() {
			dialer := net.Dialer{Timeout: routerTimeout}
			c, err := dialer.DialContext(ctx, "tcp4", a.String())
			if err == nil {
				answers[i] = true
				c.Close()
			}
		})
	}
	tries.Wait()
	if ctx.Err() != nil {
		return false
	}
	var serving []netip.AddrPort
	for i, a := range all {
		if answers[i] {
			serving = append(serving, a)
		}
	}
	if len(serving) == 0 {
		serving = all
	}
	f.mu.Lock()
	moved = !slices.Equal(f.serving, serving)
	f.serving = serving
	f.mu.Unlock()
	if moved {
		f.log.Info("routers of databases that guests are led to", "routers", serving)
	}
	return moved
}
