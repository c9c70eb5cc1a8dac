package agent

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/app/applog"
	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/app/contain"
	"github.com/berth-cloud/berth/guest/app/static"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/tier"
)

// The agent runs this test as its server of static sites, and to contain images.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == contain.InsideMode:
		os.Exit(contain.Inside())
	case len(os.Args) == 6 && os.Args[1] == contain.OutsideMode:
		code, err := contain.Outside(os.Args[3], os.Args[5])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}
	if len(os.Args) > 5 && os.Args[1] == "static" {
		s, err := static.New(os.Args[5], strings.HasSuffix(os.Args[6], "true"))
		if err == nil {
			err = http.ListenAndServe(os.Args[3], s)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// guest is an agent as a host sees it.
type guest struct {
	*appapi.Client
	t    *testing.T
	cfg  Config
	stop func()
}

func start(t *testing.T) *guest { t.Helper(); return startIn(t, t.TempDir()) }

// startIn starts an agent whose files are in a directory.
func startIn(t *testing.T, dir string) *guest {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, cfg: Config{
		Version: "test", Listen: netip.MustParseAddrPort("127.0.0.1:0"), Peer: netip.MustParseAddr("127.0.0.1"), Program: program,
		Dir: filepath.Join(dir, "own"), WorkDir: filepath.Join(dir, "app"), Cache: filepath.Join(dir, "cache"), Home: filepath.Join(dir, "home"),
		Runner: &command.Runner{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	for _, made := range []string{g.cfg.Home, g.cfg.Cache} {
		if err := os.MkdirAll(made, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g.run()
	t.Cleanup(func() { g.stop() })
	return g
}

// run starts an agent over what is there.
func (g *guest) run() {
	g.t.Helper()
	a, err := New(g.cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	g.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			g.t.Error(err)
		}
	})
	g.Client = appapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", a.Addr().String())
	})
}

func (g *guest) await(what string, ok func(appapi.Status) bool) appapi.Status {
	g.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(3 * time.Minute)
	for {
		st, err := g.Status(g.t.Context())
		if err == nil && ok(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-late:
			g.t.Fatalf("not %s: %+v, %v", what, st, err)
		}
	}
}

func ended(st appapi.Status) bool {
	return st.Build.State == appapi.StateSucceeded || st.Build.State == appapi.StateFailed
}

// tarball packs files, by name and content.
func tarball(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
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
	return b.Bytes()
}

// build builds files to the end.
func (g *guest) build(in appapi.Build, files map[string]string) appapi.Status {
	g.t.Helper()
	if files != nil {
		in.Upload = true
		if err := g.PutSource(g.t.Context(), bytes.NewReader(tarball(g.t, files))); err != nil {
			g.t.Fatal(err)
		}
	}
	if _, err := g.Build(g.t.Context(), in); err != nil {
		g.t.Fatal(err)
	}
	return g.await("built", ended)
}

func (g *guest) log(q appapi.LogQuery, of func(context.Context, appapi.LogQuery) (io.ReadCloser, int64, error)) string {
	g.t.Helper()
	r, _, err := of(g.t.Context(), q)
	if err != nil {
		g.t.Fatal(err)
	}
	defer r.Close()
	raw, err := io.ReadAll(r)
	if err != nil {
		g.t.Fatal(err)
	}
	return string(raw)
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (g *guest) get(port int, path string) string {
	g.t.Helper()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	http.DefaultClient.CloseIdleConnections()
	return string(raw)
}

func TestAStaticSiteIsBuiltAndServed(t *testing.T) {
	g := start(t)
	if _, err := g.Run(t.Context(), appapi.Run{ID: "d1", Port: 3000}); !appapi.HasCode(err, appapi.CodeNotBuilt) {
		t.Errorf("run before a build: %v", err)
	}
	st := g.build(appapi.Build{ID: "d1", Port: 3000}, map[string]string{"index.html": "hello", "sub/x.txt": "x"})
	if st.Build.State != appapi.StateSucceeded || st.Build.Plan.Framework != "static" || len(st.Build.Phases) != 5 || st.Build.LogBytes == 0 {
		t.Fatalf("%+v", st.Build)
	}
	// What reaches an app's port comes from the gateway too, whoever sent it.
	if _, err := g.Run(t.Context(), appapi.Run{ID: "d1", Port: appapi.Port}); !appapi.HasCode(err, appapi.CodeInvalid) {
		t.Errorf("the app is to be at guestapp's own port: %v", err)
	}
	port := freePort(t)
	if _, err := g.Run(t.Context(), appapi.Run{ID: "d1", Port: port}); err != nil {
		t.Fatal(err)
	}
	listens := func(st appapi.Status) bool {
		for _, l := range st.Run.Listening {
			if l.Port == port && !l.Loopback {
				return true
			}
		}
		return false
	}
	g.await("listening", listens)
	if got := g.get(port, "/"); got != "hello" {
		t.Errorf("%q", got)
	}
	// The same again changes nothing.
	started := g.await("running", func(st appapi.Status) bool { return st.Run.State == appapi.StateRunning }).Run
	if st, err := g.Run(t.Context(), appapi.Run{ID: "d1", Port: port}); err != nil || st.Run.Starts != started.Starts || !st.Run.StartedAt.Equal(started.StartedAt) {
		t.Errorf("%+v, %v", st, err)
	}
	// Another agent goes on with it.
	g.stop()
	g.run()
	g.await("listening again", listens)
	if st, err := g.StopRun(t.Context()); err != nil || st.Run.State != appapi.StateStopped {
		t.Errorf("%+v, %v", st, err)
	}
	g.stop()
	g.run()
	if st := g.await("there", func(appapi.Status) bool { return true }); st.Run.ID != "" || st.Build.State != appapi.StateSucceeded {
		t.Errorf("%+v", st)
	}
}

func TestCommandsOfABuild(t *testing.T) {
	g := start(t)
	in := appapi.Build{
		ID: "d2", Port: 8000, InstallCommand: "echo $PORT-$HOST-$CI-$A && echo top-sec >&2", RootDirectory: "web",
		BuildCommand: "cat ../note && echo \"$TOKEN\" | sed 's/./&\\n/g' && pwd > out.txt", StartCommand: "echo started with $A $CI; sleep 1000",
		Env: map[string]string{"A": "b", "TOKEN": "top-secret-value", "CI": "mine"}, Secrets: []string{"TOKEN"},
	}
	st := g.build(in, map[string]string{"web/x": "", "note": "a note\n"})
	text := g.log(appapi.LogQuery{Follow: true}, g.BuildLog)
	if st.Build.State != appapi.StateSucceeded {
		t.Fatalf("%+v\n%s", st.Build, text)
	}
	for _, want := range []string{"8000-0.0.0.0-mine-b\n", "a note\n", "top-sec\n", "********", "==> Install: "} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q: %s", want, text)
		}
	}
	if strings.Contains(strings.ReplaceAll(text, "\n", ""), "top-secret-v") {
		t.Errorf("the log has the secret: %s", text)
	}
	if raw, err := os.ReadFile(filepath.Join(g.cfg.WorkDir, "web/out.txt")); err != nil || strings.TrimSpace(string(raw)) != filepath.Join(g.cfg.WorkDir, "web") {
		t.Errorf("%q, %v", raw, err)
	}
	if _, err := g.Run(t.Context(), appapi.Run{ID: "d2", Port: 8000, Env: map[string]string{"A": "top-secret-value"}, Secrets: []string{"A"}}); err != nil {
		t.Fatal(err)
	}
	g.await("started", func(appapi.Status) bool {
		return g.log(appapi.LogQuery{Tail: 1}, g.RunLog) == "started with ********\n"
	})
}

// A value of a variable is the same, byte for byte, in a build and in the app: no shell, and
// nothing of a container's, reads it.
func TestVariablesArriveByteForByte(t *testing.T) {
	g := start(t)
	const odd = "$HOME ${A} $(id) `id` 'single' \"double\" \\n \\ back\nnext line\ttab = # ünï  "
	env := map[string]string{"ODD": odd}
	st := g.build(appapi.Build{
		ID: "odd", Env: env, InstallCommand: `printf %s "$ODD" >installed`, BuildCommand: `printf %s "$ODD" >built`, StartCommand: `printf %s "$ODD" >started; sleep 1000`,
	}, map[string]string{"x": ""})
	if st.Build.State != appapi.StateSucceeded {
		t.Fatalf("%+v", st.Build)
	}
	if _, err := g.Run(t.Context(), appapi.Run{ID: "odd", Port: 3000, Env: env}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"installed", "built", "started"} {
		g.await(name, func(appapi.Status) bool {
			raw, err := os.ReadFile(filepath.Join(g.cfg.WorkDir, name))
			return err == nil && string(raw) == odd
		})
	}
}

func TestBuildsThatFail(t *testing.T) {
	g := start(t)
	files := map[string]string{"index.html": ""}
	for id, c := range map[string]struct {
		in    appapi.Build
		files map[string]string
		want  string
		phase string
	}{
		"exit":    {appapi.Build{BuildCommand: "for i in $(seq 30); do echo line $i; done; exit 4"}, files, "the build command failed with exit code 4\nline 11\nline 12\n", appapi.PhaseBuild},
		"install": {appapi.Build{InstallCommand: "no-such-tool"}, files, "the install command failed: command not found", appapi.PhaseInstall},
		"budget":  {appapi.Build{BuildCommand: "echo begun; sleep 1000", TimeoutSeconds: 1}, files, "the build exceeded its budget of 1s\n", appapi.PhaseBuild},
		"detect":  {appapi.Build{Framework: "dockerfile"}, files, "there is no Dockerfile", appapi.PhaseDetect},
		"image":   {appapi.Build{}, map[string]string{"Dockerfile": strings.Repeat("#", 2<<20)}, "it has more than 1024 KB", appapi.PhaseBuild},
		"no site": {appapi.Build{Framework: "vite", InstallCommand: "true", BuildCommand: "true"}, map[string]string{"package.json": "{}"}, "the build made no site", appapi.PhaseBuild},
		"runtime": {appapi.Build{Runtime: "python 1.2.3", StartCommand: "x"}, files, "python 1.2.3, which runtime asks for, cannot be installed here", appapi.PhaseRuntimes},
		"asdf":    {appapi.Build{StartCommand: "x"}, map[string]string{"main.py": "", ".tool-versions": "python 1.2.3\n"}, "python 1.2.3, which .tool-versions asks for, cannot be installed here", appapi.PhaseRuntimes},
		"mise":    {appapi.Build{StartCommand: "x"}, map[string]string{"main.py": "", "mise.toml": "[tools]\npython = \"1.2.4\"\n"}, "python 1.2.4, which mise.toml asks for, cannot be installed here", appapi.PhaseRuntimes},
		"secret":  {appapi.Build{BuildCommand: "echo hunter-222; exit 1", Env: map[string]string{"S": "hunter-222"}, Secrets: []string{"S"}}, files, "\n********", appapi.PhaseBuild},
	} {
		c.in.ID = id
		st := g.build(c.in, c.files)
		if st.Build.State != appapi.StateFailed || !strings.Contains(st.Build.Error, c.want) || st.Build.Phase != c.phase {
			t.Errorf("%s: %s in %s: %s", id, st.Build.State, st.Build.Phase, st.Build.Error)
		}
	}
	if _, err := g.Run(t.Context(), appapi.Run{ID: "x", Port: 1}); !appapi.HasCode(err, appapi.CodeNotBuilt) {
		t.Errorf("%v", err)
	}
}

// A build that prints much more than is kept succeeds; the end of it is kept.
func TestABuildThatPrintsMuch(t *testing.T) {
	tier.Slow(t)
	g := start(t)
	const size = 128 << 20
	st := g.build(appapi.Build{
		ID: "loud", BuildCommand: fmt.Sprintf("yes 0123456789012345678901234567890123456789012345678901234567890 | head -c %d; echo; echo the end", size),
		Env: map[string]string{"TOKEN": "top-secret-value"}, Secrets: []string{"TOKEN"},
	}, map[string]string{"index.html": ""})
	if st.Build.State != appapi.StateSucceeded || st.Build.LogBytes < size {
		t.Errorf("%+v", st.Build)
	}
	if tail := g.log(appapi.LogQuery{Tail: 2}, g.BuildLog); !strings.HasPrefix(tail, "the end\n") {
		t.Errorf("the log ends with %q", tail)
	}
	kept := int64(0)
	err := filepath.WalkDir(filepath.Join(g.cfg.Dir, "build.log"), func(_ string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			kept += info.Size()
		}
		return err
	})
	if err != nil || kept > 2*applog.DefaultMax {
		t.Errorf("%d bytes are kept, %v", kept, err)
	}
}

