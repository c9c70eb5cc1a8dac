// Package static serves a directory as a site.
package static

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
)

// Site serves the files of a directory. Nothing outside it is served, also not by
// symbolic links.
type Site struct {
	root *os.Root
	spa  bool
}

// New returns the site in dir. With spa, index.html answers for what is no file: its
// program reads the path itself.
func New(dir string, spa bool) (*Site, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the site: %w", err)
	}
	return &Site{root: root, spa: spa}, nil
}

// Close closes the directory.
func (s *Site) Close() error { return s.root.Close() }

const (
	index    = "index.html"
	notFound = "404.html"
	found    = "200.html" // of a program that reads the path itself, beside pages that are there
)

// ServeHTTP implements http.Handler.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	// Without it browsers take what they have for a part of the file's age, and a redirect
	// for ever: a page would come with the style sheet of an earlier deployment.
	w.Header().Set("Cache-Control", "public, max-age=0, must-revalidate")
	name, ok := clean(r.URL.Path)
	if !ok {
		s.missing(w, r, name)
		return
	}
	if to := s.redirect(name, r.URL.Path); to != "" {
		u := *r.URL
		u.Path, u.RawPath, u.Scheme, u.Host = to, "", "", ""
		http.Redirect(w, r, u.String(), http.StatusMovedPermanently)
		return
	}
	for _, candidate := range []string{name, path.Join(name, index), name + ".html"} {
		if s.serve(w, r, candidate, http.StatusOK) {
			return
		}
	}
	s.missing(w, r, name)
}

// clean returns the file that a path names. Files that begin with a dot are nobody's
// business, but for the standard directory.
func clean(urlPath string) (string, bool) {
	name := strings.TrimPrefix(path.Clean("/"+urlPath), "/")
	if name == "" {
		name = "."
	}
	if strings.ContainsAny(urlPath, "\x00\\") || !fs.ValidPath(name) {
		return "", false
	}
	for i, part := range strings.Split(name, "/") {
		if name != "." && strings.HasPrefix(part, ".") && (i > 0 || part != ".well-known") {
			return name, false
		}
	}
	return name, true
}

// redirect returns the usual path of what has several: a directory's ends with a slash,
// so that the relative links of its index are right; a file's does not.
func (s *Site) redirect(name, urlPath string) string {
	slash := strings.HasSuffix(urlPath, "/")
	dir := s.isFile(path.Join(name, index)) && !s.isFile(name)
	switch {
	case dir && !slash:
		return "/" + name + "/"
	case slash && name != "." && !dir && (s.isFile(name) || s.isFile(name+".html")):
		return "/" + name
	}
	return ""
}

func (s *Site) isFile(name string) bool {
	st, err := s.root.Stat(name)
	return err == nil && st.Mode().IsRegular()
}

// missing answers for what is not there.
func (s *Site) missing(w http.ResponseWriter, r *http.Request, name string) {
	// What has a file's name may be asked for by a page, which would take index.html for it.
	isPage := name == "." || path.Ext(name) == "" || strings.Contains(r.Header.Get("Accept"), "text/html")
	if isPage && (s.spa && s.serve(w, r, index, http.StatusOK) || s.serve(w, r, found, http.StatusOK)) {
		return
	}
	if s.serve(w, r, notFound, http.StatusNotFound) {
		return
	}
	http.Error(w, "404 page not found", http.StatusNotFound)
}

// serve answers with a file; false: it is not there.
func (s *Site) serve(w http.ResponseWriter, r *http.Request, name string, status int) bool {
	if !s.isFile(name) { // before it is opened: a pipe would block
		return false
	}
	f, err := s.root.Open(name)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			http.Error(w, "403 forbidden", http.StatusForbidden)
			return true
		}
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if status != http.StatusOK {
		// A range or a condition is of the page that is not there.
		r = r.Clone(r.Context())
		for _, h := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
			r.Header.Del(h)
		}
		w = &withStatus{w, status}
	} else {
		w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, st.ModTime().UnixNano(), st.Size()))
	}
	http.ServeContent(w, r, path.Base(name), st.ModTime(), f)
	return true
}

// withStatus answers with another status than http.ServeContent means.
type withStatus struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *withStatus) WriteHeader(int) { w.ResponseWriter.WriteHeader(w.status) }
