package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

const appSuffix = "app.localhost"

// appDeploy is how long a deployment may take. The first has its template built.
const appDeploy = 15 * time.Minute

// appWait is the patience with what takes seconds on a machine that has time for it.
const appWait = 8 * time.Minute

// repository is a git repository with a server in the outside world.
type repository struct {
	t   *testing.T
	dir string
	url string
}

// newRepository makes one, which guests reach until the test ends.
func newRepository(t *testing.T) *repository {
	t.Helper()
	r, server := newRepositoryAt(t, "app")
	r.url = server + "/app/.git"
	return r
}

// newRepositoryAt makes one in a directory of a server, and returns the server's URL.
func newRepositoryAt(t *testing.T, path string) (r *repository, url string) {
	t.Helper()
	root := t.TempDir()
	r = &repository{t: t, dir: filepath.Join(root, path)}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.git("init", "-q", "-b", "main")
	programs, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	l := listenOutside(t)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(programs)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	return r, "http://git." + outsideName + ":" + port
}

func (r *repository) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=Ann", "GIT_AUTHOR_EMAIL=ann@example.com", "GIT_COMMITTER_NAME=Ann", "GIT_COMMITTER_EMAIL=ann@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit writes files and commits them; it returns the commit.
func (r *repository) commit(message string, files map[string]string) string {
	r.t.Helper()
	for name, content := range files {
		path := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
	r.git("add", "-A")
	r.git("commit", "-q", "-m", message)
	return r.git("rev-parse", "HEAD")
}

// server is a program without dependencies, which says which version it is.
func server(version string) map[string]string {
	return map[string]string{
		"package.json": `{"name":"app","scripts":{"start":"node server.js"}}`,
		"server.js": `const http = require("http");
let seen = 0;
http.createServer((req, res) => {
  seen++;
  const url = new URL(req.url, "http://app");
  if (url.pathname === "/env") return res.end(process.env[url.searchParams.get("name")] ?? "(unset)");
  if (url.pathname === "/seen") return res.end(String(seen));
  if (url.pathname === "/die") process.exit(3);
  if (url.pathname === "/slow") {
    res.write("begun\n");
    return setTimeout(() => res.end("ended\n"), Number(url.searchParams.get("ms")));
  }
  if (req.method === "POST") return req.pipe(res);
  res.end(` + strconv.Quote(version) + `);
}).listen(process.env.PORT, process.env.HOST, () => console.log("listening as", ` + strconv.Quote(version) + `));
`,
	}
}

// app makes an app, which is deleted when the test ends.
func (c *tenant) app(t *testing.T, in map[string]any) api.App {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var app api.App
	c.call(t, "POST", "/v1/apps", string(body), 201, &app)
	t.Cleanup(func() {
		// Not t.Context(), which has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		eventually(t, 2*time.Minute, "app "+app.ID+" is deleted", func(context.Context) error {
			if err := c.DeleteApp(ctx, app.ID); err != nil && api.StatusOf(err) != http.StatusNotFound {
				return err
			}
			return nil
		})
	})
	return app
}

// deploy begins a deployment and waits until it ends as wanted.
func (c *tenant) deploy(t *testing.T, appID, body string, want api.DeploymentStatus) api.Deployment {
	t.Helper()
	var d api.Deployment
	c.call(t, "POST", "/v1/apps/"+appID+"/deploys", body, 202, &d)
	if d.Status != api.DeploymentQueued && d.Status != api.DeploymentBuilding || d.AppID != appID || d.ID == "" {
		t.Errorf("a new deployment is %+v", d)
	}
	return c.deployed(t, d, want)
}

func (c *tenant) deployed(t *testing.T, d api.Deployment, want api.DeploymentStatus) api.Deployment {
	t.Helper()
	path := "/v1/apps/" + d.AppID + "/deploys/" + d.ID
	eventually(t, appDeploy, "deployment "+d.ID+" is "+string(want), func(context.Context) error {
		c.call(t, "GET", path, "", 200, &d)
		if d.Status != api.DeploymentLive && d.Status != api.DeploymentFailed {
			return fmt.Errorf("it is %s", d.Status)
		}
		return nil
	})
	if d.Status != want {
		t.Fatalf("the deployment is %s: %s\n%s", d.Status, d.Error, c.buildLog(t, d))
	}
	return d
}

// buildLog reads the whole log of a deployment that has ended.
func (c *tenant) buildLog(t *testing.T, d api.Deployment) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", theStack.URLs[1]+"/v1/apps/"+d.AppID+"/deploys/"+d.ID+"/logs", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("logs: %s, %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	var lines []string
	var event string
	s := bufio.NewScanner(resp.Body)
	for s.Scan() {
		if name, ok := strings.CutPrefix(s.Text(), "event: "); ok {
			event = name
		}
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		if !ok {
			continue
		}
		if event == "end" {
			var end api.Deployment
			if err := json.Unmarshal([]byte(data), &end); err != nil || end.Status != d.Status {
				t.Errorf("the log ends with %s: %v", data, err)
			}
			return strings.Join(lines, "\n")
		}
		var line struct {
			Line string `json:"line"`
			Data string `json:"data"`
		}
		if err := json.Unmarshal([]byte(data), &line); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		lines = append(lines, line.Line+line.Data)
	}
	t.Errorf("the log did not end: %v", s.Err())
	return strings.Join(lines, "\n")
}

func (c *tenant) appIs(t *testing.T, id string) api.App {
	t.Helper()
	var app api.App
	c.call(t, "GET", "/v1/apps/"+id, "", 200, &app)
	return app
}

func (c *tenant) appBecomes(t *testing.T, id string, most time.Duration, want ...api.AppStatus) api.App {
	t.Helper()
	var app api.App
	eventually(t, most, "app "+id+" is "+fmt.Sprint(want), func(context.Context) error {
		app = c.appIs(t, id)
		if !slices.Contains(want, app.Status) {
			return fmt.Errorf("it is %s: %s", app.Status, app.Error)
		}
		return nil
	})
	if t.Failed() {
		t.FailNow()
	}
	return app
}

// person is the head of a request that a person's browser makes.
var person = map[string]string{"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"}

// asks makes a request of an app, through one replica.
func asks(t *testing.T, replica int, app api.App, path string) answer {
	t.Helper()
	return visit(t, browser(t, replica), "GET", "http://"+app.ID+"."+appSuffix+path, person, nil)
}

// appServes waits until an app answers with a text through every replica: a copy of the
// records follows the leader's by moments.
func (c *tenant) appServes(t *testing.T, app api.App, most time.Duration, want string) {
	t.Helper()
	for replica := range theStack.URLs {
		eventually(t, most, "the app answers through replica "+strconv.Itoa(replica), func(context.Context) error {
			if a := asks(t, replica, app, "/"); a.status != 200 || a.body != want {
				return fmt.Errorf("%d %s", a.status, a.body)
			}
			return nil
		})
	}
}
