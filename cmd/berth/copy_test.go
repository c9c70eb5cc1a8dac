package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/berth-cloud/berth/controlplane/api"
)

func TestTarComesBack(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{"a.txt": "a", "sub/deep/b.sh": "b", "empty": ""} {
		path := filepath.Join(from, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("sub/deep/b.sh", filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := writeTar(&b, from); err != nil {
		t.Fatal(err)
	}
	if err := readTar(&b, to); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(to, "link"))
	if err != nil || string(raw) != "b" {
		t.Errorf("%q, %v", raw, err)
	}
	st, err := os.Stat(filepath.Join(to, "a.txt"))
	if err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestTarOfASandboxStaysInItsDirectory(t *testing.T) {
	for name, entries := range map[string][]tar.Header{
		"dots":     {{Name: "../../evil", Typeflag: tar.TypeReg}},
		"absolute": {{Name: "/tmp/berth-evil", Typeflag: tar.TypeReg}},
		"through a link": {
			{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/tmp"},
			{Name: "out/berth-evil", Typeflag: tar.TypeReg},
		},
		"hard link": {{Name: "x", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range entries {
			h.Mode = 0o644
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := readTar(&b, t.TempDir()); err == nil {
			t.Errorf("%s: it was unpacked", name)
		}
		if _, err := os.Stat("/tmp/berth-evil"); err == nil {
			t.Fatalf("%s: it left its directory", name)
		}
	}
}

// tarService is a service whose sandbox runs one command: it says frames, and reads
// its input until the session is over.
func tarService(t *testing.T, frames ...api.Frame) *api.Client {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/exec/ws") {
			w.WriteHeader(http.StatusCreated)
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return // answered by Accept
		}
		defer ws.CloseNow()
		for _, f := range frames {
			raw, err := json.Marshal(f)
			if err == nil {
				err = ws.Write(r.Context(), websocket.MessageText, raw)
			}
			if err != nil {
				t.Error(err)
			}
		}
		for {
			if _, _, err := ws.Read(r.Context()); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	c, err := api.NewClient(nil, "k", server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestACopyOfADirectoryThatCannotBeReadEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a := &app{stderr: io.Discard}
	err := a.uploadDir(ctx, tarService(t), filepath.Join(t.TempDir(), "gone"), place{"k7m2qz4xw3v5n6a2j7p4t5r6sa", "/app"})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestACopyThatTarInTheSandboxRefusesSaysWhy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := tarService(t, api.Frame{Type: "stderr", Data: "no space left"}, api.Frame{Type: "exit", ExitCode: new(2)})
	a := &app{stderr: io.Discard}
	err := a.uploadDir(ctx, c, t.TempDir(), place{"k7m2qz4xw3v5n6a2j7p4t5r6sa", "/app"})
	if err == nil || !strings.Contains(err.Error(), "exit code 2: no space left") {
		t.Errorf("%v", err)
	}
}

func TestALinkStandsForWhatItLeadsTo(t *testing.T) {
	entries := map[string]api.FileStat{
		"/app/current": {Type: api.FileSymlink, Mode: "0777", Target: "../srv/releases/2"}, "/srv/releases/2": {Type: api.FileDir, Mode: "0755"},
		"/etc/a": {Type: api.FileSymlink, Mode: "0777", Target: "/etc/b"}, "/etc/b": {Type: api.FileSymlink, Mode: "0777", Target: "c"}, "/etc/c": {Type: api.FileRegular, Mode: "0600"},
		"/loop": {Type: api.FileSymlink, Mode: "0777", Target: "loop"},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		st, ok := entries[r.URL.Query().Get("path")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if err := json.NewEncoder(w).Encode(st); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	c, err := api.NewClient(nil, "k", server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for path, want := range map[string]string{"/app/current/": "dir 0755", "/etc/a": "file 0600", "/etc/c": "file 0600"} {
		st, err := statTarget(t.Context(), c, place{"k7m2qz4xw3v5n6a2j7p4t5r6sa", path})
		if err != nil || string(st.Type)+" "+st.Mode != want {
			t.Errorf("%s: %+v, %v, want %s", path, st, err, want)
		}
	}
	if _, err := statTarget(t.Context(), c, place{"k7m2qz4xw3v5n6a2j7p4t5r6sa", "/loop"}); err == nil || !strings.Contains(err.Error(), "too many levels") {
		t.Errorf("%v", err)
	}
}

func TestALineThatContinuesSaysSo(t *testing.T) {
	var b bytes.Buffer
	a := &app{json: true, stdout: &b}
	for _, l := range []api.LogLine{{Line: "a", Partial: true}, {Line: "b"}} {
		if err := a.printLogLine("stdout", l); err != nil {
			t.Fatal(err)
		}
	}
	if first, second, _ := strings.Cut(b.String(), "\n"); !strings.Contains(first, `"partial":true`) || strings.Contains(second, "partial") {
		t.Errorf("%s", b.String())
	}
}

func TestInstant(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{"5m": "2026-11-20T11:55:00Z", "2026-11-20T13:05:09.412Z": "2026-11-20T13:05:09.412Z"} {
		got, err := instant(text, now)
		if err != nil || got.Format(time.RFC3339Nano) != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "yesterday", "-5m"} {
		if _, err := instant(text, now); err == nil {
			t.Errorf("%q is no time", text)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 30: "1 GiB", 1 << 60: "1024 PiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestPlace(t *testing.T) {
	id := "k7m2qz4xw3v5n6a2j7p4t5r6sa"
	for text, want := range map[string]place{
		id + ":/a:b": {id, "/a:b"}, id + ":rel": {path: id + ":rel"}, "c:/x": {path: "c:/x"}, "-": {path: "-"},
		strings.ToUpper(id) + ":/x": {path: strings.ToUpper(id) + ":/x"},
	} {
		if got := parsePlace(text); got != want {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
