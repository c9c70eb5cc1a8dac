// Package controlplane assembles one replica of the control plane: which parts it
// has, and in which order they start and stop. DESIGN.md in this folder describes
// how the parts work together.
package controlplane

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/sdnotify"
)

// Config contains one replica's settings. The tags name the environment variables;
// cmd/controlplane reads them.
type Config struct {
	NodeID     string   `env:"BERTH_NODE_ID"`     // default: from replica.json
	DataDir    string   `env:"BERTH_DATA_DIR"`    // Raft's log and snapshots
	PKIDir     string   `env:"BERTH_PKI_DIR"`     // the directory that "controlplane init" wrote for this replica
	Listen     string   `env:"BERTH_LISTEN"`      // public API
	PeerListen string   `env:"BERTH_PEER_LISTEN"` // default: the peer address itself
	Peers      []string `env:"BERTH_PEERS"`       // id=host:port of the cluster's first members; default: from replica.json
	TLSCert    string   `env:"BERTH_TLS_CERT"`    // of the public API; empty: plain HTTP
	TLSKey     string   `env:"BERTH_TLS_KEY"`

	// TrustedProxies are the networks of balancers that may say by X-Forwarded-For whom they
	// pass a request on for.
	TrustedProxies []string `env:"BERTH_TRUSTED_PROXIES"`

	AdminToken  string `env:"BERTH_ADMIN_TOKEN"`
	JWTKey      string `env:"BERTH_JWT_HS256_KEY"`
	JWKSURL     string `env:"BERTH_JWT_JWKS_URL"`
	JWTIssuer   string `env:"BERTH_JWT_ISSUER"`
	JWTAudience string `env:"BERTH_JWT_AUDIENCE"`
	// OIDCIssuers are issuers of the form https://issuer=audience, whose keys are found
	// by discovery.
	OIDCIssuers   []string `env:"BERTH_OIDC_ISSUERS"`
	PreviewSuffix string   `env:"BERTH_PREVIEW_SUFFIX"`
	PreviewURL    string   `env:"BERTH_PREVIEW_URL"` // pattern of preview URLs; default https://{port}-{id}.<suffix>

	// An app is served at <id>.<AppSuffix>. A request that wakes one is held for
	// AppWakeHold; 0: the default.
	AppSuffix   string        `env:"BERTH_APP_SUFFIX"`
	AppURL      string        `env:"BERTH_APP_URL"` // pattern of apps' URLs; default https://{id}.<suffix>/
	AppWakeHold time.Duration `env:"BERTH_APP_WAKE_HOLD" envDefault:"10s"`

	// A router at DBListen serves databases as <id>.<DBDomain>. Without a domain
	// there is no router. DBRouterPort is the port that clients are told: it differs
	// from DBListen behind a balancer.
	DBDomain     string `env:"BERTH_DB_DOMAIN"`
	DBListen     string `env:"BERTH_DB_LISTEN" envDefault:":5432"`
	DBRouterPort int    `env:"BERTH_DB_ROUTER_PORT" envDefault:"5432"`
	DBTLSCert    string `env:"BERTH_DB_TLS_CERT"` // of *.<DBDomain>; default: the public API's
	DBTLSKey     string `env:"BERTH_DB_TLS_KEY"`
	DBDevCA      string `env:"BERTH_DB_DEV_CA"` // directory of a development CA, which is created if missing

	// ACME provides the certificates that no file provides: of the databases'
	// domain, those of previews and apps, and ACMENames.
	ACMEDirectory string   `env:"BERTH_ACME_DIRECTORY"` // URL; empty: no ACME
	ACMEEmail     string   `env:"BERTH_ACME_EMAIL"`
	ACMENames     []string `env:"BERTH_ACME_NAMES"`      // of the public API
	ACMERoots     string   `env:"BERTH_ACME_CA"`         // PEM file with the CA of a private ACME server
	ACMEDNSServer string   `env:"BERTH_ACME_DNS_SERVER"` // host:port of a server that accepts updates (RFC 2136)
	ACMEResolvers []string `env:"BERTH_ACME_RESOLVERS"`  // default: the system's
	ACMETSIGName  string   `env:"BERTH_ACME_TSIG_NAME"`
	ACMETSIGKey   string   `env:"BERTH_ACME_TSIG_KEY"` // base64
	ACMETSIGAlg   string   `env:"BERTH_ACME_TSIG_ALGORITHM" envDefault:"hmac-sha256"`

	// A host sends a heartbeat each interval and is lost after a lease without one.
	// Its sandboxes fail with it, so the lease is longer than a restart of the
	// daemon on a loaded machine.
	HeartbeatInterval time.Duration `env:"BERTH_HEARTBEAT_INTERVAL" envDefault:"1s"`
	HostLease         time.Duration `env:"BERTH_HOST_LEASE" envDefault:"30s"`

	// RaftTimeout is Raft's heartbeat and election timeout. With 500 ms the median
	// time to replace a killed leader is below a second, and a busy machine may
	// delay a leader for half a second; with 300 ms leaders were deposed that were
	// alive. Replicas that are more than a few milliseconds apart need more.
	RaftTimeout time.Duration `env:"BERTH_RAFT_TIMEOUT" envDefault:"500ms"`

	// A replica that is added votes once it has been there, with every record, for
	// ReplicaStableAfter. One that voted and was silent for ReplicaDeadAfter loses its
	// place to it; 0: never. A machine that only restarts should be back before.
	ReplicaStableAfter time.Duration `env:"BERTH_REPLICA_STABLE_AFTER" envDefault:"10s"`
	ReplicaDeadAfter   time.Duration `env:"BERTH_REPLICA_DEAD_AFTER" envDefault:"5m"`

	// OrphanGrace is how long a box without a record is kept.
	OrphanGrace time.Duration `env:"BERTH_ORPHAN_GRACE" envDefault:"5s"`

	// KeptGrace is the same for volumes, snapshots, and all objects in the snapshot
	// store. It is longer because a control store that was restored from a backup
	// lacks the newest records.
	KeptGrace time.Duration `env:"BERTH_KEPT_GRACE" envDefault:"1h"`

	// VolumeQuotaMB is the total size of a workspace's volumes.
	VolumeQuotaMB int `env:"BERTH_VOLUME_QUOTA_MB" envDefault:"102400"`
	// VolumeSizeMB is the size of a volume that names none, and VolumeMaxMB the most that
	// one may name; 0: the default. The specification's ceiling is the highest.
	VolumeSizeMB int `env:"BERTH_VOLUME_SIZE_MB" envDefault:"256"`
	VolumeMaxMB  int `env:"BERTH_VOLUME_MAX_MB" envDefault:"65536"`
	// ForkMax is the most children of one fork; 0: the default.
	ForkMax int `env:"BERTH_FORK_MAX" envDefault:"16"`
	// MaxRequestID is the most characters of a client's X-Request-Id that is reused; 0:
	// the default.
	MaxRequestID int `env:"BERTH_REQUEST_ID_MAX" envDefault:"64"`

	// Tiers is a file with the tiers of workspaces; DefaultTier the tier of those that
	// have none of their own. docs/limits.md explains both.
	Tiers       string `env:"BERTH_TIERS"`
	DefaultTier string `env:"BERTH_DEFAULT_TIER" envDefault:"unlimited"`

	Billing
	Audit

	Databases

	Apps
	Domains
	GitHosts

	// WebhookDelays are those between the attempts to deliver a webhook.
	WebhookDelays []time.Duration `env:"BERTH_WEBHOOK_DELAYS" envDefault:"1m,5m,30m,2h,8h"`
	// WebhookAllowPrivate lets webhooks go to any address, and without TLS: for
	// development alone.
	WebhookAllowPrivate bool `env:"BERTH_WEBHOOK_ALLOW_PRIVATE"`
	// WebhookTimeout limits an attempt, and WebhookEndpoints those of a workspace; 0: the
	// default.
	WebhookTimeout   time.Duration `env:"BERTH_WEBHOOK_TIMEOUT" envDefault:"10s"`
	WebhookEndpoints int           `env:"BERTH_WEBHOOK_MAX_ENDPOINTS" envDefault:"10"`

	// EventStore is a PostgreSQL URL; empty: an SQLite file in DataDir.
	EventStore string `env:"BERTH_EVENT_STORE"`
	// EventRetention is how long it keeps an event; 0: the default.
	EventRetention time.Duration `env:"BERTH_EVENT_RETENTION" envDefault:"2160h"`

	LogLevel  string `env:"BERTH_LOG_LEVEL" envDefault:"info"`
	LogFormat string `env:"BERTH_LOG_FORMAT" envDefault:"text"`

	Version string       `env:"-"`
	Commit  string       `env:"-"`
	Logger  *slog.Logger `env:"-"`

	// Notifier tells systemd how the replica is; nil: nobody. Reload receives when
	// settings are to be read again.
	Notifier *sdnotify.Notifier `env:"-"`
	Reload   <-chan os.Signal   `env:"-"`

	// Limiter limits the requests of a workspace; default: the limits in
	// docs/api.md.
	Limiter httpapi.Limiter `env:"-"`

	// Listeners for tests, on ports that the system chose.
	PublicListener net.Listener `env:"-"`
	PeerListener   net.Listener `env:"-"`
	DBListener     net.Listener `env:"-"`
}

