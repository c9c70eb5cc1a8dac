package hostd

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/berth-cloud/berth/hostd/internal/testca"
	"github.com/berth-cloud/berth/vmm"
)

func defaults(t *testing.T) Config {
	t.Helper()
	c, err := env.ParseAsWithOptions[Config](env.Options{Environment: map[string]string{"BERTH_AGENT_ID": "h1"}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDefaultsAreComplete(t *testing.T) {
	c, err := defaults(t).Complete()
	if err != nil {
		t.Fatal(err)
	}
	if c.RunDir != "/run/berth/h1" || c.TemplateDir != "/var/lib/berth-hostd/templates" || c.Advertise != ":7443" {
		t.Errorf("config = %+v", c)
	}
	if err := c.checkServe(); err == nil || !strings.Contains(err.Error(), "BERTH_ADVERTISE") {
		t.Errorf("an address that nobody can call: %v, want an error that names BERTH_ADVERTISE", err)
	}
}

// What keeps the daemon from starting, doctor says before.
func TestDoctorNamesAnAddressThatNobodyCanCall(t *testing.T) {
	for advertise, says := range map[string]string{"": "BERTH_ADVERTISE", "10.0.0.21:7443": ""} {
		cfg := defaults(t)
		cfg.DataDir, cfg.RunDir, cfg.Advertise = t.TempDir(), t.TempDir(), advertise
		cfg, err := cfg.Complete()
		if err != nil {
			t.Fatal(err)
		}
		checks := Preflight(t.Context(), cfg)
		i := slices.IndexFunc(checks, func(c Check) bool { return c.Name == "address" })
		if i < 0 || (checks[i].Err == nil) != (says == "") || says != "" && !strings.Contains(checks[i].Err.Error(), says) {
			t.Errorf("BERTH_ADVERTISE=%q: %+v", advertise, checks)
		}
	}
}

func TestBadSettingsAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"agent id with capitals":   {func(c *Config) { c.HostID = "H1" }, "BERTH_AGENT_ID"},
		"agent id too long":        {func(c *Config) { c.HostID = "abcdefghi" }, "BERTH_AGENT_ID"},
		"agent id that is a path":  {func(c *Config) { c.HostID = "../x" }, "BERTH_AGENT_ID"},
		"run dir too long":         {func(c *Config) { c.RunDir = "/" + strings.Repeat("x", 70) }, "BERTH_RUN_DIR"},
		"negative memory":          {func(c *Config) { c.MemoryMB = -1 }, "BERTH_MEMORY_MB"},
		"no CPU for apps":          {func(c *Config) { c.AppCPU = -1 }, "BERTH_APP_CPU"},
		"little memory for apps":   {func(c *Config) { c.AppMemoryMB = 8 }, "BERTH_APP_MEMORY_MB"},
		"no slots ready":           {func(c *Config) { c.SlotPool = 0 }, "BERTH_SLOT_POOL"},
		"too many overlays":        {func(c *Config) { c.OverlayPool = 1000 }, "BERTH_OVERLAY_POOL"},
		"negative headroom":        {func(c *Config) { c.DiskHeadroomMB = -1 }, "BERTH_DISK_HEADROOM_MB"},
		"a quota below nothing":    {func(c *Config) { c.ArchiveQuota = -1 }, "BERTH_ARCHIVE_QUOTA"},
		"no events":                {func(c *Config) { c.EventRing = 0 }, "BERTH_EVENT_RING"},
		"no connections":           {func(c *Config) { c.MaxTunnels = 0 }, "BERTH_MAX_CONNECTIONS"},
		"heartbeats without pause": {func(c *Config) { c.HeartbeatInterval = 0 }, "BERTH_HEARTBEAT_INTERVAL"},
		"creates without time":     {func(c *Config) { c.CreateTimeout = 0 }, "BERTH_CREATE_TIMEOUT"},
		"stop without time":        {func(c *Config) { c.StopTimeout = -time.Second }, "BERTH_STOP_TIMEOUT"},
		"unknown log format":       {func(c *Config) { c.LogFormat = "xml" }, "BERTH_LOG_FORMAT"},
		"slot cidr without length": {func(c *Config) { c.SlotCIDR = "10.0.0.0" }, "BERTH_SLOT_CIDR"},
		"slots at guests' address": {func(c *Config) { c.SlotCIDR = "198.18.0.0/16" }, "BERTH_SLOT_CIDR"},
		"user ids of the system":   {func(c *Config) { c.BaseUID = 500 }, "BERTH_BASE_UID"},
		"more user ids than exist": {func(c *Config) { c.BaseUID = 1<<32 - 10 }, "BERTH_BASE_UID"},
		"resolver on this machine": {func(c *Config) { c.Resolvers = []string{"127.0.0.53"} }, "BERTH_RESOLVERS"},
		"resolver by IPv6":         {func(c *Config) { c.Resolvers = []string{"2001:db8::1"} }, "BERTH_RESOLVERS"},
		"resolver by name":         {func(c *Config) { c.Resolvers = []string{"dns"} }, "BERTH_RESOLVERS"},
		"allowed that is no CIDR":  {func(c *Config) { c.AllowedCIDRs = []string{"ten"} }, "BERTH_ALLOWED_CIDRS"},
		"router by name":           {func(c *Config) { c.DBRouters = []string{"db.example.com:5432"} }, "BERTH_DB_ROUTERS"},
		"router by IPv6":           {func(c *Config) { c.DBRouters = []string{"[::1]:5432"} }, "BERTH_DB_ROUTERS"},
		"databases without router": {func(c *Config) { c.DBDomain = "db.example.com" }, "BERTH_DB_ROUTERS"},
		"databases' port too high": {func(c *Config) { c.DBRouterPort = 70000 }, "BERTH_DB_ROUTER_PORT"},
		"databases at DNS's port":  {func(c *Config) { c.DBRouterPort = 53 }, "BERTH_DB_ROUTERS"},
		"no way to databases":      {func(c *Config) { c.DBConnections = -1 }, "BERTH_DB_GUEST_CONNECTIONS"},
		"listen without a port":    {func(c *Config) { c.Listen = "127.0.0.1" }, "BERTH_LISTEN"},
		"peer without a port":      {func(c *Config) { c.Peers = []string{"r1"} }, "BERTH_PEERS"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := defaults(t)
			c.change(&cfg)
			if _, err := cfg.Complete(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Complete = %v, want an error that names %s", err, c.says)
			}
		})
	}
}

