package controlplane

import (
	"bytes"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

func goodConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	members := []pki.Member{{ID: "a", Address: freePort(t)}, {ID: "b", Address: "127.0.0.1:1"}}
	if err := pki.InitCluster(dir, members, "ann", sealKey(t), time.Now()); err != nil {
		t.Fatal(err)
	}
	return Config{
		DataDir: t.TempDir(), PKIDir: filepath.Join(dir, "a"), Listen: freePort(t), AdminToken: adminToken,
		HeartbeatInterval: time.Second, HostLease: 10 * time.Second,
	}
}

func TestBadSettingsAreNamed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"nothing set", func(c *Config) { *c = Config{} }, "BERTH_DATA_DIR, BERTH_LISTEN, BERTH_PKI_DIR"},
		{"no keys", func(c *Config) { c.PKIDir = t.TempDir() }, "controlplane init"},
		{"an operator's keys", func(c *Config) { c.PKIDir = filepath.Join(filepath.Dir(c.PKIDir), "operator") }, "node.crt"},
		{"another replica's id", func(c *Config) { c.NodeID = "z" }, "BERTH_NODE_ID"},
		{"peers without this one", func(c *Config) { c.Peers = []string{"b=127.0.0.1:1"} }, "does not name this replica"},
		{"peers that are none", func(c *Config) { c.Peers = []string{"b"} }, "id=host:port"},
		{"half of TLS", func(c *Config) { c.TLSCert = "x" }, "BERTH_TLS_KEY"},
		{"half of the router's TLS", func(c *Config) { c.DBTLSCert = "x" }, "BERTH_DB_TLS_KEY"},
		{"a router without a certificate", func(c *Config) { c.DBDomain, c.DBListen, c.DBRouterPort = "db.example.com", ":0", 5432 }, "BERTH_DB_DEV_CA"},
		{"a router's port that is none", func(c *Config) { c.DBDomain, c.DBListen = "db.example.com", ":0" }, "BERTH_DB_ROUTER_PORT"},
		{"a router without a port", func(c *Config) { c.DBDomain, c.DBListen = "db.example.com", "localhost" }, "BERTH_DB_LISTEN"},
		{"a domain with a dot", func(c *Config) { c.DBDomain, c.DBListen = ".example.com", ":0" }, "BERTH_DB_DOMAIN"},
		{"a suffix of apps with a dot", func(c *Config) { c.AppSuffix = "app.example.com." }, "BERTH_APP_SUFFIX"},
		{"a suffix of previews with a dot", func(c *Config) { c.PreviewSuffix = ".preview.example.com" }, "BERTH_PREVIEW_SUFFIX"},
		{"a URL of previews that names no port", func(c *Config) { c.PreviewURL = "https://{id}.example.com" }, "BERTH_PREVIEW_URL"},
		{"a volume that is kept for less than no time", func(c *Config) { c.KeptGrace = -time.Second }, "BERTH_KEPT_GRACE"},
		{"one suffix for previews and apps", func(c *Config) { c.AppSuffix, c.PreviewSuffix = "x.example.com", "X.example.com" }, "BERTH_PREVIEW_SUFFIX"},
		{"a URL of apps that names none", func(c *Config) { c.AppURL = "https://app.example.com/" }, "BERTH_APP_URL"},
		{"a hold that is none", func(c *Config) { c.AppWakeHold = time.Millisecond }, "BERTH_APP_WAKE_HOLD"},
		{"a hold for ever", func(c *Config) { c.AppWakeHold = time.Hour }, "BERTH_APP_WAKE_HOLD"},
		{"ACME in plaintext", func(c *Config) { c.ACMEDirectory = "http://acme.example/dir" }, "BERTH_ACME_DIRECTORY"},
		{"ACME for nothing", func(c *Config) { c.ACMEDirectory = "https://acme.example/dir" }, "BERTH_ACME_NAMES"},
		{"ACME without DNS", func(c *Config) {
			c.ACMEDirectory, c.ACMENames = "https://acme.example/dir", []string{"api.example.com"}
		}, "BERTH_ACME_TSIG_KEY"},
		{"a short time until a replica is dead", func(c *Config) { c.ReplicaDeadAfter = time.Second }, "BERTH_REPLICA_DEAD_AFTER"},
		{"a negative time until a replica is dead", func(c *Config) { c.ReplicaDeadAfter = -time.Minute }, "BERTH_REPLICA_DEAD_AFTER"},
		{"a negative time until a replica votes", func(c *Config) { c.ReplicaStableAfter = -time.Second }, "BERTH_REPLICA_STABLE_AFTER"},
		{"a short lease", func(c *Config) { c.HostLease = time.Second }, "BERTH_HOST_LEASE"},
		{"no interval", func(c *Config) { c.HeartbeatInterval = 0 }, "BERTH_HEARTBEAT_INTERVAL"},
		{"a weak admin token", func(c *Config) { c.AdminToken = "secret" }, "BERTH_ADMIN_TOKEN"},
		{"a weak JWT key", func(c *Config) { c.JWTKey = "secret" }, "BERTH_JWT_…"},
		{"keys without an issuer", func(c *Config) { c.JWKSURL, c.JWTAudience = "https://issuer.example/keys", "berth" }, "issuer"},
		{"keys in plaintext", func(c *Config) { c.JWKSURL, c.JWTIssuer, c.JWTAudience = "http://issuer.example/keys", "x", "berth" }, "https"},
		{"keys without an audience", func(c *Config) { c.JWKSURL, c.JWTIssuer = "https://issuer.example/keys", "x" }, "BERTH_JWT_AUDIENCE"},
		{"an issuer without an audience", func(c *Config) { c.OIDCIssuers = []string{"https://login.example.com"} }, "BERTH_OIDC_ISSUERS"},
		{"an issuer in plaintext", func(c *Config) { c.OIDCIssuers = []string{"http://login.example.com=berth"} }, "BERTH_OIDC_ISSUERS"},
		{"a data directory that cannot be made", func(c *Config) { c.DataDir = "/dev/null/data" }, "BERTH_DATA_DIR"},
		{"a time limit that Raft cannot hold", func(c *Config) { c.RaftTimeout = time.Millisecond }, "BERTH_RAFT_TIMEOUT"},
		{"a directory of an authority that cannot be made", func(c *Config) {
			c.DBDomain, c.DBListen, c.DBRouterPort, c.DBDevCA = "db.example.com", ":0", 5432, "/dev/null/ca"
		}, "BERTH_DB_DEV_CA"},
		{"an issuer of two kinds", func(c *Config) {
			c.OIDCIssuers = []string{"https://login.example.com=berth"}
			c.JWKSURL, c.JWTIssuer, c.JWTAudience = "https://login.example.com/keys", "https://login.example.com", "berth"
		}, "twice"},
		{"subscriptions asked for all the time", func(c *Config) { c.BillingSync = time.Second }, "BERTH_BILLING_SYNC"},
		{"volumes above the ceiling", func(c *Config) { c.VolumeMaxMB = 65537 }, "BERTH_VOLUME_MAX_MB"},
		{"volumes too small for a file system", func(c *Config) { c.VolumeMaxMB = 15 }, "BERTH_VOLUME_MAX_MB"},
		{"a default volume too small for one", func(c *Config) { c.VolumeSizeMB = 1 }, "BERTH_VOLUME_SIZE_MB"},
		{"more children than can be forked", func(c *Config) { c.ForkMax = 17 }, "BERTH_FORK_MAX"},
		{"proxies that are no networks", func(c *Config) { c.TrustedProxies = []string{"10.0.0.0/24", "10.0.1.1"} }, "BERTH_TRUSTED_PROXIES"},
		{"request ids shorter than our own", func(c *Config) { c.MaxRequestID = 23 }, "BERTH_REQUEST_ID_MAX"},
		{"request ids that hosts drop", func(c *Config) { c.MaxRequestID = 201 }, "BERTH_REQUEST_ID_MAX"},
		{"fewer children than none", func(c *Config) { c.ForkMax = -1 }, "BERTH_FORK_MAX"},
		{"an app that sleeps at once", func(c *Config) { c.AppIdle = new(time.Millisecond) }, "BERTH_APP_IDLE"},
		{"an app that hardly ever sleeps", func(c *Config) { c.AppIdle = new(8 * 24 * time.Hour) }, "BERTH_APP_IDLE"},
		{"an idle time in parts of a second", func(c *Config) { c.AppIdle = new(1500 * time.Millisecond) }, "BERTH_APP_IDLE"},
		{"a short pause between webhooks", func(c *Config) { c.WebhookDelays = []time.Duration{time.Minute, time.Millisecond} }, "BERTH_WEBHOOK_DELAYS"},
		{"a warning beyond the credit", func(c *Config) { c.WarnPercent = 101 }, "BERTH_CREDIT_WARNING"},
		{"a short wait for webhooks", func(c *Config) { c.WebhookTimeout = time.Millisecond }, "BERTH_WEBHOOK_TIMEOUT"},
		{"fewer endpoints than none", func(c *Config) { c.WebhookEndpoints = -1 }, "BERTH_WEBHOOK_MAX_ENDPOINTS"},
		{"events for a minute", func(c *Config) { c.EventRetention = time.Minute }, "BERTH_EVENT_RETENTION"},
		{"webhooks for ever", func(c *Config) { c.WebhookDelays = slices.Repeat([]time.Duration{time.Minute}, 21) }, "BERTH_WEBHOOK_DELAYS"},
		{"an address without port", func(c *Config) { c.Listen = "localhost" }, "BERTH_LISTEN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := goodConfig(t)
			c.change(&cfg)
			s, err := New(t.Context(), cfg)
			if err == nil {
				s.public.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestTakenPortIsNamedWithItsHolder(t *testing.T) {
	cfg := goodConfig(t)
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(cfg.Listen)
	_, err = New(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "port "+port) || !strings.Contains(err.Error(), "BERTH_LISTEN") || !strings.Contains(err.Error(), "(pid ") {
		t.Fatalf("%v", err)
	}
}

func TestLogsHoldNoWholeSandboxID(t *testing.T) {
	const id = "abcdefghijklmnopqrstuvwx27"
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log, err := NewLogger(&out, "debug", format)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("call failed", "error", errors.New("Put https://h:1/v1/boxes/"+id+": refused"), "id", id, "request_id", "req_1")
		if strings.Contains(out.String(), id) || !strings.Contains(out.String(), "/v1/boxes/"+id[:8]+": refused") || !strings.Contains(out.String(), "req_1") {
			t.Errorf("%s: %s", format, out.String())
		}
		out.Reset()
		ctx := hostapi.WithRequestID(t.Context(), "req_2")
		log.InfoContext(ctx, "of the flow")
		log.InfoContext(ctx, "says it", "request_id", "req_2")
		log.With("request_id", "req_2").InfoContext(ctx, "says it")
		if n := strings.Count(out.String(), "request_id"); n != 3 || strings.Count(out.String(), "req_2") != 3 {
			t.Errorf("%s: three lines of a request have its id %d times: %s", format, n, out.String())
		}
	}
	if _, err := NewLogger(nil, "loud", "text"); err == nil {
		t.Error("an unknown level was accepted")
	}
	if _, err := NewLogger(nil, "info", "xml"); err == nil {
		t.Error("an unknown format was accepted")
	}
}
