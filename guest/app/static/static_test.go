package static

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func site(t *testing.T, spa bool) *Site {
	t.Helper()
	dir, outside := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(dir, "index.html"): "home", filepath.Join(dir, "about.html"): "about", filepath.Join(dir, "docs/index.html"): "docs",
		filepath.Join(dir, "a b.css"): "css", filepath.Join(dir, ".env"): "secret", filepath.Join(dir, ".git/config"): "secret",
		filepath.Join(dir, ".well-known/x"): "known", filepath.Join(outside, "secret"): "secret",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "link.txt")); err != nil {
		t.Fatal(err)
	}
	s, err := New(dir, spa)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func ask(s *Site, method, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://site/", nil)
	r.URL.Path, r.RequestURI = target, target
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestASite(t *testing.T) {
	s := site(t, false)
	for target, want := range map[string]string{
		"/": "200 home", "/index.html": "200 home", "/about": "200 about", "/about.html": "200 about", "/docs/": "200 docs", "/docs": "301 /docs/", "/about/": "301 /about",
		"/a b.css": "200 css", "/.well-known/x": "200 known", "/.env": "404", "/.git/config": "404", "/docs/../.env": "404", "/link.txt": "404", "/../../etc/passwd": "404",
		"/none": "404", "//evil.test/": "404", "/a\x00": "404", `/..\secret`: "404", "/docs/index.html/": "301 /docs/index.html", "//docs": "301 /docs/",
	} {
		w := ask(s, http.MethodGet, target)
		got := http.StatusText(w.Code)
		switch w.Code {
		case 200:
			got = "200 " + w.Body.String()
		case 301:
			got = "301 " + w.Header().Get("Location")
		case 404:
			got = "404"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", target, got, want)
		}
		if strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%q tells the secret", target)
		}
		// The next deployment may have another file there, or a directory.
		if got := w.Header().Get("Cache-Control"); got != "public, max-age=0, must-revalidate" && w.Code != http.StatusNotFound {
			t.Errorf("%q: Cache-Control: %q", target, got)
		}
	}
	if w := ask(s, http.MethodPost, "/"); w.Code != http.StatusMethodNotAllowed {
		t.Error(w.Code)
	}
	w := ask(s, http.MethodGet, "/about")
	if got := w.Header().Get("Content-Type"); got != "text/html; charset=utf-8" || w.Header().Get("Last-Modified") == "" {
		t.Error(w.Header())
	}
	if w := ask(s, http.MethodGet, "/about", "If-None-Match", w.Header().Get("ETag")); w.Code != http.StatusNotModified {
		t.Error(w.Code, w.Header())
	}
	if w := ask(s, http.MethodGet, "/about", "Range", "bytes=1-2"); w.Code != http.StatusPartialContent || w.Body.String() != "bo" {
		t.Error(w.Code, w.Body)
	}
	if w := ask(s, http.MethodHead, "/about"); w.Code != 200 || w.Body.Len() != 0 {
		t.Error(w.Code, w.Body)
	}
}

func TestWhatIsNotThere(t *testing.T) {
	s := site(t, true)
	for target, want := range map[string]string{"/users/7": "home", "/app.js": "404 page not found\n", "/.env": "404 page not found\n"} {
		if w := ask(s, http.MethodGet, target); w.Body.String() != want {
			t.Errorf("%s: %d %q", target, w.Code, w.Body)
		}
	}
	const browser = "text/html,application/xhtml+xml,*/*;q=0.8"
	for target, accept := range map[string]string{ // by what asks
		"/users/john.doe": browser, "/v1.2": browser, "/app.js": "*/*", "/a.png": "image/avif,image/webp,*/*",
	} {
		w := ask(s, http.MethodGet, target, "Accept", accept)
		if page := w.Body.String() == "home"; page != (accept == browser) {
			t.Errorf("%s: %d %q", target, w.Code, w.Body)
		}
	}
	s = site(t, false)
	if err := s.root.WriteFile("404.html", []byte("nothing here"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := ask(s, http.MethodGet, "/none", "Range", "bytes=0-1")
	if w.Code != http.StatusNotFound || w.Body.String() != "nothing here" || w.Header().Get("ETag") != "" {
		t.Errorf("%d %q %v", w.Code, w.Body, w.Header())
	}
	if err := s.root.WriteFile("200.html", []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.root.Remove(index); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{"/": "200 program", "/users/7": "200 program", "/none.js": "404 nothing here", "/about": "200 about"} {
		if w := ask(s, http.MethodGet, target); fmt.Sprint(w.Code, " ", w.Body) != want {
			t.Errorf("%s: %d %q, want %s", target, w.Code, w.Body, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	for _, seed := range []string{"/", "/a/../b", "//x", "/.x", "/\x00", "/%2e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if name, ok := clean(p); ok && (strings.HasPrefix(name, "/") || strings.Contains("/"+name+"/", "/../")) {
			t.Errorf("%q becomes %q", p, name)
		}
	})
}
