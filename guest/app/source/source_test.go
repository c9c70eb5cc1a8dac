package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host serves the repositories in a directory, as hosts of git do.
type host struct {
	t   *testing.T
	dir string
	url string

	mu    sync.Mutex
	lfs   http.Handler // of requests below */info/lfs; nil: git-http-backend, which knows none
	login string       // what a client must say, as "user:password"; "": nothing
	asked []string     // the logins that clients said
	old   bool         // it speaks the first protocol, which gives no commit but those that refs name
}

func (h *host) setLogin(login string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.login = login
}

func (h *host) setLFS(lfs http.Handler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lfs = lfs
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	backend, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	handler := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(backend)), "git-http-backend"), Stderr: t.Output(),
		Env: []string{"GIT_PROJECT_ROOT=" + h.dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		h.mu.Lock()
		h.asked = append(h.asked, user+":"+password)
		refused := h.login != "" && user+":"+password != h.login
		if h.old {
			r.Header.Del("Git-Protocol")
		}
		h.mu.Unlock()
		if refused {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		h.mu.Lock()
		lfs := h.lfs
		h.mu.Unlock()
		if lfs != nil && strings.Contains(r.URL.Path, "/info/lfs/") {
			lfs.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

func (h *host) git(repo string, args ...string) string {
	h.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = filepath.Join(h.dir, repo)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@x.test", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@x.test",
		"GIT_ALLOW_PROTOCOL=http:https:file")
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit writes files and commits them.
func (h *host) commit(repo, message string, files map[string]string) string {
	h.t.Helper()
	dir := filepath.Join(h.dir, repo)
	if _, err := os.Stat(dir); err != nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			h.t.Fatal(err)
		}
		h.git(repo, "init", "-q", "-b", "main")
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			h.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	h.git(repo, "add", "-A")
	h.git(repo, "commit", "-q", "--allow-empty", "-m", message)
	return h.git(repo, "rev-parse", "HEAD")
}

func (h *host) clone(g appapi.Git, limits Limits) (Commit, string, string, error) {
	h.t.Helper()
	dir := h.t.TempDir()
	c := &Cloner{Runner: &command.Runner{}, Home: filepath.Join(dir, "home"), Limits: limits}
	var out bytes.Buffer
	g.AllowHTTP = true
	commit, err := c.Clone(h.t.Context(), g, filepath.Join(dir, "tree"), &out)
	return commit, filepath.Join(dir, "tree"), out.String(), err
}

func fileText(t *testing.T, path ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return "none"
	}
	return string(raw)
}

func TestRefsAreCloned(t *testing.T) {
	h := newHost(t)
	first := h.commit("r", "First\n\nwith a body", map[string]string{"a": "1"})
	h.git("r", "tag", "v1")
	h.git("r", "tag", "-a", "-m", "x", "both")
	second := h.commit("r", "Second", map[string]string{"a": "2"})
	h.git("r", "checkout", "-q", "-b", "feature/x+y@z")
	third := h.commit("r", "Third", map[string]string{"a": "3"})
	h.git("r", "branch", "both")
	h.git("r", "update-ref", "refs/pull/7/head", first)
	h.git("r", "checkout", "-q", "main")
	for ref, want := range map[string]string{
		"": second, "main": second, "v1": first, "feature/x+y@z": third, "both": third, "refs/tags/both": first, "refs/pull/7/head": first,
		first: first, first[:10]: first, third: third,
	} {
		commit, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r", Ref: ref}, Limits{})
		if err != nil || commit.ID != want || commit.Author != "Ada" {
			t.Errorf("%q: %+v, %v", ref, commit, err)
			continue
		}
		if got, want := fileText(t, tree, "a"), map[string]string{first: "1", second: "2", third: "3"}[want]; got != want {
			t.Errorf("%q: the file has %q", ref, got)
		}
		if want == first && commit.Message != "First\n\nwith a body" {
			t.Errorf("%q", commit.Message)
		}
	}
	// Where a host gives no commit by its name, one that is in no branch comes with the ref
	// that has it.
	h.mu.Lock()
	h.old = true
	h.mu.Unlock()
	h.git("r", "checkout", "-q", "--detach", first)
	fork := h.commit("r", "Fork", map[string]string{"a": "4"})
	h.git("r", "update-ref", "refs/pull/8/head", h.commit("r", "Later", map[string]string{"a": "5"}))
	h.git("r", "checkout", "-q", "main")
	for within, ok := range map[string]bool{"refs/pull/8/head": true, "refs/pull/7/head": false, "": false} {
		commit, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r", Ref: fork, Within: within}, Limits{})
		if ok && (err != nil || commit.ID != fork || fileText(t, tree, "a") != "4") || !ok && !errors.Is(err, ErrRefused) {
			t.Errorf("within %q: %+v, %v", within, commit, err)
		}
	}
	if _, _, _, err := h.clone(appapi.Git{URL: h.url + "/r", Ref: fork, Within: "--upload-pack=x"}, Limits{}); !errors.Is(err, ErrRefused) {
		t.Errorf("a ref that is none: %v", err)
	}
	// No history comes with a branch.
	_, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r"}, Limits{})
	if err != nil || fileText(t, tree, ".git/shallow") == "none" {
		t.Errorf("it is not shallow: %v", err)
	}
	for ref, says := range map[string]string{"none": `no branch or tag "none"`, "refs/heads/none": "no such branch", strings.Repeat("a", 40): "no commit", "abcdef0": "no commit"} {
		if _, _, _, err := h.clone(appapi.Git{URL: h.url + "/r", Ref: ref}, Limits{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if _, _, _, err := h.clone(appapi.Git{URL: h.url + "/none"}, Limits{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("%v", err)
	}
}

func TestAPrivateRepositoryTakesItsToken(t *testing.T) {
	h := newHost(t)
	h.commit("r", "x", map[string]string{"a": "1"})
	h.setLogin("x-access-token:some-token")
	_, tree, out, err := h.clone(appapi.Git{URL: h.url + "/r", Token: "some-token"}, Limits{})
	if err != nil || fileText(t, tree, "a") != "1" {
		t.Fatal(err)
	}
	found := 0
	err = filepath.WalkDir(tree, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && strings.Contains(fileText(t, path), "some-token") {
			found++
		}
		return err
	})
	if err != nil || found > 0 || strings.Contains(out, "some-token") {
		t.Errorf("the token is in %d files, or in %q: %v", found, out, err)
	}
	for _, token := range []string{"", "wrong-token"} {
		_, _, out, err := h.clone(appapi.Git{URL: h.url + "/r", Token: token}, Limits{})
		if !errors.Is(err, ErrRefused) || token != "" && strings.Contains(err.Error()+out, token) {
			t.Errorf("with the token %q: %v", token, err)
		}
	}
	// Who answers with a redirect is not told it.
	other := newHost(t)
	other.commit("r", "x", map[string]string{"a": "1"})
	redirect := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.url+r.URL.RequestURI(), http.StatusFound)
	}))
	defer redirect.Close()
	other.setLogin("nobody:knows")
	_, _, _, err = h.clone(appapi.Git{URL: redirect.URL + "/r", Token: "some-token"}, Limits{})
	other.mu.Lock()
	defer other.mu.Unlock()
	if err == nil || len(other.asked) == 0 {
		t.Errorf("%v, %q", err, other.asked)
	}
	for _, login := range other.asked {
		if strings.Contains(login, "some-token") {
			t.Error("another host was told the token")
		}
	}
}

