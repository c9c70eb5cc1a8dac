// Package frameworks has a small app of each usual framework, and a test that deploys
// them, one after the other, on the Berth that BERTH_URL names.
package frameworks

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// most is how long the deployment of one app may take.
const most = 30 * time.Minute

// frameworks are the apps of testdata. A command that is empty is detected.
var frameworks = []struct {
	dir    string
	build  string
	answer string // what is in the page
	// program is a package of Go's below dir, which the app gets compiled and static.
	program string
}{
	{dir: "static", answer: "hello from static"},
	{dir: "express", answer: "hello from express"},
	{dir: "vite", answer: "hello from vite"},
	{dir: "next", answer: "hello from next"},
	{dir: "astro", answer: "hello from astro"},
	{dir: "flask", answer: "hello from flask"},
	{dir: "fastapi", answer: "hello from fastapi"},
	{dir: "django", build: "python manage.py migrate --no-input", answer: "hello from django, visit 1"},
	{dir: "go", answer: "hello from go"},
	{dir: "dockerfile", program: "server", answer: "hello from dockerfile, world, built as 0, run as 1234 in /srv, yes, true true"},
}

// TestFrameworks runs by `make frameworks`. BERTH_FRAMEWORKS may name some of them.
func TestFrameworks(t *testing.T) {
	names := os.Getenv("BERTH_FRAMEWORKS")
	if names == "" || os.Getenv("BERTH_URL") == "" {
		t.Skip("needs a running Berth and the registries: make frameworks")
	}
	client, err := api.NewClient(nil, os.Getenv("BERTH_TOKEN"), os.Getenv("BERTH_URL"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for _, f := range frameworks {
		if names != "1" && names != "all" && !strings.Contains(","+names+",", ","+f.dir+",") {
			continue
		}
		t.Run(f.dir, func(t *testing.T) {
			app := create(t, client, api.CreateApp{Name: f.dir, Source: new(api.AppFromUpload), BuildCommand: f.build})
			d := deploy(t, client, app.ID, archive(t, sourceOf(t, "testdata/"+f.dir, f.program)))
			t.Logf("%s, %s, %q: %v", d.Framework, d.Runtime, d.StartCommand, d.Phases)
			if got := visit(t, app); !strings.Contains(got, f.answer) {
				t.Errorf("it answers %q", got)
			}
		})
	}
}

func create(t *testing.T, c *api.Client, in api.CreateApp) *api.App {
	t.Helper()
	app, err := c.CreateApp(t.Context(), in, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := c.DeleteApp(ctx, app.ID); err != nil {
			t.Errorf("delete the app: %v", err)
		}
	})
	return app
}

// sourceOf is the directory of an app; with a program, a copy of it that has that too.
func sourceOf(t *testing.T, dir, program string) string {
	t.Helper()
	if program == "" {
		return dir
	}
	to := filepath.Join(t.TempDir(), "source")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(to, "program"), "./"+dir+"/"+program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return to
}

// archive is a tar.gz of a directory.
func archive(t *testing.T, dir string) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return &out
}

// deploy uploads a source, deploys it, shows its log, and waits until it is live.
func deploy(t *testing.T, c *api.Client, id string, source *bytes.Buffer) *api.Deployment {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	up, err := c.PutAppSource(ctx, id, source, int64(source.Len()))
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.DeployApp(ctx, id, api.CreateDeployment{SourceID: up.SourceID}, "")
	if err != nil {
		t.Fatal(err)
	}
	end, err := c.FollowDeployment(ctx, id, d.ID, func(_ string, l api.LogLine) error {
		t.Log(l.Line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if end.Status != api.DeploymentLive {
		t.Fatalf("the deployment is %s: %s", end.Status, end.Error)
	}
	return end
}

// visit reads the page of an app. *.localhost is not in every machine's resolver, so
// the address is that of the API.
func visit(t *testing.T, app *api.App) string {
	t.Helper()
	plane, err := url.Parse(os.Getenv("BERTH_URL"))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, plane.Host)
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, app.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64)")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", resp.Status, page, err)
	}
	return string(page)
}
