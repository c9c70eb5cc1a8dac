package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// A function in each runtime, from its files to its answers, its sleep and its end.
func TestFunctions(t *testing.T) {
	t.Parallel()
	for runtime, code := range map[string]struct {
		file, first, second, broken string
		packages                    map[string]string
	}{
		"python": {
			file: "handler.py",
			first: "import os\nimport words\nprint('loaded as', words.version)\n" +
				"def handler(request):\n    if request.path == '/raise':\n        raise ValueError(os.environ['KEY'])\n    if request.path == '/loop':\n        while True: pass\n" +
				"    if request.path == '/stream':\n        return (part for part in ['a', 'b'])\n" +
				"    print('called with', request.text)\n    return {'version': words.version, 'path': request.path, 'query': request.query, 'body': request.text, 'greeting': os.environ['GREETING'], 'auth': request.headers.get('Authorization')}\n",
			second: "def handler(request):\n    return 'two', 201, {'X-Version': 'two'}\n",
			broken: "raise ValueError('the reason is this')\n", packages: map[string]string{"words.py": "version = 'one'\n"},
		},
		"node": {
			file: "handler.mjs",
			first: "import { version } from './words.mjs';\nconsole.log('loaded as', version);\n" +
				"export default async (request) => {\n  const url = new URL(request.url);\n  if (url.pathname === '/raise') throw new TypeError(process.env.KEY);\n  if (url.pathname === '/loop') for (;;);\n" +
				"  if (url.pathname === '/stream') return new Response(new Blob(['a', 'b']).stream());\n" +
				"  const body = await request.text();\n  console.log('called with', body);\n  return { version, path: url.pathname, query: Object.fromEntries(url.searchParams), body, greeting: process.env.GREETING, auth: request.headers.get('authorization') };\n};\n",
			second: "export default () => new Response('two', { status: 201, headers: { 'X-Version': 'two' } });\n",
			broken: "throw new Error('the reason is this');\n", packages: map[string]string{"words.mjs": "export const version = 'one';\n"},
		},
	} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			c, other := newTenant(t), newTenant(t, "other")
			f := c.function(t, map[string]any{"name": "hello", "runtime": runtime, "timeout_seconds": 20, "env": map[string]string{"GREETING": "hello"}})
			if f.Status != api.AppCreated || f.TimeoutSeconds != 20 || !strings.HasPrefix(f.ID, "fn-") {
				t.Errorf("a new function is %+v", f)
			}
			c.call(t, "PUT", "/v1/functions/"+f.ID+"/env/KEY", `{"value":"s3cr3t-of-the-test","secret":true}`, 200, nil)
			if a := c.invoke(t, 0, f, "POST", "", "{}"); a.status != 404 || a.errorText() != "no code deployed yet" {
				t.Errorf("before a deploy: %d %s", a.status, a.body)
			}
			for body, want := range map[string]string{`{"name":"hello","runtime":"node"}`: "function already exists", `{"name":"","runtime":"node"}`: "name is required", `{"name":"x","runtime":"ruby"}`: "invalid runtime"} {
				if a := (request{method: "POST", path: "/v1/functions", token: c.token, body: body}).send(t); a.errorText() != want {
					t.Errorf("%s: %d %s", body, a.status, a.body)
				}
			}
			for _, files := range []map[string]string{{"main.txt": ""}, {code.file: "", "../x": ""}} {
				raw, _ := json.Marshal(map[string]any{"files": files})
				if a := (request{method: "POST", path: "/v1/functions/" + f.ID + "/deploy", token: c.token, body: string(raw)}).send(t); a.status != 400 || a.errorText() != "invalid code" {
					t.Errorf("%s: %d %s", raw, a.status, a.body)
				}
			}

			files := map[string]string{code.file: code.first}
			for name, text := range code.packages {
				files[name] = text
			}
			c.deployFunction(t, f, files, api.DeploymentLive)
			for replica := range theStack.URLs {
				a := c.invoke(t, replica, f, "POST", "a/b?x=1", "hi")
				var got map[string]any
				if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 200 || fmt.Sprintf("%v %v %v %v %v %v", got["version"], got["path"], got["query"], got["body"], got["greeting"], got["auth"]) != "one /a/b map[x:1] hi hello <nil>" {
					t.Errorf("by replica %d: %d %s", replica, a.status, a.body)
				}
			}
			if a := c.invoke(t, 1, f, "GET", "stream", ""); a.status != 200 || a.body != "ab" {
				t.Errorf("a stream: %d %s", a.status, a.body)
			}
			if a := (request{method: "POST", path: "/v1/functions/" + f.ID + "/invoke", token: other.token, body: "{}"}).send(t); a.status != 404 {
				t.Errorf("another workspace invokes it: %d %s", a.status, a.body)
			}
			for _, path := range []string{"/v1/apps/" + f.ID, "/v1/apps/" + f.ID + "/proxy/"} {
				if a := (request{method: "GET", path: path, token: c.token}).send(t); a.status != 404 {
					t.Errorf("%s: %d %s", path, a.status, a.body)
				}
			}
			if a := asks(t, 0, api.App{ID: f.ID}, "/"); a.status != 404 {
				t.Errorf("by a host name: %d %s", a.status, a.body)
			}

			// What fails, or never ends, is told of, and the rest goes on.
			if a := c.invoke(t, 0, f, "POST", "raise", "{}"); a.status != 500 || a.errorText() != "the function failed" || strings.Contains(a.body, "s3cr3t") || !strings.Contains(a.body, `********`) {
				t.Errorf("an error: %d %s", a.status, a.body)
			}
			if a := c.invoke(t, 0, f, "POST", "loop", "{}"); a.status != 504 || a.errorText() != "the function took too long" {
				t.Errorf("a loop: %d %s", a.status, a.body)
			}
			if a := c.invoke(t, 0, f, "POST", "", "after"); a.status != 200 {
				t.Errorf("after it: %d %s", a.status, a.body)
			}
			log := c.functionLog(t, f)
			for _, want := range []string{"loaded as one", "called with hi", "called with after", "********", " POST /raise 500 ", " POST /loop 504 "} {
				if !strings.Contains(log, want) {
					t.Errorf("its log has no %q:\n%s", want, log)
				}
			}
			if strings.Contains(log, "s3cr3t") {
				t.Errorf("its log tells a secret:\n%s", log)
			}

			// It sleeps, and those who call it wake it, all together.
			c.functionBecomes(t, f, api.AppHibernated)
			if log := c.functionLog(t, f); !strings.Contains(log, "called with after") {
				t.Errorf("asleep, its log is:\n%s", log)
			}
			began := time.Now()
			var all sync.WaitGroup
			for i := range 6 {
				all.Go(func() {
					if a := c.invoke(t, i%len(theStack.URLs), f, "POST", "", "woken"); a.status != 200 || !strings.Contains(a.body, "one") {
						t.Errorf("a wake: %d %s", a.status, a.body)
					}
				})
			}
			all.Wait()
			t.Logf("six calls woke it in %s", time.Since(began))

			// Another version takes its place; one that cannot be loaded does not.
			broken := c.deployFunction(t, f, map[string]string{code.file: code.broken}, api.DeploymentFailed)
			if !strings.Contains(broken.Error, "the reason is this") {
				t.Errorf("it failed for %q", broken.Error)
			}
			if a := c.invoke(t, 0, f, "POST", "", "still"); a.status != 200 || !strings.Contains(a.body, "one") {
				t.Errorf("after a failure: %d %s", a.status, a.body)
			}
			c.deployFunction(t, f, map[string]string{code.file: code.second}, api.DeploymentLive)
			if a := c.invoke(t, 0, f, "PUT", "", "x"); a.status != 201 || a.body != "two" || a.header.Get("X-Version") != "two" {
				t.Errorf("the second: %d %v %s", a.status, a.header, a.body)
			}
			c.call(t, "DELETE", "/v1/functions/"+f.ID, "", 204, nil)
			if a := c.invoke(t, 0, f, "POST", "", "{}"); a.status != 404 {
				t.Errorf("deleted: %d %s", a.status, a.body)
			}
		})
	}
}