// replica is a checked Config with the keys loaded.
type replica struct {
	node      *pki.Node
	ca        *pki.CA
	id        string
	advertise string // of the peer port
	proxies   []netip.Prefix
	members   []pki.Member // the cluster's first members; empty: wait to be added
}

// load checks the settings and reads the replica's directory.
func (c *Config) load() (replica, error) {
	var missing []string
	for name, value := range map[string]string{"BERTH_DATA_DIR": c.DataDir, "BERTH_PKI_DIR": c.PKIDir, "BERTH_LISTEN": c.Listen} {
		if value == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return replica{}, fmt.Errorf("not set: %s (controlplane --help says what they are)", strings.Join(missing, ", "))
	}
	if c.PublicListener == nil {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			return replica{}, fmt.Errorf("BERTH_LISTEN: %w", err)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return replica{}, errors.New("BERTH_TLS_CERT and BERTH_TLS_KEY go together")
	}
	if err := errors.Join(c.checkRouter(), c.checkACME(), c.checkPreviews(), c.checkApps(), c.checkDomains()); err != nil {
		return replica{}, err
	}
	if c.HeartbeatInterval < 10*time.Millisecond {
		return replica{}, fmt.Errorf("BERTH_HEARTBEAT_INTERVAL is %s, want at least 10ms", c.HeartbeatInterval)
	}
	if c.HostLease < 3*c.HeartbeatInterval {
		return replica{}, fmt.Errorf("BERTH_HOST_LEASE is %s, want at least three heartbeats of %s: one may be late and one lost", c.HostLease, c.HeartbeatInterval)
	}
	if c.RaftTimeout != 0 && c.RaftTimeout < leastRaftTimeout {
		return replica{}, fmt.Errorf("BERTH_RAFT_TIMEOUT is %s, want at least %s", c.RaftTimeout, leastRaftTimeout)
	}
	if c.ReplicaStableAfter < 0 {
		return replica{}, fmt.Errorf("BERTH_REPLICA_STABLE_AFTER is %s, want at least 0s", c.ReplicaStableAfter)
	}
	if d := c.ReplicaDeadAfter; d != 0 && d < leastDeadAfter {
		return replica{}, fmt.Errorf("BERTH_REPLICA_DEAD_AFTER is %s, want at least %s, or 0 for never", d, leastDeadAfter)
	}
	for name, grace := range map[string]time.Duration{"BERTH_ORPHAN_GRACE": c.OrphanGrace, "BERTH_KEPT_GRACE": c.KeptGrace} {
		if grace < 0 {
			return replica{}, fmt.Errorf("%s is %s, want at least 0s", name, grace)
		}
	}
	if c.EventRetention != 0 && c.EventRetention < time.Hour {
		return replica{}, fmt.Errorf("BERTH_EVENT_RETENTION is %s, want at least 1h", c.EventRetention)
	}
	if err := c.checkVolumes(); err != nil {
		return replica{}, err
	}
	if c.ForkMax < 0 || c.ForkMax > fork.MaxFork {
		return replica{}, fmt.Errorf("BERTH_FORK_MAX is %d, want 1 to %d", c.ForkMax, fork.MaxFork)
	}
	if n := c.MaxRequestID; n != 0 && (n < core.LeastRequestID || n > hostapi.MaxRequestID) {
		return replica{}, fmt.Errorf("BERTH_REQUEST_ID_MAX is %d, want %d to %d", n, core.LeastRequestID, hostapi.MaxRequestID)
	}
	if err := errors.Join(c.Databases.validate(), c.Apps.validate(), c.Billing.validate(), c.Audit.validate(), c.checkWebhooks(), c.checkGitHosts(c.GitAllowHTTP)); err != nil {
		return replica{}, err
	}
	if c.AdminToken != "" && len(c.AdminToken) < 16 {
		return replica{}, fmt.Errorf("BERTH_ADMIN_TOKEN has %d characters, want at least 16", len(c.AdminToken))
	}
	r, err := c.identity()
	if err != nil {
		return replica{}, err
	}
	for _, s := range c.TrustedProxies {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return replica{}, fmt.Errorf("BERTH_TRUSTED_PROXIES: %q is no network, such as 10.0.0.0/24", s)
		}
		r.proxies = append(r.proxies, p)
	}
	return r, nil
}

