package agent

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/appapi"
)

// TestCachesBetweenBuilds: what a build has in its caches is handed over, and is there in
// the next build, where its tools look for it.
func TestCachesBetweenBuilds(t *testing.T) {
	g := start(t)
	if _, err := g.Cache(t.Context()); !appapi.HasCode(err, appapi.CodeNotBuilt) {
		t.Errorf("before a build: %v", err)
	}
	in := appapi.Build{
		ID: "d1", Port: 8000, CacheMB: 1, StartCommand: "true",
		InstallCommand: `cat $npm_config_cache/package node_modules/.cache/made; rm -rf node_modules; mkdir -p $npm_config_cache node_modules; echo a package > $npm_config_cache/package`,
		BuildCommand:   `cat node_modules/.cache/made; mkdir -p node_modules/.cache && echo made > node_modules/.cache/made`,
	}
	files := map[string]string{"x": ""}
	st := g.build(in, files)
	if st.Build.State != appapi.StateSucceeded || st.Build.CacheBytes == 0 {
		t.Fatalf("%+v", st.Build)
	}
	body, err := g.Cache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cache, err := io.ReadAll(body)
	body.Close()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(g.cfg.Cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(g.cfg.Cache, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.PutCache(t.Context(), bytes.NewReader(cache)); err != nil {
		t.Fatal(err)
	}
	in.ID = "d2"
	st = g.build(in, files)
	text := g.log(appapi.LogQuery{Follow: true}, g.BuildLog)
	if st.Build.State != appapi.StateSucceeded || !strings.Contains(text, "\na package\n") || !strings.Contains(text, "\nmade\n") {
		t.Errorf("%+v\n%s", st.Build, text)
	}
	if _, err := os.Stat(filepath.Join(g.cfg.Dir, cacheFile)); err == nil {
		t.Error("the archive is left")
	}
	// A build that fails keeps none.
	in.ID, in.BuildCommand = "d3", "false"
	if st := g.build(in, files); st.Build.State != appapi.StateFailed || st.Build.CacheBytes != 0 {
		t.Errorf("%+v", st.Build)
	}
	if _, err := g.Cache(t.Context()); !appapi.HasCode(err, appapi.CodeNotBuilt) {
		t.Errorf("after a failure: %v", err)
	}
}
