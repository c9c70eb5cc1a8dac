package api

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// CreateFunction stores the settings of a function: deploy its code next. idempotencyKey
// may be empty, as in CreateSandbox.
func (c *Client) CreateFunction(ctx context.Context, in CreateFunction, idempotencyKey string) (*Function, error) {
	return create[Function](ctx, c, in, idempotencyKey, Version, "functions")
}

// GetFunction returns a function.
func (c *Client) GetFunction(ctx context.Context, id string) (*Function, error) {
	return into[Function](ctx, c, get(Version, "functions", id))
}

// ListFunctions returns one page, newest first, and the cursor of the next page, which is
// empty after the last.
func (c *Client) ListFunctions(ctx context.Context, p Page) ([]Function, string, error) {
	return page[Function](ctx, c, p, Version, "functions")
}

// Functions iterates over all functions, newest first, page by page.
func (c *Client) Functions(ctx context.Context) iter.Seq2[Function, error] {
	return all(func(p Page) ([]Function, string, error) { return c.ListFunctions(ctx, p) })
}

// PatchFunction changes settings of a function.
func (c *Client) PatchFunction(ctx context.Context, id string, in PatchFunction) (*Function, error) {
	cl, err := withBody(http.MethodPatch, in, Version, "functions", id)
	if err != nil {
		return nil, err
	}
	return into[Function](ctx, c, cl)
}

// DeleteFunction deletes a function with its code, deployments and variables.
func (c *Client) DeleteFunction(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "functions", id))
}

// DeployFunction begins a deployment of files. Follow it with FollowFunctionDeployment.
func (c *Client) DeployFunction(ctx context.Context, id string, in DeployFunction) (*Deployment, error) {
	cl, err := post(in, Version, "functions", id, "deploy")
	if err != nil {
		return nil, err
	}
	return into[Deployment](ctx, c, cl)
}

// DeployFunctionArchive begins a deployment of a tar.gz of size bytes (-1: until the end
// of tarball).
func (c *Client) DeployFunctionArchive(ctx context.Context, id string, tarball io.Reader, size int64) (*Deployment, error) {
	return into[Deployment](ctx, c, call{
		method: http.MethodPost, path: join([]string{Version, "functions", id, "deploy"}),
		header: http.Header{"Content-Type": {"application/gzip"}}, reader: tarball, size: size,
	})
}

// GetFunctionDeployment returns a deployment of a function.
func (c *Client) GetFunctionDeployment(ctx context.Context, id, deploymentID string) (*Deployment, error) {
	return into[Deployment](ctx, c, get(Version, "functions", id, "deploys", deploymentID))
}

// ListFunctionDeployments returns one page of a function's deployments, newest first, and
// the cursor of the next page, which is empty after the last.
func (c *Client) ListFunctionDeployments(ctx context.Context, id string, p Page) ([]Deployment, string, error) {
	return page[Deployment](ctx, c, p, Version, "functions", id, "deploys")
}

// CancelFunctionDeployment ends a deployment, which has then failed.
func (c *Client) CancelFunctionDeployment(ctx context.Context, id, deploymentID string) (*Deployment, error) {
	cl, err := post(struct{}{}, Version, "functions", id, "deploys", deploymentID, "cancel")
	if err != nil {
		return nil, err
	}
	return into[Deployment](ctx, c, cl)
}

// FollowFunctionDeployment is FollowDeployment for a function.
func (c *Client) FollowFunctionDeployment(ctx context.Context, id, deploymentID string, line func(stream string, l LogLine) error) (*Deployment, error) {
	return c.followDeployment(ctx, "functions", id, deploymentID, line)
}

// RollBackFunction begins a deployment that serves an earlier one again.
func (c *Client) RollBackFunction(ctx context.Context, id string, in RollBackApp) (*Deployment, error) {
	cl, err := post(in, Version, "functions", id, "rollback")
	if err != nil {
		return nil, err
	}
	return into[Deployment](ctx, c, cl)
}

// InvokeFunction sends a request to a function, and returns its answer, whatever its
// status is. at is the path, and maybe a query, that its handler sees; "" is "/". A POST
// needs a body. The caller closes the answer's.
func (c *Client) InvokeFunction(ctx context.Context, id, method, at string, header http.Header, body []byte) (*http.Response, error) {
	path, query, _ := strings.Cut(strings.TrimPrefix(at, "/"), "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("query of %q: %w", at, err)
	}
	return c.do(ctx, call{
		method: method, path: join([]string{Version, "functions", id, "invoke"}) + "/" + path, query: values, header: header, body: body, whole: true,
	})
}

// FunctionLogs returns the last lines of what a function has written, as text; tail 0
// means all that is kept. The caller closes it.
func (c *Client) FunctionLogs(ctx context.Context, id string, tail int) (io.ReadCloser, error) {
	resp, err := c.do(ctx, functionLogs(id, tail))
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// FollowFunctionLogs calls line with the existing lines and then with new ones, like
// FollowLogs.
func (c *Client) FollowFunctionLogs(ctx context.Context, id string, tail int, line func(stream string, l LogLine) error) error {
	return c.followLines(ctx, functionLogs(id, tail), line)
}

func functionLogs(id string, tail int) call {
	cl := get(Version, "functions", id, "logs")
	cl.query = url.Values{}
	if tail > 0 {
		cl.query.Set("tail", strconv.Itoa(tail))
	}
	return cl
}

// FunctionEnv returns the environment variables of a function, with secret values masked.
func (c *Client) FunctionEnv(ctx context.Context, id string) ([]AppVariable, error) {
	return listOf[AppVariable](ctx, c, get(Version, "functions", id, "env"))
}

// PutFunctionVariable sets an environment variable of a function.
func (c *Client) PutFunctionVariable(ctx context.Context, id, key string, in PutAppVariable) (*AppVariable, error) {
	cl, err := withBody(http.MethodPut, in, Version, "functions", id, "env", key)
	if err != nil {
		return nil, err
	}
	return into[AppVariable](ctx, c, cl)
}

// DeleteFunctionVariable removes an environment variable of a function.
func (c *Client) DeleteFunctionVariable(ctx context.Context, id, key string) error {
	return c.done(ctx, remove(Version, "functions", id, "env", key))
}