func TestTheHostIDComesFromTheCertificate(t *testing.T) {
	dir := t.TempDir()
	cfg := defaults(t)
	cfg.HostID, cfg.PKIDir = "", dir
	if _, err := cfg.Complete(); err == nil || !strings.Contains(err.Error(), "hostd join") {
		t.Errorf("without a certificate: %v, want an error that says how to join", err)
	}
	testca.New(t).WriteDir(t, dir, "host:abc")
	got, err := cfg.Complete()
	if err != nil || got.HostID != "abc" {
		t.Errorf("agent id = %q, %v", got.HostID, err)
	}
}

func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	if _, err := loadCredentials(dir, "h1"); err == nil || !strings.Contains(err.Error(), "hostd join") {
		t.Errorf("an empty directory: %v, want an error that says how to join", err)
	}
	testca.New(t).WriteDir(t, dir, "host:h1")
	if err := os.WriteFile(filepath.Join(dir, filePeers), []byte("a:1\nb:2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loadCredentials(dir, "h1")
	if err != nil || len(c.peers) != 2 {
		t.Errorf("credentials: peers %v, %v", c.peers, err)
	}
	if _, err := loadCredentials(dir, "h2"); err == nil || !strings.Contains(err.Error(), `"host:h1"`) {
		t.Errorf("another host's certificate: %v", err)
	}
}

func TestAHostTrustsAllOfItsAuthorities(t *testing.T) {
	dir, ca, next := t.TempDir(), testca.New(t), testca.New(t)
	ca.WriteDir(t, dir, "host:h1")
	for name, c := range map[string]struct {
		bundle []byte
		trusts int // 0: it is refused
	}{
		"one":                 {ca.PEM(), 1},
		"two":                 {append(next.PEM(), ca.PEM()...), 2},
		"noise behind it":     {append(ca.PEM(), "noise"...), 0},
		"one that is cut off": {append(ca.PEM(), next.PEM()[:100]...), 0},
		"nothing":             {nil, 0},
	} {
		if err := os.WriteFile(filepath.Join(dir, fileCA), c.bundle, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := loadCredentials(dir, "h1")
		switch {
		case c.trusts == 0 && (err == nil || !strings.Contains(err.Error(), fileCA)):
			t.Errorf("%s: %v, want an error that names the file", name, err)
		case c.trusts > 0 && (err != nil || len(got.trust.CAs()) != c.trusts || got.cert.KeptIssuer() == ""):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMemoryBudget(t *testing.T) {
	emu, ch := vmm.Engine{Kind: vmm.KindChvemu}, vmm.Engine{Kind: vmm.KindCloudHypervisor}
	for name, c := range map[string]struct {
		cfg              Config
		engine           vmm.Engine
		budget, overhead int
		fails            bool
	}{
		"a share of the machine": {Config{}, emu, 8000, overheadChvemuMB, false},
		"as configured":          {Config{MemoryMB: 5000, OverheadMB: 7}, ch, 5000, 7, false},
		"by engine":              {Config{MemoryMB: 5000}, ch, 5000, overheadCHMB, false},
		"more than there is":     {Config{MemoryMB: 10001}, ch, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			b, o, err := c.cfg.memory(c.engine, 10000)
			if (err != nil) != c.fails || b != c.budget || o != c.overhead {
				t.Errorf("memory = %d, %d, %v", b, o, err)
			}
		})
	}
}

func TestNoLineHasAWholeSandboxID(t *testing.T) {
	const id = "abcdefgh234567abcdefgh2345"
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := NewLogger(&out, slog.LevelDebug, format)
		log.Info("message", "sandbox_id", id, "path", "/run/berth/h1/"+id+"/api.sock", "error", errors.New("open "+id+": denied"), "n", 7)
		log.With("sandbox_id", id).Error("message")
		if strings.Contains(out.String(), id) || !strings.Contains(out.String(), "/run/berth/h1/abcdefgh/api.sock") {
			t.Errorf("%s: %s", format, out.String())
		}
	}
}

func TestAnEngineThatVMMsCannotRunIsNamed(t *testing.T) {
	shut := filepath.Join(t.TempDir(), "shut")
	engine := filepath.Join(shut, "engine")
	if err := errors.Join(os.Mkdir(shut, 0o700), os.WriteFile(engine, nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := executable(engine); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(engine, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := executable(engine); err == nil || !strings.Contains(err.Error(), "chmod a+rx "+engine) {
		t.Errorf("a private engine: %v", err)
	}
}

func TestTheAuthorityOfDatabasesIsNoKey(t *testing.T) {
	dir := t.TempDir()
	testca.New(t).WriteDir(t, dir, "host:h1")
	ca := filepath.Join(dir, "ca.crt")
	got, err := Config{DBCA: ca}.databaseCA()
	want, readErr := os.ReadFile(ca)
	if err != nil || readErr != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v; want the %d of the file", len(got), err, len(want))
	}
	for _, path := range []string{filepath.Join(dir, "node.key"), filepath.Join(dir, "nothing.pem"), os.DevNull} {
		if _, err := (Config{DBCA: path}).databaseCA(); err == nil || !strings.Contains(err.Error(), "BERTH_DB_CA") {
			t.Errorf("%s: %v, want an error that names BERTH_DB_CA", path, err)
		}
	}
	if got, err := (Config{}).databaseCA(); got != nil || err != nil {
		t.Errorf("without one: %v, %v", got, err)
	}
}