func TestSubmodulesAreCloned(t *testing.T) {
	h := newHost(t)
	h.commit("sub", "sub", map[string]string{"inner": "yes"})
	h.commit("r", "x", map[string]string{"a": "1"})
	h.git("r", "-c", "protocol.allow=always", "submodule", "--quiet", "add", h.url+"/sub", "lib")
	h.commit("r", "with it", nil)
	_, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r"}, Limits{})
	if err != nil || fileText(t, tree, "lib/inner") != "yes" {
		t.Errorf("%v, %q", err, fileText(t, tree, "lib/inner"))
	}
	// One that people reach by SSH, at the repository's own host, is fetched as that is.
	for _, ssh := range []string{"git@127.0.0.1:sub", "ssh://git@127.0.0.1/sub"} {
		h.git("r", "config", "-f", ".gitmodules", "submodule.lib.url", ssh)
		h.commit("r", "by ssh", nil)
		if _, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r"}, Limits{}); err != nil || fileText(t, tree, "lib/inner") != "yes" {
			t.Errorf("%s: %v, %q", ssh, err, fileText(t, tree, "lib/inner"))
		}
	}
	// One of another protocol is refused.
	h.git("r", "config", "-f", ".gitmodules", "submodule.lib.url", "file://"+filepath.Join(h.dir, "sub"))
	h.commit("r", "by file", nil)
	if _, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r"}, Limits{}); !errors.Is(err, ErrRefused) || fileText(t, tree, "lib/inner") != "none" {
		t.Errorf("by file: %v", err)
	}
}

