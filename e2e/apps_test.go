package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// An app from its repository to its URL, to a second version, and back.
func TestApp(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t, "other")
	repo := newRepository(t)
	first := repo.commit("The first", server("one"))
	for body, want := range map[string]string{
		`{"git_url":"https://example.com/a.git"}`: "name is required",
		`{"name":"a"}`: "git_url is required",
		`{"name":"a","git_url":"https://example.com/a.git","env":[1]}`:                "env must be a string map",
		`{"name":"a","git_url":"https://example.com/a.git","env":{"A":1}}`:            "env must be a string map",
		`{"name":"a","git_url":"https://example.com/a.git","idle_timeout_seconds":0}`: "idle_timeout_seconds must be >= 60",
	} {
		if strings.Contains(body, "idle") {
			want = "idle_timeout_seconds must be >= 1" // the stack's setting
		}
		if a := (request{method: "POST", path: "/v1/apps", token: c.token, body: body}).send(t); a.status != 400 || a.errorText() != want {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	app := c.app(t, map[string]any{"name": "hello", "git_url": repo.url, "env": map[string]string{"GREETING": "hello", "cpu": "x"}, "cpu": 1, "memory_mb": 64})
	if app.Status != api.AppCreated || app.SandboxID != "" || !app.AutoHibernate || app.IdleTimeoutSeconds != 900 || app.MaxInstances != 1 || !strings.Contains(app.URL, app.ID+"."+appSuffix) {
		t.Errorf("a new app is %+v", app)
	}
	if a := (request{method: "GET", path: "/v1/apps/" + app.ID, token: other.token}).send(t); a.status != 404 {
		t.Errorf("another workspace reads it: %d %s", a.status, a.body)
	}
	if a := asks(t, 0, app, "/"); a.status != 404 {
		t.Errorf("before a deploy: %d %s", a.status, a.body)
	}
	c.call(t, "PUT", "/v1/apps/"+app.ID+"/env/API_KEY", `{"value":"s3cr3t-of-the-test","secret":true}`, 200, nil)

	d := c.deploy(t, app.ID, `{}`, api.DeploymentLive)
	if d.GitCommit != first || d.GitMessage != "The first" || d.Trigger != api.TriggerAPI || len(d.Phases) == 0 || d.FinishedAt == nil || !d.Current {
		t.Errorf("the deployment is %+v", d)
	}
	app = c.appIs(t, app.ID)
	if app.Status != api.AppRunning || app.SandboxID == "" || app.DeploymentID != d.ID || app.Env["API_KEY"] == "s3cr3t-of-the-test" {
		t.Errorf("the app is %+v", app)
	}
	c.appServes(t, app, 10*time.Second, "one")
	for name, want := range map[string]string{"GREETING": "hello", "API_KEY": "s3cr3t-of-the-test", "PORT": "3000", "HOST": "0.0.0.0", "BERTH_TOKEN": "(unset)"} {
		if a := asks(t, 1, app, "/env?name="+name); a.body != want {
			t.Errorf("%s is %q in it", name, a.body)
		}
	}
	if a := (request{method: "GET", path: "/v1/apps/" + app.ID + "/proxy/env?name=GREETING", token: c.token}).send(t); a.status != 200 || a.body != "hello" {
		t.Errorf("by the proxy route: %d %s", a.status, a.body)
	}
	if a := (request{method: "GET", path: "/v1/apps/" + app.ID + "/runtime-logs?tail=10", token: c.token}).send(t); a.status != 200 || !strings.Contains(a.body, "listening as one") {
		t.Errorf("its log: %d %s", a.status, a.body)
	}
	if log := c.buildLog(t, d); !strings.Contains(log, "Detected node") || strings.Contains(log, "s3cr3t") {
		t.Errorf("the log of the deployment is\n%s", log)
	}
	for _, r := range []request{{method: "DELETE", path: "/v1/sandboxes/" + app.SandboxID}, {method: "POST", path: "/v1/sandboxes/" + app.SandboxID + "/exec", body: `{"cmd":"id"}`}} {
		r.token = c.token
		if a := r.send(t); a.status != 409 || a.errorText() != "managed sandbox: delete it from the feature that owns it (Databases or Apps)" {
			t.Errorf("%s %s: %d %s", r.method, r.path, a.status, a.body)
		}
	}

	// Neither a second version nor the way back costs anybody a request.
	load := underLoad(t, app)
	second := repo.commit("The second", server("two"))
	if d := c.deploy(t, app.ID, `{"git_ref":"main"}`, api.DeploymentLive); d.GitCommit != second {
		t.Errorf("the second deployment is %+v", d)
	}
	c.appServes(t, app, 10*time.Second, "two")
	var back api.Deployment
	c.call(t, "POST", "/v1/apps/"+app.ID+"/rollback", `{}`, 202, &back)
	if back = c.deployed(t, back, api.DeploymentLive); back.Trigger != api.TriggerRollback || back.GitCommit != first {
		t.Errorf("the rollback is %+v", back)
	}
	c.appServes(t, app, 10*time.Second, "one")
	load()

	// What fails leaves the one that serves, and says why.
	repo.commit("Broken", map[string]string{"package.json": `{"name":"app","scripts":{"start":"node server.js","build":"echo the reason is this >&2; exit 7"}}`})
	if d := c.deploy(t, app.ID, `{}`, api.DeploymentFailed); !strings.Contains(d.Error, "the reason is this") {
		t.Errorf("it failed for %q", d.Error)
	}
	repo.commit("Elsewhere", map[string]string{"package.json": `{"name":"app","scripts":{"start":"PORT=4000 node server.js"}}`})
	if d := c.deploy(t, app.ID, `{}`, api.DeploymentFailed); !strings.Contains(d.Error, "4000") || !strings.Contains(d.Error, "3000") {
		t.Errorf("it failed for %q", d.Error)
	}
	if a := asks(t, 1, app, "/"); a.body != "one" {
		t.Errorf("after failures: %s", a.body)
	}
	if a := (request{method: "POST", path: "/v1/apps/" + app.ID + "/deploys", token: c.token, body: `{"git_ref":"--upload-pack=touch /tmp/x"}`}).send(t); a.status != 400 {
		t.Errorf("a ref that is an option: %d %s", a.status, a.body)
	}
	// One that listens on loopback alone is reached all the same, and its log has a warning.
	repo.commit("On loopback", map[string]string{"package.json": `{"name":"app","scripts":{"start":"HOST=127.0.0.1 node server.js"}}`})
	if log := c.buildLog(t, c.deploy(t, app.ID, `{}`, api.DeploymentLive)); !strings.Contains(log, "the app listens on 127.0.0.1:3000 only") {
		t.Errorf("the log of the deployment is\n%s", log)
	}
	c.appServes(t, app, 10*time.Second, "two")
	var all []api.Deployment
	c.call(t, "GET", "/v1/apps/"+app.ID+"/deploys", "", 200, &all)
	if len(all) != 6 || all[1].Status != api.DeploymentFailed || all[5].ID != d.ID {
		t.Errorf("the deployments are %+v", all)
	}
}

// underLoad makes requests of an app until the returned function is called, which
// fails the test for each that was not answered with 200.
func underLoad(t *testing.T, app api.App) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var n, bad atomic.Int64
	var first atomic.Value
	for replica := range theStack.URLs {
		client := browser(t, replica)
		all.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(context.Background(), "GET", "http://"+app.ID+"."+appSuffix+"/slow?ms=20", nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("User-Agent", person["User-Agent"])
				resp, err := client.Do(req)
				n.Add(1)
				if err == nil {
					var body [64]byte
					k, _ := resp.Body.Read(body[:])
					resp.Body.Close()
					if resp.StatusCode == 200 {
						continue
					}
					err = fmt.Errorf("%s: %s", resp.Status, body[:k])
				}
				bad.Add(1)
				first.CompareAndSwap(nil, err.Error())
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
		t.Logf("%d requests were made meanwhile", n.Load())
		if bad.Load() > 0 {
			t.Errorf("%d of %d requests failed, one with %s", bad.Load(), n.Load(), first.Load())
		}
	}
}

// An app sleeps when nobody looks, and the first request wakes it.
func TestAppSleepsAndWakes(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	repo := newRepository(t)
	repo.commit("The first", server("one"))
	app := c.app(t, map[string]any{"name": "sleeper", "git_url": repo.url, "idle_timeout_seconds": 5})
	c.deploy(t, app.ID, `{}`, api.DeploymentLive)
	before := c.appBecomes(t, app.ID, appWait, api.AppRunning)
	asks(t, 0, app, "/seen")
	asleep := c.appBecomes(t, app.ID, appWait, api.AppHibernated)
	if asleep.SandboxID != "" || asleep.Instances != 0 {
		t.Errorf("asleep it is %+v", asleep)
	}
	eventually(t, 10*time.Second, "a monitor is told that it sleeps", func(context.Context) error {
		a := visit(t, browser(t, 0), "POST", "http://"+app.ID+"."+appSuffix+"/any", map[string]string{"User-Agent": "UptimeRobot/2.0"}, nil)
		if a.status != 200 || a.header.Get("X-Service-App") != "asleep" {
			return fmt.Errorf("%d %v", a.status, a.header)
		}
		return nil
	})
	if a := visit(t, browser(t, 0), "HEAD", "http://"+app.ID+"."+appSuffix+"/", person, nil); a.header.Get("X-Service-App") != "asleep" {
		t.Errorf("HEAD gets %d %v", a.status, a.header)
	}
	if now := c.appIs(t, app.ID); now.Status != api.AppHibernated {
		t.Errorf("they woke it: %s", now.Status)
	}

	c.gone(t, before.SandboxID, 2*time.Minute) // while its old sandbox is there, that would serve at once
	c.call(t, "PUT", "/v1/apps/"+app.ID+"/env/GREETING", `{"value":"hi","secret":true}`, 200, nil)

	// Ten at once are one wake, and all are answered in the end.
	began := time.Now()
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			eventually(t, appWait, "the app answers", func(context.Context) error {
				a := asks(t, i%len(theStack.URLs), app, "/")
				if a.status == 503 && a.header.Get("Retry-After") != "" && strings.Contains(a.body, "app is waking up") {
					return fmt.Errorf("%d", a.status)
				}
				if a.status != 200 || a.body != "one" {
					t.Errorf("while it wakes: %d %s", a.status, a.body)
				}
				return nil
			})
		})
	}
	all.Wait()
	t.Logf("ten requests to a sleeping app were answered after %s", time.Since(began))
	awake := c.appBecomes(t, app.ID, appWait, api.AppRunning)
	if awake.SandboxID == "" || awake.Instances != 1 {
		t.Errorf("awake it is %+v", awake)
	}
	if a := asks(t, 0, app, "/env?name=GREETING"); a.body != "hi" {
		t.Errorf("a variable that was set while it slept is %q", a.body)
	}
	var deploys []api.Deployment
	if c.call(t, "GET", "/v1/apps/"+app.ID+"/deploys", "", 200, &deploys); len(deploys) != 1 {
		t.Errorf("the wake was a build: %+v", deploys)
	}

	// A long answer keeps it awake.
	if a := asks(t, 1, app, "/slow?ms=15000"); !strings.HasSuffix(a.body, "ended\n") {
		t.Errorf("a long answer was cut: %q", a.body)
	}

	// The machine under it dies: it is brought up again.
	c.call(t, "PATCH", "/v1/apps/"+app.ID, `{"auto_hibernate":false}`, 200, nil)
	awake = c.appBecomes(t, app.ID, appWait, api.AppRunning, api.AppHibernated)
	if awake.Status == api.AppHibernated {
		asks(t, 0, app, "/")
		awake = c.appBecomes(t, app.ID, appWait, api.AppRunning)
	}
	killVMM(t, awake.SandboxID)
	eventually(t, appWait, "the app answers from another sandbox", func(context.Context) error {
		now := c.appIs(t, app.ID)
		if a := asks(t, 0, app, "/"); a.status != 200 || now.SandboxID == awake.SandboxID {
			return fmt.Errorf("%d, in %s", a.status, hostapi.ShortID(now.SandboxID))
		}
		return nil
	})

	// A setting that the artifact was built with has changed: the next wake builds.
	before = c.appBecomes(t, app.ID, appWait, api.AppRunning)
	c.call(t, "PATCH", "/v1/apps/"+app.ID, `{"auto_hibernate":true,"start_command":"node server.js changed"}`, 200, nil)
	c.appBecomes(t, app.ID, appWait, api.AppHibernated)
	c.gone(t, before.SandboxID, 2*time.Minute)
	eventually(t, appWait, "the app is built again and answers", func(context.Context) error {
		if a := asks(t, 2, app, "/"); a.status != 200 {
			return fmt.Errorf("%d %s", a.status, a.body)
		}
		return nil
	})
	c.call(t, "GET", "/v1/apps/"+app.ID+"/deploys", "", 200, &deploys)
	if deploys[0].Trigger != api.TriggerWake || deploys[0].StartCommand != "node server.js changed" {
		t.Errorf("the newest deployment is %+v", deploys[0])
	}
}
