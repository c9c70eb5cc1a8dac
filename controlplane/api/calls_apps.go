package api

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// CreateApp stores the settings of an app, which builds nothing: Deploy it next.
// idempotencyKey may be empty, as in CreateSandbox.
func (c *Client) CreateApp(ctx context.Context, in CreateApp, idempotencyKey string) (*App, error) {
	return create[App](ctx, c, in, idempotencyKey, Version, "apps")
}

// GetApp returns an app.
func (c *Client) GetApp(ctx context.Context, id string) (*App, error) {
	return into[App](ctx, c, get(Version, "apps", id))
}

// ListApps returns one page, newest first, and the cursor of the next page, which is
// empty after the last.
func (c *Client) ListApps(ctx context.Context, p Page) ([]App, string, error) {
	return page[App](ctx, c, p, Version, "apps")
}

// Apps iterates over all apps, newest first, page by page.
func (c *Client) Apps(ctx context.Context) iter.Seq2[App, error] {
	return all(func(p Page) ([]App, string, error) { return c.ListApps(ctx, p) })
}

// PatchApp changes settings of an app. What runs goes on until the next deployment.
func (c *Client) PatchApp(ctx context.Context, id string, in PatchApp) (*App, error) {
	cl, err := withBody(http.MethodPatch, in, Version, "apps", id)
	if err != nil {
		return nil, err
	}
	return into[App](ctx, c, cl)
}

// DeleteApp deletes an app with its deployments, variables and uploaded sources.
func (c *Client) DeleteApp(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "apps", id))
}

// PutAppSource uploads the source of an app, a tar.gz of size bytes (-1: until the end
// of tarball).
func (c *Client) PutAppSource(ctx context.Context, id string, tarball io.Reader, size int64) (*SourceUpload, error) {
	return into[SourceUpload](ctx, c, call{
		method: http.MethodPut, path: join([]string{Version, "apps", id, "source"}),
		header: http.Header{"Content-Type": {"application/gzip"}}, reader: tarball, size: size,
	})
}

// DeployApp begins a deployment. Follow it with FollowDeployment. idempotencyKey may be
// empty, as in CreateSandbox.
func (c *Client) DeployApp(ctx context.Context, id string, in CreateDeployment, idempotencyKey string) (*Deployment, error) {
	return create[Deployment](ctx, c, in, idempotencyKey, Version, "apps", id, "deploys")
}

// GetDeployment returns a deployment of an app.
func (c *Client) GetDeployment(ctx context.Context, id, deploymentID string) (*Deployment, error) {
	return into[Deployment](ctx, c, get(Version, "apps", id, "deploys", deploymentID))
}

// ListDeployments returns one page of an app's deployments, newest first, and the cursor
// of the next page, which is empty after the last.
func (c *Client) ListDeployments(ctx context.Context, id string, p Page) ([]Deployment, string, error) {
	return page[Deployment](ctx, c, p, Version, "apps", id, "deploys")
}

// Deployments iterates over the deployments of an app, newest first, page by page.
func (c *Client) Deployments(ctx context.Context, id string) iter.Seq2[Deployment, error] {
	return all(func(p Page) ([]Deployment, string, error) { return c.ListDeployments(ctx, id, p) })
}

// CancelDeployment ends a deployment, which has then failed. If it has ended before, the
// error is a 409.
func (c *Client) CancelDeployment(ctx context.Context, id, deploymentID string) (*Deployment, error) {
	cl, err := post(struct{}{}, Version, "apps", id, "deploys", deploymentID, "cancel")
	if err != nil {
		return nil, err
	}
	return into[Deployment](ctx, c, cl)
}

// FollowDeployment calls line with each line of a deployment's log, from the first,
// until the deployment ends, and returns it as it has ended. A stream that breaks
// continues where it was, as that of FollowBuild.
func (c *Client) FollowDeployment(ctx context.Context, id, deploymentID string, line func(stream string, l LogLine) error) (*Deployment, error) {
	return c.followDeployment(ctx, "apps", id, deploymentID, line)
}

