package source

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/tier"
)

// needLFS skips where there is no git-lfs, which `make test` has.
func needLFS(t *testing.T) {
	t.Helper()
	tier.Program(t, "git-lfs")
}

// large is a server of large files: its batch API, and their bytes.
type large struct {
	from string // the address that files are said to be at; "": the server's own

	mu    sync.Mutex
	files map[string]string // by the digest
	asked []string          // what was authorized, as path and header
}

func (l *large) note(r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, r.URL.Path+" "+r.Header.Get("Authorization"))
}

func (l *large) told() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// ServeHTTP implements http.Handler, as https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md has it.
func (l *large) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.note(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !strings.HasSuffix(r.URL.Path, "/objects/batch") {
		text, ok := l.files[path.Base(r.URL.Path)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, text)
		return
	}
	type object struct {
		OID     string         `json:"oid"`
		Size    int64          `json:"size"`
		Actions map[string]any `json:"actions,omitempty"`
		Error   map[string]any `json:"error,omitempty"`
	}
	var batch struct {
		Objects []object `json:"objects"`
	}
	if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	from := l.from
	if from == "" {
		from = "http://" + r.Host + strings.TrimSuffix(r.URL.Path, "/objects/batch")
	}
	for i, o := range batch.Objects {
		if _, ok := l.files[o.OID]; !ok {
			batch.Objects[i].Error = map[string]any{"code": 404, "message": "no such file"}
			continue
		}
		batch.Objects[i].Actions = map[string]any{"download": map[string]any{"href": from + "/bytes/" + o.OID}}
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": batch.Objects})
}

// pointer is what is in the tree for a large file.
func pointer(text string, size int) (oid, file string) {
	sum := sha256.Sum256([]byte(text))
	oid = hex.EncodeToString(sum[:])
	return oid, fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, size)
}

const attributes = "*.bin filter=lfs diff=lfs merge=lfs -text\n"

func TestFilesOfGitLFSAreFetched(t *testing.T) {
	needLFS(t)
	h, bytes := newHost(t), &large{}
	oid, file := pointer("a large file", 12)
	store := &large{files: map[string]string{oid: "a large file"}}
	h.setLFS(store)
	h.commit("r", "x", map[string]string{".gitattributes": attributes, "dir/a.bin": file, "b.txt": "small"})
	h.setLogin("x-access-token:some-token")
	_, tree, out, err := h.clone(appapi.Git{URL: h.url + "/r", Token: "some-token"}, Limits{})
	if err != nil || fileText(t, tree, "dir/a.bin") != "a large file" || fileText(t, tree, "b.txt") != "small" || strings.Contains(out, "some-token") {
		t.Fatalf("%v, %q, %s", err, fileText(t, tree, "dir/a.bin"), out)
	}
	if found, err := exec.Command("grep", "-r", "some-token", tree).Output(); err == nil {
		t.Errorf("the token is in the tree: %s", found)
	}

	// Where the bytes are on another host, it is not told the token.
	bytes.files = store.files
	other := httptest.NewServer(bytes)
	defer other.Close()
	h.setLFS(&large{files: store.files, from: other.URL})
	_, tree, _, err = h.clone(appapi.Git{URL: h.url + "/r", Token: "some-token"}, Limits{})
	if err != nil || fileText(t, tree, "dir/a.bin") != "a large file" || len(bytes.told()) == 0 {
		t.Errorf("%v, %q, %v", err, fileText(t, tree, "dir/a.bin"), bytes.told())
	}
	// Nor is one that the server redirects to.
	h.setLFS(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	_, _, _, err = h.clone(appapi.Git{URL: h.url + "/r", Token: "some-token"}, Limits{})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), strings.TrimPrefix(other.URL, "http://")) {
		t.Errorf("a redirect: %v", err)
	}
	for _, line := range bytes.told() {
		if !strings.HasSuffix(line, " ") {
			t.Errorf("another host was told %q", line)
		}
	}
}

func TestWhereFilesOfGitLFSMayNotCome(t *testing.T) {
	tier.Slow(t)
	needLFS(t)
	oid, file := pointer("text", 4)
	wrong, wrongFile := pointer("what it should be", 4)
	_, huge := pointer("huge", 5<<30)
	for name, c := range map[string]struct {
		files  map[string]string
		server http.Handler
		says   string
	}{
		"no server":   {map[string]string{"a.bin": file}, nil, "files of Git LFS could not be fetched"},
		"no file":     {map[string]string{"a.bin": file}, &large{}, "no such file"},
		"other bytes": {map[string]string{"a.bin": wrongFile}, &large{files: map[string]string{wrong: "text"}}, "files of Git LFS could not be fetched"},
		"too large":   {map[string]string{"a.bin": huge}, &large{}, "more than 1024 MB"},
		"by file":     {map[string]string{"a.bin": file, ".lfsconfig": "[lfs]\n\turl = file:///etc"}, &large{}, "lfs.url in .lfsconfig"},
		"by ssh":      {map[string]string{"a.bin": file, ".lfsconfig": "[lfs]\n\turl = ssh://x.test/r"}, &large{}, "lfs.url in .lfsconfig"},
		"credentials": {map[string]string{"a.bin": file, ".lfsconfig": "[lfs]\n\turl = https://a:b@x.test/r"}, &large{}, "lfs.url in .lfsconfig"},
		"by remote": {
			map[string]string{"a.bin": file, ".lfsconfig": "[remote \"origin\"]\n\tlfsurl = file:///etc\n[lfs]\n\tpushurl = file:///etc"},
			&large{files: map[string]string{oid: "text"}}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.setLFS(c.server)
			c.files[".gitattributes"] = attributes
			h.commit("r", "x", c.files)
			// The disk is watched as a whole: a small limit would count what others write.
			_, tree, _, err := h.clone(appapi.Git{URL: h.url + "/r"}, Limits{Bytes: 1 << 30})
			switch {
			case c.says == "" && (err != nil || fileText(t, tree, "a.bin") != "text"):
				t.Errorf("%v, %q", err, fileText(t, tree, "a.bin"))
			case c.says != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.says)):
				t.Errorf("%v", err)
			}
		})
	}
}
