package hostd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/bucket/s3test"
	"github.com/berth-cloud/berth/hostd/image"
)

func TestArchiveStoreSetting(t *testing.T) {
	p := &preflight{ctx: t.Context()}
	dir := "file://" + t.TempDir() + "/new"
	for name, c := range map[string]struct{ url, snapshots, says, fails string }{
		"none":               {"", "", "no databases", ""},
		"a directory":        {dir, "", "written to", ""},
		"the snapshot store": {dir, dir, "the snapshot store's place", ""},
		"not absolute":       {"file://x/y", "", "", "three slashes"},
		"another service":    {"gs://x", "", "", "BERTH_ARCHIVE_STORE"},
		"not a directory":    {"file:///dev/null/x", "", "", "BERTH_ARCHIVE_STORE"},
	} {
		t.Run(name, func(t *testing.T) {
			p.cfg.ArchiveStore, p.cfg.SnapshotStore = c.url, c.snapshots
			detail, err := p.archives()
			if c.fails == "" && (err != nil || !strings.Contains(detail, c.says)) || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("check = %q, %v", detail, err)
			}
		})
	}
}

func TestSnapshotStoreSetting(t *testing.T) {
	p := &preflight{ctx: t.Context()}
	for name, c := range map[string]struct{ url, says, fails string }{
		"none":            {"", "none", ""},
		"a directory":     {"file://" + t.TempDir() + "/new", "written to", ""},
		"not absolute":    {"file://x/y", "", "three slashes"},
		"another service": {"gs://x", "", "BERTH_SNAPSHOT_STORE"},
		"not a directory": {"file:///dev/null/x", "", "BERTH_SNAPSHOT_STORE"},
	} {
		t.Run(name, func(t *testing.T) {
			p.cfg.SnapshotStore = c.url
			detail, err := p.snapshots()
			if c.fails == "" && (err != nil || !strings.Contains(detail, c.says)) || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("check = %q, %v", detail, err)
			}
		})
	}
	if err := failed([]Check{{Name: "x", Err: errors.New("away"), Later: true}}); err != nil {
		t.Errorf("a store that is away keeps serve from starting: %v", err)
	}
}

// A host whose disk is nearly full starts: it is told of, and deletes make room.
func TestAFullDiskKeepsNoHostFromStarting(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), DiskHeadroomMB: 1 << 40}
	checks := checkHost(t.Context(), cfg)
	i := slices.IndexFunc(checks, func(c Check) bool { return c.Err != nil && strings.Contains(c.Err.Error(), "BERTH_DISK_HEADROOM_MB") })
	if i < 0 || !checks[i].Later {
		t.Errorf("%+v", checks)
	}
}

// A store that never answers does not keep a daemon from its first heartbeat, and is
// told of.
func TestAMuteStoreDelaysNoStart(t *testing.T) {
	for name, value := range s3test.Credentials() {
		t.Setenv(name, value)
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	asked := make(chan struct{}, 1)
	go func() {
		for {
			conn, err := mute.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			select {
			case asked <- struct{}{}:
			default:
			}
		}
	}()
	var log strings.Builder
	store := s3test.URL(mute.Addr().String())
	d := &Daemon{cfg: Config{SnapshotStore: store, ArchiveStore: store + "&prefix=archives"}, log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, c := range checkHost(t.Context(), d.cfg) {
		if strings.Contains(c.Name, "store") {
			t.Errorf("%s is looked at before the first heartbeat", c.Name)
		}
	}
	select {
	case <-asked:
		t.Error("the store was asked")
	default:
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	d.warnOfStores(ctx) // ends with the daemon
	if log.Len() > 0 {
		t.Errorf("told of at the end: %s", &log)
	}
	d.cfg.SnapshotStore, d.cfg.ArchiveStore = "file:///dev/null/x", ""
	d.warnOfStores(t.Context())
	if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, `store="snapshot store"`) || !strings.Contains(got, "BERTH_SNAPSHOT_STORE") {
		t.Errorf("log: %s", got)
	}
}

func TestDoctorTriesTheRoutersOfDatabases(t *testing.T) {
	open, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	shut, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shut.Close()
	at := func(all ...net.Listener) Config {
		c := Config{DBDomain: "db.example.com"}
		for _, l := range all {
			c.DBRouters = append(c.DBRouters, l.Addr().String())
		}
		return c
	}
	for what, c := range map[string]struct {
		cfg  Config
		want string
		bad  bool
	}{
		"none":          {Config{}, "BERTH_DB_ROUTERS", false},
		"one":           {at(open), "1 take connections", false},
		"one that left": {at(open, shut), shut.Addr().String(), true},
	} {
		p := &preflight{ctx: t.Context(), cfg: c.cfg}
		detail, err := p.routers()
		if (err != nil) != c.bad || !strings.Contains(detail+fmt.Sprint(err), c.want) {
			t.Errorf("%s: %q, %v", what, detail, err)
		}
	}
}

// A host builds templates now and then. That it cannot keeps it from nothing else.
func TestDoctorLooksAtWhatTemplatesAreBuiltWith(t *testing.T) {
	dir, tools := t.TempDir(), t.TempDir()
	t.Setenv("PATH", tools)
	check := func(sources string) Check {
		t.Helper()
		for _, c := range checkHost(t.Context(), Config{TemplateSources: sources}) {
			if c.Name == "templates" {
				return c
			}
		}
		t.Fatal("templates are not looked at")
		return Check{}
	}
	if c := check(""); c.Err != nil || !strings.Contains(c.Detail, "none are built here") {
		t.Errorf("without definitions: %+v", c)
	}
	put := func(path, content string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(dir, "derived", "template.yaml"), "name: derived\nfrom: base\ncpu: 1\nmemory_mb: 512\ndisk_mb: 1024\n", 0o600)
	if c := check(dir); c.Err != nil {
		t.Errorf("with one that others are built from: %+v", c)
	}
	put(filepath.Join(dir, "base", "template.yaml"), "name: base\nbootstrap: {suite: bookworm}\ncpu: 1\nmemory_mb: 512\ndisk_mb: 1024\n", 0o600)
	if c := check(dir); !c.Later || c.Err == nil || !strings.Contains(c.Err.Error(), "mmdebstrap") || !strings.Contains(c.Err.Error(), "base") {
		t.Errorf("without mmdebstrap: %+v", c)
	}
	put(filepath.Join(tools, "mmdebstrap"), "#!/bin/sh\n", 0o700)
	if _, err := image.HostSources("bookworm"); err != nil {
		if c := check(dir); c.Err == nil || !strings.Contains(c.Err.Error(), "bookworm") {
			t.Errorf("without sources: %+v", c)
		}
	} else if c := check(dir); c.Err != nil || !strings.Contains(c.Detail, dir) {
		t.Errorf("with everything: %+v", c)
	}
	put(filepath.Join(dir, "base", "template.yaml"), "name: other\n", 0o600)
	if c := check(dir); c.Err == nil || !strings.Contains(c.Err.Error(), "BERTH_TEMPLATE_SOURCES") {
		t.Errorf("with a definition that is wrong: %+v", c)
	}
}