// leastRaftTimeout is the least that the Raft library accepts.
const leastRaftTimeout = 5 * time.Millisecond

// leastDeadAfter is the least that BERTH_REPLICA_DEAD_AFTER may be: elections are over by
// then, and what is only slow was heard.
const leastDeadAfter = 10 * time.Second

// The bounds of what may be set: of the attempts, of the time that each may take, and of the
// endpoints of a workspace, to each of which an event is sent.
const (
	maxWebhookDelays    = 20
	maxWebhookTimeout   = time.Minute
	maxWebhookEndpoints = 1000
)

func (c *Config) checkVolumes() error {
	most := cmp.Or(c.VolumeMaxMB, volume.MaxMB)
	switch {
	case c.VolumeQuotaMB < 0:
		return fmt.Errorf("BERTH_VOLUME_QUOTA_MB is %d, want at least 0", c.VolumeQuotaMB)
	case most < volume.MinMB || most > volume.MaxMB:
		return fmt.Errorf("BERTH_VOLUME_MAX_MB is %d, want %d to %d", most, volume.MinMB, volume.MaxMB)
	case c.VolumeSizeMB != 0 && c.VolumeSizeMB < volume.MinMB, c.VolumeSizeMB > volume.MaxMB:
		return fmt.Errorf("BERTH_VOLUME_SIZE_MB is %d, want %d to %d", c.VolumeSizeMB, volume.MinMB, volume.MaxMB)
	}
	return nil
}