func TestLimitsOfARepository(t *testing.T) {
	h := newHost(t)
	files := map[string]string{"big": strings.Repeat("x", 2<<20)}
	for i := range 30 {
		files[fmt.Sprint("f", i)] = ""
	}
	h.commit("r", "x", files)
	// What takes too much is found while it comes, or before it is unpacked.
	for says, limits := range map[string]Limits{"more than 20 files": {Files: 20}, "more than (1 MB|2 MB of disk)": {Bytes: 1 << 20}} {
		_, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r"}, limits)
		if !errors.Is(err, ErrRefused) || !regexp.MustCompile(says).MatchString(err.Error()) || fileText(t, tree, "big") != "none" {
			t.Errorf("%v", err)
		}
	}
	h.commit("lfs", "x", map[string]string{".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text", "a.bin": "version https://git-lfs"})
	if _, err := exec.LookPath("git-lfs"); err != nil {
		if _, _, out, err := h.clone(appapi.Git{URL: h.url + "/lfs"}, Limits{}); err != nil || !strings.Contains(out, "Git LFS") {
			t.Errorf("%q, %v", out, err)
		}
	}
}

// Of a long history only the commit that is built is fetched.
func TestAHistoryIsNotFetched(t *testing.T) {
	h := newHost(t)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 8 {
		noise := make([]byte, 512<<10)
		for j := range noise {
			noise[j] = byte(random.Uint32())
		}
		h.commit("r", fmt.Sprint("commit ", i), map[string]string{"noise": string(noise)})
	}
	for _, ref := range []string{"", "main", h.git("r", "rev-parse", "HEAD~3")} {
		_, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r", Ref: ref}, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		size := int64(0)
		err = filepath.WalkDir(filepath.Join(tree, ".git"), func(_ string, e os.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				info, ierr := e.Info()
				size, err = size+info.Size(), ierr
			}
			return err
		})
		if err != nil || size > 1<<20 {
			t.Errorf("of 4 MB, %d bytes were fetched for %q: %v", size, ref, err)
		}
	}
}

// Names that differ in case are different files, and a link out of the tree is only that:
// what it leads to is neither given away nor changed.
func TestHostileTrees(t *testing.T) {
	h := newHost(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(outside, os.ModeSetuid|0o700); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(outside)
	if err != nil {
		t.Fatal(err)
	}
	h.commit("r", "x", map[string]string{"README": "1", "readme": "2", "Lib/x": "3", "lib/x": "4"})
	for name, to := range map[string]string{"file": outside, "dir": filepath.Dir(outside), "up": "../../../..", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(h.dir, "r", name)); err != nil {
			t.Fatal(err)
		}
	}
	h.commit("r", "links", nil)
	_, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r"}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Give(tree, "54327", Limits{}); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"README": "1", "readme": "2", "Lib/x": "3", "lib/x": "4"} {
		if got := fileText(t, tree, name); got != want {
			t.Errorf("%s has %q", name, got)
		}
	}
	after, err := os.Stat(outside)
	if err != nil || after.Mode() != before.Mode() || after.Sys().(*syscall.Stat_t).Uid != before.Sys().(*syscall.Stat_t).Uid {
		t.Errorf("what a link leads to was %v, and is %v: %v", before, after, err)
	}
	// A clone over it is not one through a link either.
	to := filepath.Join(t.TempDir(), "app")
	if err := os.Symlink(filepath.Dir(outside), to); err != nil {
		t.Fatal(err)
	}
	if err := Replace(tree, to); err != nil || fileText(t, outside) != "outside" || fileText(t, to, "readme") != "2" {
		t.Errorf("%v, %q", err, fileText(t, outside))
	}
}

