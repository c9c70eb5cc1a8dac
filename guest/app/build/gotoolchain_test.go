package build

import (
	"archive/zip"
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// goZip is a module's zip of a Go that prints its version.
func goZip(t *testing.T, module string, more ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, name := range append([]string{module + "/bin/go", module + "/pkg/tool/linux_amd64/link", module + "/VERSION"}, more...) {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("#!/bin/sh\necho go version go1.22.9 linux/amd64\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestGoComesFromTheModuleProxy(t *testing.T) {
	const module = "golang.org/toolchain@v0.0.1-go1.22.9.linux-amd64"
	fetched := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/golang.org/toolchain/@v/list":
			_, _ = w.Write([]byte("v0.0.1-go1.22.10.darwin-amd64\nv0.0.1-go1.22.9.linux-amd64\nv0.0.1-go1.22.1.linux-amd64\nv0.0.1-go1.23rc1.linux-amd64\nv0.0.1-go1.3.linux-amd64\n"))
		case "/golang.org/toolchain/@v/v0.0.1-go1.22.9.linux-amd64.zip":
			if fetched++; fetched == 1 {
				http.Error(w, "later", http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write(goZip(t, module, "elsewhere/file"))
		case "/golang.org/toolchain/@v/v0.0.1-go1.3.linux-amd64.zip":
			_, _ = w.Write(goZip(t, "golang.org/toolchain@v0.0.1-go1.3.linux-amd64", "golang.org/toolchain@v0.0.1-go1.3.linux-amd64/../../../out"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer proxy.Close()
	dir := filepath.Join(t.TempDir(), "runtimes", "go")
	for range 2 {
		goroot, err := InstallGo(t.Context(), proxy.URL, ">=1.19", dir)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(filepath.Join(goroot, "bin", "go"), "version").Output()
		if err != nil || !strings.Contains(string(out), "go1.22.9") {
			t.Errorf("its go: %s, %v", out, err)
		}
		if st, err := os.Stat(filepath.Join(goroot, "pkg/tool/linux_amd64/link")); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("its linker: %v, %v", st, err)
		}
	}
	if fetched != 2 {
		t.Errorf("it was fetched %d times: once in vain, and once", fetched)
	}
	for _, c := range []struct{ want, err string }{{"1.24", "has no Go 1.24"}, {"1.22.1", "404"}, {"1.3", "unpack"}} {
		if _, err := InstallGo(t.Context(), proxy.URL, c.want, dir); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", c.want, err)
		}
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 1 {
		t.Errorf("there are %v, %v", names, err)
	}
}
