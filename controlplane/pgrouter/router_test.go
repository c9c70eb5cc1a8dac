package pgrouter

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/controlplane/pki"
)

func TestARouterTellsWhenItsCertificatesEnd(t *testing.T) {
	dir := t.TempDir()
	if err := pki.InitCluster(dir, []pki.Member{{ID: "a", Address: "127.0.0.1:7001"}}, "ann", nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := pki.AddRouter(dir, filepath.Join(dir, "a"), "r1", nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	node, err := pki.LoadNode(filepath.Join(dir, "r1"))
	if err != nil {
		t.Fatal(err)
	}
	databases, err := certs.OpenDev(t.TempDir(), "db.test", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ends := (&Server{node: node, certs: databases, cfg: Config{Domain: "db.test"}}).certificateEnds()
	for name, least := range map[string]time.Duration{"node": 29 * 24 * time.Hour, "ca": 9 * 365 * 24 * time.Hour, "databases": 80 * 24 * time.Hour} {
		if left := time.Until(ends[name]); left < least {
			t.Errorf("%s ends in %s, want at least %s", name, left, least)
		}
	}
}
