package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/app/applog"
	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/app/source"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestVersionsThatSatisfy(t *testing.T) {
	for _, c := range []struct {
		have, want string
		ok         bool
	}{
		{"22.23.3", "", true}, {"22.23.3", "22", true}, {"22.23.3", "22.23", true}, {"22.23.3", "22.23.3", true}, {"22.23.3", "22.x", true}, {"22.23.3", "lts", true},
		{"22.23.3", "2", false}, {"22.23.3", "22.2", false}, {"3.11.2", "3.1", false}, {"22.23.3", "20", false}, {"22.23.3", "22.23.3.1", false},
		{"1.26.0", ">=1.22", true}, {"1.21.9", ">=1.22", false}, {"1.22", ">=1.22.0", true}, {"1.9", ">=1.10", false},
		{"3.11.2", ">=3.10,<3.12", true}, {"3.11.2", ">=3.12,<4", false}, {"3.11.2", ">=3.8,<3.11", false}, {"3.12.0", ">=3.11,<3.12", false},
	} {
		if got := satisfies(c.have, c.want); got != c.ok {
			t.Errorf("%s for %q: %v", c.have, c.want, got)
		}
	}
	for d, want := range map[time.Duration]string{12 * time.Minute: "12m", time.Second: "1s", 90 * time.Second: "1m30s"} {
		if got := short(d); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// run builds files.
func run(t *testing.T, in appapi.Build, files map[string]string) (appapi.BuildStatus, Made, Config, error) {
	t.Helper()
	dir := t.TempDir()
	var raw bytes.Buffer
	zip := gzip.NewWriter(&raw)
	w := tar.NewWriter(zip)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []io.Closer{w, zip} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	runner := &command.Runner{}
	cfg := Config{
		Runner: runner, Cloner: &source.Cloner{Runner: runner}, WorkDir: filepath.Join(dir, "app"), Staging: filepath.Join(dir, "stage"), Upload: filepath.Join(dir, "up"),
		Cache: filepath.Join(dir, "cache"), Home: dir, Temp: filepath.Join(dir, "tmp"),
	}
	if err := os.WriteFile(cfg.Upload, raw.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(cfg.Temp, 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := applog.Open(filepath.Join(dir, "log"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	in.Upload = true
	var st appapi.BuildStatus
	made, err := Run(t.Context(), cfg, in, log, func(change func(*appapi.BuildStatus)) { change(&st) })
	return st, made, cfg, err
}

func TestWhereABuildPutsItsSite(t *testing.T) {
	for dir, want := range map[string]string{"dist": "dist", "build": "build", "dist/shop/browser": "dist/shop/browser", "dist/browser": "dist/browser", "out": "out"} {
		st, made, _, err := run(t, appapi.Build{Framework: "vite", Runtime: "python", InstallCommand: "true", BuildCommand: "mkdir -p " + dir + " && touch " + dir + "/index.html"},
			map[string]string{"package.json": "{}"})
		if err != nil && strings.Contains(err.Error(), "cannot be installed") {
			tier.Missing(t, "Node.js of the right version ("+err.Error()+")")
		}
		if err != nil || st.Plan.StaticDir != want || !st.Plan.SPA || made.Dir == "" {
			t.Errorf("%s: %+v, %v", dir, st.Plan, err)
		}
	}
	// A build may make a part of a site that is there.
	st, _, _, err := run(t, appapi.Build{}, map[string]string{"package.json": `{"scripts":{"build":"touch style.css"}}`, "index.html": ""})
	if err != nil && strings.Contains(err.Error(), "cannot be installed") {
		tier.Missing(t, "Node.js ("+err.Error()+")")
	}
	if err != nil || st.Plan.StaticDir != "." {
		t.Errorf("a part: %+v, %v", st.Plan, err)
	}
	st, _, _, err = run(t, appapi.Build{Framework: "vite", Runtime: "python", InstallCommand: "true", BuildCommand: "mkdir build && touch build/200.html"}, map[string]string{"package.json": "{}"})
	if err != nil || st.Plan.StaticDir != "build" {
		t.Errorf("a program alone: %+v %v", st.Plan, err)
	}
	// A link out of the app is no site.
	_, _, _, err = run(t, appapi.Build{Framework: "static", BuildCommand: "rm -r public && ln -s /usr/share public"}, map[string]string{"public/index.html": ""})
	if err == nil || !strings.Contains(err.Error(), "the build made no site") {
		t.Errorf("%v", err)
	}
}

func TestWhatABuildLeavesIsCleaned(t *testing.T) {
	_, _, cfg, err := run(t, appapi.Build{StartCommand: "x", BuildCommand: "touch ../tmp/left && mkdir ../tmp/dir"}, map[string]string{"a": ""})
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(cfg.Temp); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// Of a function nothing is detected: a runner starts it.
func TestWhatIsDetectedIsSaidOfApps(t *testing.T) {
	for _, function := range []bool{false, true} {
		_, _, cfg, err := run(t, appapi.Build{StartCommand: "x", NoImage: function}, map[string]string{"a": ""})
		if err != nil {
			t.Fatal(err)
		}
		log, err := applog.Open(filepath.Join(cfg.Home, "log"), 0)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(log.LastLines(100), "\n"); strings.Contains(text, "Detected other") == function {
			t.Errorf("function %t: %q", function, text)
		}
		_ = log.Close()
	}
}

func TestTheAppsOwnVariables(t *testing.T) {
	env := Made{Path: []string{"/app/node_modules/.bin"}, Venv: "/app/.venv"}.Environ("/home/app")
	if env["PATH"] != "/app/node_modules/.bin:/home/app/.local/bin:"+usualPath || env["VIRTUAL_ENV"] != "/app/.venv" || env["HOME"] != "/home/app" || len(env) != 3 {
		t.Errorf("%v", env)
	}
	if got := Ports(8080); len(got) != 2 || got["PORT"] != "8080" || got["HOST"] != "0.0.0.0" {
		t.Errorf("%v", got)
	}
	in := appapi.Build{Env: map[string]string{"A": "a-value", "B": "b-value"}, Secrets: []string{"B", "none"}, Git: &appapi.Git{Token: "t"}}
	if got := strings.Join(Secrets(in), ","); got != "b-value,,t" {
		t.Errorf("%q", got)
	}
}