// A hundred thousand files are many, and not too many.
func TestAHundredThousandFiles(t *testing.T) {
	tier.Slow(t)
	const files = 100_000
	name := func(i int) string { return fmt.Sprintf("d%d/f%d", i%100, i) }
	there := func(tree string) {
		t.Helper()
		if err := Give(tree, "", Limits{}); err != nil {
			t.Error(err)
		}
		for _, i := range []int{0, files / 2, files - 1} {
			if got := fileText(t, tree, name(i)); got != "x" {
				t.Errorf("%s has %q", name(i), got)
			}
		}
	}
	h := newHost(t)
	h.commit("r", "x", nil)
	var stream bytes.Buffer
	stream.WriteString("blob\nmark :1\ndata 1\nx\ncommit refs/heads/many\ncommitter A <a@x.test> 1700000000 +0000\ndata 4\nmany\n")
	headers := make([]tar.Header, files)
	for i := range files {
		fmt.Fprintf(&stream, "M 100644 :1 %s\n", name(i))
		headers[i] = tar.Header{Name: name(i), Mode: 0o644, Uname: "x"}
	}
	fast := exec.Command("git", "fast-import", "--quiet")
	fast.Dir, fast.Stdin = filepath.Join(h.dir, "r"), &stream
	if out, err := fast.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r", Ref: "many"}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	there(tree)
	dir := filepath.Join(t.TempDir(), "tree")
	raw := archive(t, headers...)
	if err := Unpack(t.Context(), bytes.NewReader(raw), dir, Limits{}); err != nil {
		t.Fatal(err)
	}
	there(dir)
	if err := Unpack(t.Context(), bytes.NewReader(raw), filepath.Join(t.TempDir(), "tree"), Limits{Files: files - 1}); !errors.Is(err, ErrRefused) {
		t.Errorf("beyond the limit: %v", err)
	}
}

func TestHooksAndFiltersOfARepositoryDoNotRun(t *testing.T) {
	h := newHost(t)
	mark := filepath.Join(t.TempDir(), "ran")
	h.commit("r", "x", map[string]string{
		".gitattributes": "* filter=evil", "a": "1", ".git-hooks/post-checkout": "#!/bin/sh\ntouch " + mark, ".gitconfig": "[core]\n\thooksPath = .git-hooks\n\tfsmonitor = touch " + mark,
	})
	if _, _, _, err := h.clone(appapi.Git{URL: h.url + "/r"}, Limits{}); err != nil {
		t.Fatal(err)
	}
	if fileText(t, mark) != "none" {
		t.Error("something of the repository ran")
	}
}

func TestBadRepositories(t *testing.T) {
	for name, g := range map[string]appapi.Git{
		"none":             {},
		"file":             {URL: "file:///etc"},
		"ext":              {URL: "ext::sh -c touch% /tmp/x"},
		"ext without":      {URL: "ext::sh"},
		"ssh":              {URL: "ssh://git@x.test/r"},
		"scp":              {URL: "git@x.test:r"},
		"git":              {URL: "git://x.test/r"},
		"http":             {URL: "http://x.test/r"},
		"option":           {URL: "--upload-pack=touch /tmp/x"},
		"path":             {URL: "/etc"},
		"credentials":      {URL: "https://a:b@x.test/r"},
		"user":             {URL: "https://a@x.test/r"},
		"option as host":   {URL: "https://-oProxy/r"},
		"newline":          {URL: "https://x.test/r\n"},
		"space":            {URL: "https://x.test/r --x"},
		"fragment":         {URL: "https://x.test/r#x"},
		"ref option":       {URL: "https://x.test/r", Ref: "--upload-pack=x"},
		"ref newline":      {URL: "https://x.test/r", Ref: "a\nb"},
		"ref space":        {URL: "https://x.test/r", Ref: "a b"},
		"ref up":           {URL: "https://x.test/r", Ref: "a/../b"},
		"ref of colon":     {URL: "https://x.test/r", Ref: "a:refs/heads/b"},
		"ref plus star":    {URL: "https://x.test/r", Ref: "refs/*"},
		"ref at":           {URL: "https://x.test/r", Ref: "a@{1}"},
		"ref dots":         {URL: "https://x.test/r", Ref: ".git"},
		"ref lock":         {URL: "https://x.test/r", Ref: "a.lock"},
		"ref slash":        {URL: "https://x.test/r", Ref: "a/"},
		"ref long":         {URL: "https://x.test/r", Ref: strings.Repeat("a", 300)},
		"token of newline": {URL: "https://x.test/r", Token: "a\nhost=x"},
	} {
		if err := CheckGit(g); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(g.URL, "a:b@") && strings.Contains(CheckGit(g).Error(), "a:b") {
			t.Error("the error tells the credentials")
		}
	}
	for _, ref := range []string{"", "main", "feature/a", "$(touch${IFS}x)", "a;b", "`x`", "v1.0.0", "ünï"} {
		if err := CheckGit(appapi.Git{URL: "https://x.test/a/b.git", Ref: ref}); err != nil {
			t.Errorf("%q: %v", ref, err)
		}
	}
}

