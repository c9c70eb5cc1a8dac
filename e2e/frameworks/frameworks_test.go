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
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// most is how long the deployment of one app may take.
const most = 30 * time.Minute

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
	for _, f := range All {
		if names != "1" && names != "all" && !strings.Contains(","+names+",", ","+f.Dir+",") {
			continue
		}
		t.Run(f.Dir, func(t *testing.T) {
			dir := t.TempDir()
			if err := f.Write("testdata", dir); err != nil {
				t.Fatal(err)
			}
			app := create(t, client, api.CreateApp{Name: f.Dir, Source: new(api.AppFromUpload), BuildCommand: f.Build})
			d := deploy(t, client, app.ID, archive(t, dir))
			t.Logf("%s, %s, %q: %v", d.Framework, d.Runtime, d.StartCommand, d.Phases)
			if got := visit(t, app); !strings.Contains(got, f.Answer) {
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