// function makes a function, which is deleted when the test ends.
func (c *tenant) function(t *testing.T, in map[string]any) api.Function {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var f api.Function
	c.call(t, "POST", "/v1/functions", string(body), 201, &f)
	t.Cleanup(func() {
		// Not t.Context(), which has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := c.DeleteFunction(ctx, f.ID); err != nil && api.StatusOf(err) != http.StatusNotFound {
			t.Error(err)
		}
	})
	return f
}

// deployFunction deploys files and waits until that has ended as wanted.
func (c *tenant) deployFunction(t *testing.T, f api.Function, files map[string]string, want api.DeploymentStatus) *api.Deployment {
	t.Helper()
	d, err := c.DeployFunction(t.Context(), f.ID, api.DeployFunction{Files: files})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	d, err = c.FollowFunctionDeployment(t.Context(), f.ID, d.ID, func(_ string, l api.LogLine) error {
		fmt.Fprintln(&log, l.Line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if d.Status != want {
		t.Fatalf("the deployment is %s: %s\n%s", d.Status, d.Error, log.String())
	}
	return d
}

// invoke calls a function through a replica.
func (c *tenant) invoke(t *testing.T, replica int, f api.Function, method, at, body string) answer {
	t.Helper()
	path := "/v1/functions/" + f.ID + "/invoke"
	if at != "" || method != "POST" {
		path += "/" + at
	}
	return request{method: method, path: path, token: c.token, body: body, replica: replica}.send(t)
}

func (c *tenant) functionLog(t *testing.T, f api.Function) string {
	t.Helper()
	body, err := c.FunctionLogs(t.Context(), f.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	raw, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func (c *tenant) functionBecomes(t *testing.T, f api.Function, want api.AppStatus) {
	t.Helper()
	eventually(t, time.Minute, "function "+f.ID+" is "+string(want), func(ctx context.Context) error {
		now, err := c.GetFunction(ctx, f.ID)
		if err == nil && now.Status != want {
			err = fmt.Errorf("it is %s", now.Status)
		}
		return err
	})
}
