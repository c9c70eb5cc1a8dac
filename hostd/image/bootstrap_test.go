package image

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/vmm"
)

func TestSourcesOfTheSuiteAreTaken(t *testing.T) {
	dir := t.TempDir()
	list, parts := filepath.Join(dir, "sources.list"), filepath.Join(dir, "sources.list.d")
	write(t, list, `# comment
deb http://mirror.example/debian bookworm main contrib # trailing
deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] http://mirror.example/debian bookworm-updates main
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian trixie main
deb [trusted=yes] file:/srv/repo bookworm-security main
`)
	write(t, filepath.Join(parts, "debian.sources"), `Types: deb deb-src
# a comment
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://vendor.example/apt
Suites: vendor-bookworm
Components: main

Types: deb
URIs: http://mirror.example/debian
Suites: bookworm trixie
Components: main

Enabled: no
Types: deb
URIs: http://mirror.example/off
Suites: bookworm
Components: main

Types: deb-src
URIs: http://mirror.example/src
Suites: bookworm
Components: main
`)
	write(t, filepath.Join(parts, "ignored.txt"), "deb http://mirror.example/ignored bookworm main\n")
	got, err := hostSources("bookworm", list, parts, filepath.Join(dir, "no.gpg"))
	if err != nil {
		t.Fatal(err)
	}
	want := `Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
Components: main contrib

Types: deb
URIs: http://mirror.example/debian
Suites: bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/k.gpg

Types: deb
URIs: file:/srv/repo
Suites: bookworm-security
Components: main
Trusted: yes

Types: deb deb-src
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestHostWithoutSourcesForTheSuite(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "debian.gpg")
	list, parts := filepath.Join(dir, "sources.list"), filepath.Join(dir, "none.d")
	write(t, list, "deb http://mirror.example/debian trixie main\n") // of a newer Debian
	_, err := hostSources("bookworm", list, parts, keys)
	if err == nil || !strings.Contains(err.Error(), "bookworm") || !strings.Contains(err.Error(), keys) {
		t.Errorf("without Debian's keys: %v", err)
	}
	write(t, keys, "keys")
	got, err := hostSources("bookworm", list, parts, keys)
	if err != nil {
		t.Fatal(err)
	}
	want := "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: " + keys + "\n\n" +
		"Types: deb\nURIs: http://deb.debian.org/debian-security\nSuites: bookworm-security\nComponents: main\nSigned-By: " + keys + "\n\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestRootIsCleanedOfWhatGuestsMustNotShare(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"etc/ssh/ssh_host_rsa_key", "etc/ssh/ssh_host_rsa_key.pub", "etc/machine-id", "etc/resolv.conf",
		"etc/ssh/sshd_config", "etc/passwd", "var/log/dpkg.log",
	} {
		write(t, filepath.Join(dir, name), "x")
	}
	if err := cleanRoot(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"etc/ssh/ssh_host_rsa_key": false, "etc/ssh/ssh_host_rsa_key.pub": false, "etc/machine-id": false,
		"etc/resolv.conf": false, "var/log/dpkg.log": false, "etc/ssh/sshd_config": true, "etc/passwd": true,
	} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProgressGoesForward(t *testing.T) {
	var last int
	r := newReporter("base", func(p Progress) {
		if p.Template != "base" || p.Percent < last || p.Percent > 100 {
			t.Errorf("%+v after %d %%", p, last)
		}
		last = p.Percent
	})
	for _, step := range []string{StepBootstrap, StepImage, StepRun, StepBoot, StepStore} {
		for _, part := range []float64{0, 0.5, 1} {
			r.step(step, part, "")
		}
	}
	r.step(StepDone, 1, "")
	if last != 100 {
		t.Errorf("it ends at %d %%", last)
	}
	newReporter("base", nil).step(StepDone, 1, "") // nobody listens
}

func FuzzPickStanzas(f *testing.F) {
	f.Add("Types: deb\nSuites: bookworm\nURIs: x\n")
	f.Add("deb [a] x bookworm main")
	f.Fuzz(func(t *testing.T, raw string) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "a.sources"), raw)
		write(t, filepath.Join(dir, "list"), raw)
		if got, err := hostSources("bookworm", filepath.Join(dir, "list"), dir, filepath.Join(dir, "no.gpg")); err == nil && !strings.Contains(string(got), "bookworm") {
			t.Errorf("%q gives %q", raw, got)
		}
	})
}

// The host's daemon is spared when memory runs out; what builds its templates is not.
func TestABuildIsNotSparedWithItsHost(t *testing.T) {
	dir := t.TempDir()
	// It runs until it is known what it is.
	write(t, filepath.Join(dir, "mmdebstrap"), "#!/bin/sh\nuntil [ -e "+dir+"/told ]; do :; done\n")
	if err := os.Chmod(filepath.Join(dir, "mmdebstrap"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var pids []int
	expendable = func(pid int) {
		pids = append(pids, pid)
		write(t, filepath.Join(dir, "told"), "")
	}
	defer func() { expendable = vmm.Expendable }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := mmdebstrap(ctx, nil, nil, func(float64, string) {}); err != nil {
		t.Error(err)
	}
	if len(pids) != 1 {
		t.Errorf("%d processes are made expendable", len(pids))
	}
}
