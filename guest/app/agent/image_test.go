package agent

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/tier"
)

// dockerfiles is an app with a Dockerfile, and its program compiled.
func dockerfiles(t *testing.T) map[string]string {
	t.Helper()
	tier.Root(t)
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Fatal(err)
	}
	dir := "../../../e2e/frameworks/testdata/dockerfile"
	program := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-o", program, "./"+dir+"/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files := map[string]string{}
	for name, from := range map[string]string{"program": program, "Dockerfile": dir + "/Dockerfile", ".dockerignore": dir + "/.dockerignore", "server/main.go": dir + "/server/main.go"} {
		raw, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(raw)
	}
	return files
}

func TestAnAppWithADockerfileRunsInItsImage(t *testing.T) {
	tier.Slow(t)
	files := dockerfiles(t)
	g := start(t)
	env := map[string]string{"GREETING": "hunter-222", "UNASKED": "x"}
	st := g.build(appapi.Build{ID: "d1", Port: 3000, Env: env, Secrets: []string{"GREETING"}}, files)
	log := g.log(appapi.LogQuery{}, g.BuildLog)
	if st.Build.State != appapi.StateSucceeded || st.Build.Plan.Framework != "dockerfile" || st.Build.Plan.StartCommand != "/bin/program serve page.txt" || len(st.Build.Phases) != 5 {
		t.Fatalf("%+v\n%s", st.Build, log)
	}
	if strings.Contains(log, "hunter-222") || !strings.Contains(log, "wrote hello from dockerfile, ********, built as 0") {
		t.Errorf("its log: %s", log)
	}
	if left, err := os.ReadDir(filepath.Join(g.cfg.Dir, "image/store")); err != nil || len(left) > 0 {
		t.Errorf("buildah left %v, %v", left, err)
	}
	port := freePort(t)
	if _, err := g.Run(t.Context(), appapi.Run{ID: "d1", Port: port, Env: map[string]string{"FROM_IMAGE": "over"}}); err != nil {
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
	// Its user is another one than the commands' of other apps.
	g.await("listening", listens)
	const page = "hello from dockerfile, hunter-222, built as 0, run as 1234 in /srv, over, true true"
	if got := g.get(port, "/"); got != page {
		t.Errorf("%q", got)
	}
	if got := g.log(appapi.LogQuery{}, g.RunLog); !strings.Contains(got, "serving as 1234") {
		t.Errorf("%q", got)
	}
	_ = g.get(port, "/exit") // the answer is cut off
	st = g.await("started again", func(st appapi.Status) bool { return st.Run.Starts > 1 && listens(st) })
	if st.Run.ExitCode == nil || *st.Run.ExitCode != 3 {
		t.Errorf("%+v", st.Run)
	}
	// Another agent goes on with it.
	g.stop()
	g.run()
	g.await("listening again", listens)
	if got := g.get(port, "/"); got != page {
		t.Errorf("%q", got)
	}
	if st, err := g.StopRun(t.Context()); err != nil || st.Run.State != appapi.StateStopped {
		t.Errorf("%+v, %v", st, err)
	}
	g.await("silent", func(st appapi.Status) bool { return !listens(st) })
	// There is no shell in the image, and the app's log says so.
	if st = g.build(appapi.Build{ID: "d2", Port: 3000, StartCommand: "echo x"}, files); st.Build.State != appapi.StateSucceeded {
		t.Fatalf("%+v", st.Build)
	}
	if _, err := g.Run(t.Context(), appapi.Run{ID: "d2", Port: port}); err != nil {
		t.Fatal(err)
	}
	st = g.await("ended", func(st appapi.Status) bool { return st.Run.ExitCode != nil })
	if lines := strings.Join(st.Run.LastLines, "\n"); *st.Run.ExitCode != 127 || !strings.Contains(lines, "/bin/sh: ") {
		t.Errorf("%+v", st.Run)
	}
}

func TestImagesThatCannotBeBuilt(t *testing.T) {
	tier.Slow(t)
	files := dockerfiles(t)
	for id, c := range map[string]struct{ dockerfile, want string }{
		"a command fails": {"FROM scratch\nCOPY --chmod=755 program /p\nRUN [\"/p\"]", "the build of the Dockerfile failed with exit code 1\n"},
		"nothing to run":  {"FROM scratch\nCOPY program /p", "it has neither ENTRYPOINT nor CMD"},
		"no such file":    {"FROM scratch\nCOPY none /p\nCMD [\"/p\"]", "none"},
		"no instruction":  {"FROM scratch\nHELLO", "HELLO"},
		"empty":           {"", "the build of the Dockerfile failed"},
		"too long":        {"FROM scratch\nCOPY --chmod=755 program /p\nRUN [\"/p\", \"serve\", \"/p\"]", "the build exceeded its budget of"},
	} {
		t.Run(id, func(t *testing.T) {
			g := start(t)
			files["Dockerfile"] = c.dockerfile
			in := appapi.Build{ID: "d1", Port: freePort(t), TimeoutSeconds: 150}
			if id == "too long" {
				in.TimeoutSeconds = 5
			}
			st := g.build(in, files)
			if st.Build.State != appapi.StateFailed || !strings.Contains(st.Build.Error, c.want) || st.Build.Phase != appapi.PhaseBuild {
				t.Errorf("%s in %s: %s", st.Build.State, st.Build.Phase, st.Build.Error)
			}
			if _, err := g.Run(context.Background(), appapi.Run{ID: "d1", Port: 1}); !appapi.HasCode(err, appapi.CodeNotBuilt) {
				t.Errorf("%v", err)
			}
		})
	}
}