func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	for _, h := range headers {
		text := h.Uname // the content, in a test
		h.Uname = ""
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(text))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			_, _ = io.WriteString(w, text)
		}
	}
	for _, c := range []io.Closer{w, zip} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestAnArchiveIsUnpacked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	raw := archive(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700}, tar.Header{Name: "./a/run", Mode: 0o4755, Uname: "first"},
		tar.Header{Name: "a/run", Mode: 0o6755, Uname: "second"}, tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "a/run"},
		tar.Header{Name: "a/up", Typeflag: tar.TypeSymlink, Linkname: "../link"}, tar.Header{Name: "empty", Typeflag: tar.TypeDir}, tar.Header{Name: "plain", Mode: 0o777 &^ 0o111, Uname: "x"})
	if err := Unpack(t.Context(), bytes.NewReader(raw), dir, Limits{}); err != nil {
		t.Fatal(err)
	}
	if got := fileText(t, dir, "a/up"); got != "second" {
		t.Errorf("%q", got)
	}
	st, err := os.Stat(filepath.Join(dir, "a/run"))
	if err != nil || st.Mode() != 0o755 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if err := Give(dir, "", Limits{}); err != nil {
		t.Error(err)
	}
	to := filepath.Join(t.TempDir(), "app")
	if err := os.MkdirAll(filepath.Join(to, "former"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Replace(dir, to); err != nil || fileText(t, to, "link") != "second" || fileText(t, to, "former") != "none" {
		t.Error(err)
	}
}

func TestBadArchives(t *testing.T) {
	outside := t.TempDir()
	for name, raw := range map[string][]byte{
		"up":            archive(t, tar.Header{Name: "../x", Uname: "x"}),
		"absolute":      archive(t, tar.Header{Name: "/etc/x", Uname: "x"}),
		"link up":       archive(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}),
		"link away":     archive(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: outside}),
		"through link":  archive(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "a/../.."}, tar.Header{Name: "l/x", Uname: "x"}),
		"hard link":     archive(t, tar.Header{Name: "a", Uname: "x"}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "a"}),
		"device":        archive(t, tar.Header{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}),
		"pipe":          archive(t, tar.Header{Name: "p", Typeflag: tar.TypeFifo}),
		"deep":          archive(t, tar.Header{Name: strings.Repeat("a/", 200) + "x", Uname: "x"}),
		"file as dir":   archive(t, tar.Header{Name: "a", Uname: "x"}, tar.Header{Name: "a/b", Uname: "x"}),
		"no gzip":       []byte("hello"),
		"nothing":       nil,
		"cut off":       archive(t, tar.Header{Name: "a", Uname: strings.Repeat("xyz", 1000)})[:60],
		"too many":      archive(t, tar.Header{Name: "1"}, tar.Header{Name: "2"}, tar.Header{Name: "3"}, tar.Header{Name: "4"}, tar.Header{Name: "5"}, tar.Header{Name: "6"}),
		"too large":     archive(t, tar.Header{Name: "a", Uname: strings.Repeat("x", 2000)}),
		"link over dir": archive(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "b"}, tar.Header{Name: "l/x", Uname: "x"}),
	} {
		if err := Unpack(t.Context(), bytes.NewReader(raw), filepath.Join(t.TempDir(), "tree"), Limits{Files: 5, Bytes: 1000}); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func FuzzUnpack(f *testing.F) {
	for _, h := range []tar.Header{{Name: "a", Uname: "x"}, {Name: "../a", Uname: "x"}, {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "a"}} {
		f.Add(archive(f, h))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		_ = Unpack(context.Background(), bytes.NewReader(raw), filepath.Join(dir, "tree"), Limits{Files: 100, Bytes: 1 << 20})
		if left, err := os.ReadDir(dir); err != nil || len(left) > 1 {
			t.Errorf("%v, %v", left, err)
		}
	})
}

func FuzzCheckGit(f *testing.F) {
	f.Add("https://x.test/r", "main")
	f.Add("ext::sh", "--x")
	f.Fuzz(func(t *testing.T, url, ref string) {
		if CheckGit(appapi.Git{URL: url, Ref: ref}) != nil {
			return
		}
		if !strings.HasPrefix(strings.ToLower(url), "https://") || strings.HasPrefix(ref, "-") || strings.ContainsAny(url+ref, " \n\x00") {
			t.Errorf("%q at %q is taken", url, ref)
		}
	})
}
