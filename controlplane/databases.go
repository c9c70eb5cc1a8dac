package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/berth-cloud/berth/controlplane/pgedge"
)

func (c *Config) checkRouter() error {
	if (c.DBTLSCert == "") != (c.DBTLSKey == "") {
		return errors.New("BERTH_DB_TLS_CERT and BERTH_DB_TLS_KEY go together")
	}
	if c.DBDomain == "" {
		return nil
	}
	if c.DBListener == nil {
		if _, _, err := net.SplitHostPort(c.DBListen); err != nil {
			return fmt.Errorf("BERTH_DB_LISTEN: %w", err)
		}
	}
	switch {
	case strings.Trim(c.DBDomain, ".") != c.DBDomain:
		return fmt.Errorf("BERTH_DB_DOMAIN is %q, want a host name without a dot at either end", c.DBDomain)
	case c.DBRouterPort < 1 || c.DBRouterPort > 65535:
		return fmt.Errorf("BERTH_DB_ROUTER_PORT is %d, want a port", c.DBRouterPort)
	case c.DBTLSCert == "" && c.TLSCert == "" && (c.ACMEDirectory == "" || !c.acmeDNS()) && c.DBDevCA == "":
		return errors.New("BERTH_DB_DOMAIN needs a certificate for *." + c.DBDomain +
			": BERTH_DB_TLS_CERT and BERTH_DB_TLS_KEY, or in BERTH_TLS_CERT, or BERTH_ACME_DIRECTORY; for development BERTH_DB_DEV_CA")
	}
	return nil
}

// listenRouter opens the router's port. It returns nil without a router.
func (s *Server) listenRouter(ctx context.Context) (net.Listener, error) {
	switch {
	case s.cfg.DBDomain == "":
		s.log.InfoContext(ctx, "databases have no host names and are not reached from outside: BERTH_DB_DOMAIN is not set")
		return nil, nil
	case s.cfg.DBListener != nil:
		return s.cfg.DBListener, nil
	}
	return listen(ctx, "BERTH_DB_LISTEN", s.cfg.DBListen)
}

// closePublic closes the public ports before they are served.
func (s *Server) closePublic() {
	for _, l := range []net.Listener{s.public, s.db, s.domainPort, s.plainPort} {
		if l != nil {
			l.Close()
		}
	}
}

// decoySecret is the purpose for which all routers of a cluster derive a common
// secret from the CA's key.
const decoySecret = "berth postgresql router decoys"

// routeDatabases creates the paths to databases: the broker's, and the router if
// there is one. It returns the handler for other replicas' requests about databases.
// awake wakes a database; only the leader calls it.
func (s *Server) routeDatabases(awake func(ctx context.Context, id string) error) (http.Handler, error) {
	lookup := func(id string) (pgedge.Entry, bool) { return pgedge.Read(s.store.View(), id) }
	secret, err := s.me.ca.Derive(decoySecret)
	if err != nil {
		return nil, err
	}
	s.feed = pgedge.NewFeed(pgedge.FeedConfig{
		Known:  func() pgedge.Known { return pgedge.ReadAll(s.store.View()) },
		Leader: s.store.Leader, Secret: secret, Log: s.log,
	})
	peers := pgedge.NewPeers(pgedge.PeersConfig{
		Leading: s.store.IsLeader, Leader: s.store.Leader, Others: s.otherReplicas, Transport: s.peers, Log: s.log,
		Lookup: lookup, Awake: awake, Feed: s.feed,
	})
	s.reach = pgedge.NewReach(pgedge.ReachConfig{
		Lookup: lookup, Latest: peers.Latest, Begun: s.begun, Host: s.clients.At, Wake: peers.Wake,
	})
	if s.db == nil {
		return peers.Handler(), nil
	}
	s.router, err = pgedge.NewRouter(pgedge.RouterConfig{
		Domain: s.cfg.DBDomain, Certificate: s.certs.router.GetCertificate, Reach: s.reach, Secret: secret,
		CancelElsewhere: peers.CancelElsewhere, Registerer: s.metrics.registry, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	peers.Routes(s.router)
	return peers.Handler(), nil
}

// otherReplicas returns the peer addresses of the other members.
func (s *Server) otherReplicas() []string {
	var out []string
	for _, p := range s.store.Status().Peers {
		if p.ID != s.me.id {
			out = append(out, p.Address)
		}
	}
	return out
}

// drainRouter waits for database sessions to end, and ends them after routerTime. It
// closes the channel when all have ended.
func (s *Server) drainRouter(ctx context.Context) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		if s.router == nil {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, routerTime)
		defer cancel()
		s.router.Drain(ctx)
	}()
	return over
}
