// Package controlplane assembles one replica of the control plane: it decides
// which parts there are and in which order they start and stop. What they do is
// in the packages below it; DESIGN.md in this folder draws how they meet.
package controlplane

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/pki"
)

// Config is one replica's settings. The tags name the environment variables;
// cmd/controlplane reads them.
type Config struct {
	NodeID     string   `env:"BERTH_NODE_ID"`     // default: of replica.json
	DataDir    string   `env:"BERTH_DATA_DIR"`    // Raft's log and snapshots
	PKIDir     string   `env:"BERTH_PKI_DIR"`     // what controlplane init wrote for this replica
	Listen     string   `env:"BERTH_LISTEN"`      // public API
	PeerListen string   `env:"BERTH_PEER_LISTEN"` // default: the peer address itself
	Peers      []string `env:"BERTH_PEERS"`       // id=host:port of the first members; default: of replica.json
	TLSCert    string   `env:"BERTH_TLS_CERT"`    // of the public API; none: plain HTTP
	TLSKey     string   `env:"BERTH_TLS_KEY"`

	AdminToken    string `env:"BERTH_ADMIN_TOKEN"`
	JWTKey        string `env:"BERTH_JWT_HS256_KEY"`
	JWKSURL       string `env:"BERTH_JWT_JWKS_URL"`
	JWTIssuer     string `env:"BERTH_JWT_ISSUER"`
	JWTAudience   string `env:"BERTH_JWT_AUDIENCE"`
	PreviewSuffix string `env:"BERTH_PREVIEW_SUFFIX"`
	PreviewURL    string `env:"BERTH_PREVIEW_URL"` // as clients see previews; default https://{port}-{id}.<suffix>

	// A host sends a heartbeat each interval and is lost when it has been
	// unheard for a lease. Its sandboxes fail with it, so the lease is longer
	// than a restart of the daemon takes on a loaded machine.
	HeartbeatInterval time.Duration `env:"BERTH_HEARTBEAT_INTERVAL" envDefault:"1s"`
	HostLease         time.Duration `env:"BERTH_HOST_LEASE" envDefault:"30s"`

	// RaftTimeout is Raft's heartbeat and election time-out. 500 ms replaces a
	// killed leader within a second at the median, and lets one be held up for
	// half a second by a busy machine; 300 ms lost leaders that were alive.
	// Replicas that are further apart than a few milliseconds want more.
	RaftTimeout time.Duration `env:"BERTH_RAFT_TIMEOUT" envDefault:"500ms"`

	// OrphanGrace is how long a box that no record accounts for is left alone.
	OrphanGrace time.Duration `env:"BERTH_ORPHAN_GRACE" envDefault:"5s"`

	// KeptGrace is the same for a volume or a snapshot that no record accounts
	// for: somebody wanted to keep what is in it, and a control store put back
	// from a backup does not know the latest. And for all that is in the snapshot
	// store.
	KeptGrace time.Duration `env:"BERTH_KEPT_GRACE" envDefault:"1h"`

	// VolumeQuotaMB is how much the volumes of a workspace may have together.
	VolumeQuotaMB int `env:"BERTH_VOLUME_QUOTA_MB" envDefault:"102400"`

	// EventStore is a PostgreSQL URL; empty: an SQLite file in DataDir.
	EventStore string `env:"BERTH_EVENT_STORE"`

	LogLevel  string `env:"BERTH_LOG_LEVEL" envDefault:"info"`
	LogFormat string `env:"BERTH_LOG_FORMAT" envDefault:"text"`

	Version string       `env:"-"`
	Commit  string       `env:"-"`
	Logger  *slog.Logger `env:"-"`

	// Limiter says how much a workspace may ask; default: what clients are told.
	Limiter httpapi.Limiter `env:"-"`

	// Tests hand in listeners, on ports that the system chose.
	PublicListener net.Listener `env:"-"`
	PeerListener   net.Listener `env:"-"`
}

// replica is what a Config becomes: checked, and with the keys read.
type replica struct {
	node      *pki.Node
	ca        *pki.CA
	id        string
	advertise string       // of the peer port
	members   []pki.Member // to begin the cluster with; none: wait to be added
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
		return replica{}, fmt.Errorf("not set: %s", strings.Join(missing, ", "))
	}
	if c.PublicListener == nil {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			return replica{}, fmt.Errorf("BERTH_LISTEN: %w", err)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return replica{}, errors.New("BERTH_TLS_CERT and BERTH_TLS_KEY go together")
	}
	if c.HeartbeatInterval < 10*time.Millisecond {
		return replica{}, fmt.Errorf("BERTH_HEARTBEAT_INTERVAL is %s, want at least 10ms", c.HeartbeatInterval)
	}
	if c.HostLease < 3*c.HeartbeatInterval {
		return replica{}, fmt.Errorf("BERTH_HOST_LEASE is %s, want at least three heartbeats of %s: one may be late and one lost", c.HostLease, c.HeartbeatInterval)
	}
	if c.VolumeQuotaMB < 0 {
		return replica{}, fmt.Errorf("BERTH_VOLUME_QUOTA_MB is %d, want at least 0", c.VolumeQuotaMB)
	}
	if c.AdminToken != "" && len(c.AdminToken) < 16 {
		return replica{}, fmt.Errorf("BERTH_ADMIN_TOKEN has %d characters, want at least 16", len(c.AdminToken))
	}
	return c.identity()
}

// identity finds out which replica this is, from its certificate first.
func (c *Config) identity() (replica, error) {
	node, err := pki.LoadNode(c.PKIDir)
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

// ParseMember reads id=host:port.
func ParseMember(s string) (pki.Member, error) {
	id, address, ok := strings.Cut(strings.TrimSpace(s), "=")
	if !ok {
		return pki.Member{}, fmt.Errorf("%q: want id=host:port", s)
	}
	m := pki.Member{ID: id, Address: address}
	return m, m.Validate()
}

func (c *Config) jwt() authn.JWTConfig {
	return authn.JWTConfig{HS256Key: c.JWTKey, JWKSURL: c.JWKSURL, Issuer: c.JWTIssuer, Audience: c.JWTAudience}
}

// eventFile is the event store of a replica that has its own.
func (c *Config) eventFile() string { return filepath.Join(c.DataDir, "events", "events.db") }

func (c *Config) storeDir() string { return filepath.Join(c.DataDir, "raft") }