// A build that fills the disk fails by what its command says, and the agent goes on.
func TestABuildThatFillsItsDisk(t *testing.T) {
	tier.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	g := startIn(t, dir)
	t.Cleanup(func() { g.stop() }) // before its disk goes
	st := g.build(appapi.Build{ID: "fills", BuildCommand: "echo begun; dd if=/dev/zero of=fill bs=1M count=64"}, map[string]string{"index.html": ""})
	if st.Build.State != appapi.StateFailed || !strings.Contains(st.Build.Error, "No space left on device") {
		t.Errorf("%+v", st.Build)
	}
	if log := g.log(appapi.LogQuery{}, g.BuildLog); !strings.Contains(log, "\nbegun\n") {
		t.Errorf("its log is %q", log)
	}
	g.stop() // and another one tells of a build that has failed, whatever was written
	g.run()
	if st := g.await("there", func(appapi.Status) bool { return true }); st.Build.State != appapi.StateFailed {
		t.Errorf("%+v", st.Build)
	}
}

func TestABuildIsStopped(t *testing.T) {
	g := start(t)
	if err := g.PutSource(t.Context(), bytes.NewReader(tarball(t, map[string]string{"index.html": ""}))); err != nil {
		t.Fatal(err)
	}
	in := appapi.Build{ID: "one", Upload: true, BuildCommand: "echo begun; sleep 1000"}
	if _, err := g.Build(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	g.await("begun", func(st appapi.Status) bool {
		return strings.Contains(g.log(appapi.LogQuery{}, g.BuildLog), "\nbegun\n")
	})
	if st, err := g.Build(t.Context(), in); err != nil || st.Build.State != appapi.StateRunning {
		t.Errorf("the same again: %+v, %v", st.Build, err)
	}
	in.ID = "two"
	if _, err := g.Build(t.Context(), in); !appapi.HasCode(err, appapi.CodeBusy) {
		t.Errorf("another one: %v", err)
	}
	if err := g.PutSource(t.Context(), strings.NewReader("x")); !appapi.HasCode(err, appapi.CodeBusy) {
		t.Errorf("another source: %v", err)
	}
	if _, err := g.Run(t.Context(), appapi.Run{ID: "one", Port: 1}); !appapi.HasCode(err, appapi.CodeBusy) {
		t.Errorf("run: %v", err)
	}
	if _, err := g.StopBuild(t.Context()); err != nil {
		t.Fatal(err)
	}
	st := g.await("stopped", ended)
	if !strings.HasPrefix(st.Build.Error, "cancelled\n") || st.Build.State != appapi.StateFailed {
		t.Errorf("%+v", st.Build)
	}
	// One that an agent's end cuts off has failed.
	in = appapi.Build{ID: "three", Upload: true, BuildCommand: "echo begun; sleep 1000"}
	if _, err := g.Build(t.Context(), in); !appapi.HasCode(err, appapi.CodeInvalid) {
		t.Errorf("a source serves twice: %v", err)
	}
	if err := g.PutSource(t.Context(), bytes.NewReader(tarball(t, map[string]string{"index.html": ""}))); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Build(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	g.stop()
	g.run()
	if st := g.await("failed", ended); st.Build.State != appapi.StateFailed || st.Build.ID != "three" {
		t.Errorf("%+v", st.Build)
	}
}

// What a full disk did not take has not begun: the same is asked for again, and then begins.
func TestAStateThatIsNotWritten(t *testing.T) {
	g := start(t)
	file := filepath.Join(g.cfg.Dir, stateFile)
	unwritable := func(call func() error) {
		t.Helper()
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(file, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := call(); err == nil {
			t.Error("it has begun")
		}
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.PutSource(t.Context(), bytes.NewReader(tarball(t, map[string]string{"index.html": "hello"}))); err != nil {
		t.Fatal(err)
	}
	in := appapi.Build{ID: "d1", Upload: true, Port: 3000}
	unwritable(func() error {
		_, err := g.Build(t.Context(), in)
		return err
	})
	if st := g.await("there", func(appapi.Status) bool { return true }); st.Build.ID != "" {
		t.Errorf("%+v", st.Build)
	}
	if st := g.build(in, nil); st.Build.State != appapi.StateSucceeded {
		t.Fatalf("%+v", st.Build)
	}
	port := freePort(t)
	run := func() error {
		_, err := g.Run(t.Context(), appapi.Run{ID: "d1", Port: port})
		return err
	}
	unwritable(run)
	if err := run(); err != nil {
		t.Fatal(err)
	}
	g.await("serving", func(appapi.Status) bool { return g.get(port, "/") == "hello" })
}

func TestBadRequests(t *testing.T) {
	g := start(t)
	for name, in := range map[string]appapi.Build{
		"no id":       {Upload: true},
		"no source":   {ID: "a"},
		"two sources": {ID: "a", Upload: true, Git: &appapi.Git{URL: "https://x.test/"}},
		"not put":     {ID: "a", Upload: true},
		"root":        {ID: "a", Upload: true, RootDirectory: "a/../../b"},
		"nul":         {ID: "a", Upload: true, BuildCommand: "a\x00"},
		"env":         {ID: "a", Upload: true, Env: map[string]string{"A=B": ""}},
		"ext":         {ID: "a", Git: &appapi.Git{URL: "ext::sh -c x"}},
		"port":        {ID: "a", Upload: true, Port: 70000},
		"time":        {ID: "a", Upload: true, TimeoutSeconds: -1},
	} {
		if _, err := g.Build(t.Context(), in); !appapi.HasCode(err, appapi.CodeInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := g.Run(t.Context(), appapi.Run{}); !appapi.HasCode(err, appapi.CodeInvalid) {
		t.Errorf("%v", err)
	}
	if err := g.PutSource(t.Context(), strings.NewReader("no archive")); err != nil {
		t.Fatal(err)
	}
	st := g.build(appapi.Build{ID: "damaged", Upload: true}, nil)
	if st.Build.State != appapi.StateFailed || !strings.Contains(st.Build.Error, "it is no tar.gz") {
		t.Errorf("%+v", st.Build)
	}
	a := &Agent{cfg: g.cfg}
	if err := a.startApp(appapi.Run{ID: "x", Port: 1, Env: map[string]string{"": ""}}); err == nil {
		t.Error("a variable without a name is taken")
	}
}