func (c *Config) checkWebhooks() error {
	if n := len(c.WebhookDelays); n > maxWebhookDelays {
		return fmt.Errorf("BERTH_WEBHOOK_DELAYS has %d delays, want at most %d", n, maxWebhookDelays)
	}
	if d := c.WebhookTimeout; d != 0 && (d < time.Second || d > maxWebhookTimeout) {
		return fmt.Errorf("BERTH_WEBHOOK_TIMEOUT is %s, want 1s to %s", d, maxWebhookTimeout)
	}
	if n := c.WebhookEndpoints; n < 0 || n > maxWebhookEndpoints {
		return fmt.Errorf("BERTH_WEBHOOK_MAX_ENDPOINTS is %d, want 1 to %d", n, maxWebhookEndpoints)
	}
	for _, d := range c.WebhookDelays {
		if d < time.Second {
			return fmt.Errorf("BERTH_WEBHOOK_DELAYS has %s, want at least 1s", d)
		}
	}
	return nil
}

// identity determines which replica this is, by its certificate.
func (c *Config) identity() (replica, error) {
	node, err := pki.LoadNode(c.PKIDir)
	if errors.Is(err, pki.ErrForeign) { // it was off while the CA was exchanged, and has the new one by now
		node, err = c.reissue()
	}
	if err != nil {
		return replica{}, fmt.Errorf("%w (controlplane init makes these files)", err)
	}
	if node.Identity.Role != pki.RoleReplica {
		return replica{}, fmt.Errorf("%s holds the certificate of %s, not of a replica", c.PKIDir, node.Identity.CommonName())
	}
	ca, err := pki.LoadCA(c.PKIDir)
	if err != nil {
		return replica{}, err
	}
	r := replica{node: node, ca: ca, id: node.Identity.Name}
	if c.NodeID != "" && c.NodeID != r.id {
		return replica{}, fmt.Errorf("BERTH_NODE_ID is %s, but the certificate in %s is of replica %s", c.NodeID, c.PKIDir, r.id)
	}
	if len(c.Peers) == 0 {
		about, err := pki.LoadReplica(c.PKIDir)
		if err != nil {
			return replica{}, err
		}
		r.advertise, r.members = about.Address, about.Members
		return r, nil
	}
	for _, p := range c.Peers {
		m, err := ParseMember(p)
		if err != nil {
			return replica{}, fmt.Errorf("BERTH_PEERS: %w", err)
		}
		r.members = append(r.members, m)
		if m.ID == r.id {
			r.advertise = m.Address
		}
	}
	if r.advertise == "" {
		return replica{}, fmt.Errorf("BERTH_PEERS does not name this replica, %s", r.id)
	}
	return r, nil
}