// followDeployment is FollowDeployment for what has deployments: "apps" or "functions".
func (c *Client) followDeployment(ctx context.Context, of, id, deploymentID string, line func(stream string, l LogLine) error) (*Deployment, error) {
	var end *Deployment
	err := c.followToEnd(ctx, get(Version, of, id, "deploys", deploymentID, "logs"), func(s *said, name string, data []byte) (over bool, err error) {
		switch name {
		case "stdout", "stderr":
			var l LogLine
			if err := decodeEvent(data, &l); err != nil {
				return true, err
			}
			if s.again(name + " " + l.Line) {
				return false, nil
			}
			if err := line(name, l); err != nil {
				return true, err
			}
		case "end":
			end = new(Deployment)
			return true, decodeEvent(data, end)
		}
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return end, nil
}

// RollBackApp begins a deployment that serves an earlier one again. idempotencyKey may be
// empty, as in CreateSandbox; with it, a request that is repeated rolls back once.
func (c *Client) RollBackApp(ctx context.Context, id string, in RollBackApp, idempotencyKey string) (*Deployment, error) {
	return create[Deployment](ctx, c, in, idempotencyKey, Version, "apps", id, "rollback")
}

// AppLogs returns the last lines of what an app has written, as text; tail 0 means all.
// The caller closes it.
func (c *Client) AppLogs(ctx context.Context, id string, tail int) (io.ReadCloser, error) {
	resp, err := c.do(ctx, appLogs(id, tail))
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// FollowAppLogs calls line with the existing lines and then with new ones, like
// FollowLogs.
func (c *Client) FollowAppLogs(ctx context.Context, id string, tail int, line func(stream string, l LogLine) error) error {
	return c.followLines(ctx, appLogs(id, tail), line)
}

func appLogs(id string, tail int) call {
	cl := get(Version, "apps", id, "runtime-logs")
	cl.query = url.Values{}
	if tail > 0 {
		cl.query.Set("tail", strconv.Itoa(tail))
	}
	return cl
}

// AppEnv returns the environment variables of an app, with secret values masked.
func (c *Client) AppEnv(ctx context.Context, id string) ([]AppVariable, error) {
	return listOf[AppVariable](ctx, c, get(Version, "apps", id, "env"))
}

// PutAppVariable sets an environment variable of an app, from its next deployment on.
func (c *Client) PutAppVariable(ctx context.Context, id, key string, in PutAppVariable) (*AppVariable, error) {
	cl, err := withBody(http.MethodPut, in, Version, "apps", id, "env", key)
	if err != nil {
		return nil, err
	}
	return into[AppVariable](ctx, c, cl)
}

// DeleteAppVariable removes an environment variable of an app.
func (c *Client) DeleteAppVariable(ctx context.Context, id, key string) error {
	return c.done(ctx, remove(Version, "apps", id, "env", key))
}

// ImportAppEnv sets the variables of a .env file, and returns all variables of the app.
func (c *Client) ImportAppEnv(ctx context.Context, id string, in ImportAppEnv) ([]AppVariable, error) {
	cl, err := post(in, Version, "apps", id, "env", "import")
	if err != nil {
		return nil, err
	}
	cl.safe = true // again is the same
	return listOf[AppVariable](ctx, c, cl)
}

// withBody is a call that leads to the same when it is made twice.
func withBody(method string, in any, segments ...string) (call, error) {
	b, err := encode(in)
	if err != nil {
		return call{}, fmt.Errorf("encode request: %w", err)
	}
	return call{method: method, path: join(segments), header: http.Header{"Content-Type": {"application/json"}}, body: b, safe: true}, nil
}

func listOf[T any](ctx context.Context, c *Client, cl call) ([]T, error) {
	out, err := into[[]T](ctx, c, cl)
	if err != nil {
		return nil, err
	}
	return *out, nil
}
