package drivers

import (
	"cmp"
	"os"
	"os/exec"
	"testing"
)

// TestRegressionSuite shows what of PostgreSQL's own suite a database's owner can do:
// BERTH_PG_SOURCE is a source directory of PostgreSQL 16. It compares with nothing:
// see docs/databases.md.
func TestRegressionSuite(t *testing.T) {
	source := os.Getenv("BERTH_PG_SOURCE")
	if source == "" {
		t.Skip("needs a source directory of PostgreSQL 16: BERTH_PG_SOURCE")
	}
	at := newService(t).target(t)
	cmd := exec.CommandContext(t.Context(), "./regress", source, cmp.Or(os.Getenv("BERTH_PG_RESULTS"), t.TempDir()))
	cmd.Env = append(os.Environ(), at.environment()...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("\n%s", out)
}