// reissue gives this replica a certificate of the CA that it has.
func (c *Config) reissue() (*pki.Node, error) {
	ca, err := pki.LoadCA(c.PKIDir)
	if err != nil {
		return nil, err
	}
	if err := pki.Reissue(c.PKIDir, ca, time.Now()); err != nil {
		return nil, err
	}
	return pki.LoadNode(c.PKIDir)
}

// ParseMember reads id=host:port.
func ParseMember(s string) (pki.Member, error) {
	id, address, ok := strings.Cut(strings.TrimSpace(s), "=")
	if !ok {
		return pki.Member{}, fmt.Errorf("%q: want id=host:port", s)
	}
	m := pki.Member{ID: id, Address: address}
	return m, m.Validate()
}

func (c *Config) jwt() (authn.JWTConfig, error) {
	issuers, err := authn.ParseIssuers(c.OIDCIssuers)
	if err != nil {
		return authn.JWTConfig{}, fmt.Errorf("BERTH_OIDC_ISSUERS: %w", err)
	}
	if c.JWKSURL != "" && c.JWTAudience == "" {
		return authn.JWTConfig{}, errors.New("BERTH_JWT_JWKS_URL is set without BERTH_JWT_AUDIENCE: set the audience that the issuer's tokens for Berth have; without one, tokens that it issues for others would be accepted, too")
	}
	return authn.JWTConfig{HS256Key: c.JWTKey, JWKSURL: c.JWKSURL, Issuer: c.JWTIssuer, Audience: c.JWTAudience, Issuers: issuers}, nil
}

// authenticator has neither store nor users if both are nil: it checks the settings.
func (c *Config) authenticator(store *raftstore.Store, users authn.Users, log *slog.Logger) (*authn.Authenticator, error) {
	tokens, err := c.jwt()
	if err != nil {
		return nil, err
	}
	a, err := authn.New(authn.Config{Store: store, Users: users, AdminToken: c.AdminToken, JWT: tokens, Clock: time.Now, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("BERTH_OIDC_ISSUERS, BERTH_JWT_…: %w", err)
	}
	return a, nil
}

// eventFile is the replica's own event store, unless BERTH_EVENT_STORE is set.
func (c *Config) eventFile() string { return filepath.Join(c.DataDir, "events", "events.db") }

// StoreDir is where the replica keeps Raft's log and snapshots.
func (c *Config) StoreDir() string { return filepath.Join(c.DataDir, "raft") }
