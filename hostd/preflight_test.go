package hostd

import (
	"errors"
	"strings"
	"testing"
)

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
