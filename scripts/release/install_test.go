package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// archive is a release's archive of a program that says which it is.
func archive(t *testing.T, script string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "berth", Mode: 0o755, Size: int64(len(script)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(script)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// releases serves the files of releases by path.
func releases(t *testing.T, files map[string][]byte) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, there := files[r.URL.Path]
		if !there {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(file)
	}))
	t.Cleanup(server.Close)
	return server
}

func install(t *testing.T, env ...string) (out string, err error) {
	t.Helper()
	cmd := exec.Command("sh", "../install.sh")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	raw, err := cmd.CombinedOutput()
	return string(raw), err
}

func TestInstall(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("there is no script for ", runtime.GOOS)
	}
	name := fmt.Sprintf("berth_%s_%s.tar.gz", runtime.GOOS, runtime.GOARCH)
	good, old, broken := archive(t, "#!/bin/sh\necho new\n"), archive(t, "#!/bin/sh\necho old\n"), archive(t, "#!/bin/sh\nexit 3\n")
	sum := func(b []byte) []byte {
		return fmt.Appendf(nil, "%x  other\n%x  %s\n", sha256.Sum256(nil), sha256.Sum256(b), name)
	}
	server := releases(t, map[string][]byte{
		"/latest/download/SHA256SUMS": sum(good), "/latest/download/" + name: good,
		"/download/v0.1.0/SHA256SUMS": sum(old), "/download/v0.1.0/" + name: old,
		"/download/v6.6.6/SHA256SUMS": sum(good), "/download/v6.6.6/" + name: old,
		"/download/v0.0.1/SHA256SUMS": []byte("\n"), "/download/v0.0.1/" + name: good,
		"/download/v0.0.2/SHA256SUMS": sum(broken), "/download/v0.0.2/" + name: broken,
	})
	dir := filepath.Join(t.TempDir(), "with a space", "bin")
	to := []string{"BERTH_RELEASES=" + server.URL, "BERTH_INSTALL_DIR=" + dir}
	runs := func(want string) {
		t.Helper()
		raw, err := exec.Command(filepath.Join(dir, "berth"), "version").Output()
		if err != nil || string(raw) != want+"\n" {
			t.Errorf("the program says %q, %v", raw, err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("left behind: %v, %v", entries, err)
		}
	}
	out, err := install(t, append(to, "BERTH_VERSION=v0.1.0")...)
	if err != nil || !strings.Contains(out, "export PATH=\""+dir) {
		t.Fatalf("%v: %s", err, out)
	}
	runs("old")
	if out, err = install(t, to...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	runs("new")

	for version, says := range map[string]string{
		"v6.6.6": "the download has the SHA-256 ",
		"v0.0.1": "does not name " + name,
		"v0.0.2": "the program does not run on this machine",
		"v0.0.3": "could not be downloaded: check the network",
	} {
		out, err := install(t, append(to, "BERTH_VERSION="+version)...)
		if err == nil || !strings.Contains(out, says) {
			t.Errorf("%s: %v: %s", version, err, out)
		}
		runs("new") // nothing was replaced
	}

	// Without a directory it is /usr/local/bin, or the home of who may not write there.
	if os.Geteuid() != 0 {
		home := t.TempDir()
		if out, err := install(t, "BERTH_RELEASES="+server.URL, "HOME="+home); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, err := os.Stat(filepath.Join(home, ".local", "bin", "berth")); err != nil {
			t.Error(err)
		}
	}
}
