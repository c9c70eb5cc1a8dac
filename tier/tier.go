// Package tier says which tests run. A test that needs more than Go, or longer than
// two seconds, begins with one of these calls; CONTRIBUTING.md says which. Every other
// test runs always.
//
// The calls skip a test in a run that has not asked for its tier. In a run that has,
// they fail it if the machine lacks what it needs: no test is skipped where it should
// run.
package tier

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const (
	// EnvRoot is "1" where the tests of the kernel's parts run, and those of installed
	// programs such as PostgreSQL.
	EnvRoot = "BERTH_TEST_ROOT"
	// EnvGuests is "1" where the tests on real guests run.
	EnvGuests = "BERTH_TEST_GUESTS"
)

// Slow begins a test that takes longer than two seconds, or waits for elections.
// `go test -short`, and with it `make test`, leaves it out.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: it runs without -short (make test-all)")
	}
}

// Root begins a test that needs root: it makes namespaces, mounts, nftables rules or
// cgroups. If these are not its own alone, its package is in KERNEL of the Makefile, so
// that no other test runs beside it.
func Root(t testing.TB) {
	t.Helper()
	if !HasRoot() {
		t.Skip("it needs root: " + EnvRoot + "=1")
	}
	if os.Geteuid() != 0 {
		t.Fatal(EnvRoot + "=1 is set, but this is not root")
	}
}

// HasRoot reports whether the tests that call Root run.
func HasRoot() bool { return os.Getenv(EnvRoot) == "1" }

// Guests begins a test on real guests, which needs root, an engine, and what `make
// build` and `bin/devstack prepare` make.
func Guests(t testing.TB) {
	t.Helper()
	if !HasGuests() {
		t.Skip("it starts guests: " + EnvGuests + "=1")
	}
	if os.Geteuid() != 0 {
		t.Fatal(EnvGuests + "=1 is set, but this is not root")
	}
}

// HasGuests reports whether the tests that call Guests run.
func HasGuests() bool { return os.Getenv(EnvGuests) == "1" }

// Program begins a test that runs an installed program, and returns its path. Without
// it, the test fails where EnvRoot is set, and is skipped elsewhere.
func Program(t testing.TB, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Missing(t, filepath.Base(names[0]))
	return ""
}

// Missing ends a test that lacks something which scripts/install-deps test installs.
func Missing(t testing.TB, what string) {
	t.Helper()
	if HasRoot() {
		t.Fatalf("there is no %s: scripts/install-deps test installs it", what)
	}
	t.Skipf("there is no %s: scripts/install-deps test installs it", what)
}
