package httpapi

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// A request that pathAppProxy matches is passed on, with any method, to the program of an app;
// pathAppRoot is its path "/" without the slash.
const (
	pathAppRoot  = "/v1/apps/:id/proxy"
	pathAppProxy = pathAppRoot + "/*rest"
)

// appProxyRoutes are a way to an app that needs no name of its own: whoever may read the
// app is let through.
func appProxyRoutes() []route {
	var out []route
	for _, m := range []struct{ method, path, id string }{
		{get, pathAppRoot, "getAppRoot"}, {post, pathAppRoot, "postToAppRoot"},
		{get, pathAppProxy, "getFromApp"}, {post, pathAppProxy, "postToApp"}, {put, pathAppProxy, "putToApp"}, {patch, pathAppProxy, "patchAtApp"},
		{del, pathAppProxy, "deleteAtApp"}, {http.MethodOptions, pathAppProxy, "optionsOfApp"},
	} {
		doc := operation{
			id: m.id, tag: "Apps", summary: fmt.Sprintf("Pass a %s on to an app", m.method),
			detail: "To any path, with any headers and body; also WebSockets. The answer is the app's. An app that sleeps is woken, as by a request to its URL. " +
				"The Authorization header is not passed on.",
			proxied: true, status: 200, answerType: "*/*",
			failures: append(ceilingRefusals(),
				apierror.Error{Code: apierror.ENotFound, Message: "app has no live deployment"}, apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"}),
		}
		if m.method != get && m.method != http.MethodOptions {
			doc.bodyType = "application/octet-stream"
		}
		out = append(out, route{m.method, m.path, workspace, ofApp((*API).passToApp), doc})
	}
	return out
}

// passToApp passes a request on. Its answer is the app's, and has none of our headers
// but the request's id.
func (a *API) passToApp(c *gin.Context, id string) error {
	if a.cfg.AppProxy == nil {
		return apierror.NotFound()
	}
	if _, err := a.cfg.Apps.Get(c.Request.Context(), callerOf(c), id); err != nil {
		return err
	}
	if c.GetHeader("Upgrade") != "" { // a way in, as other sockets are
		if err := core.Authorize(callerOf(c), core.Write, core.Resource{Area: core.AreaApps, App: id}); err != nil {
			return err
		}
	}
	_, rest, _ := strings.Cut(strings.TrimPrefix(c.Request.URL.EscapedPath(), "/v1/apps/"), "/proxy/")
	passTo(c, a.cfg.AppProxy(id, rest))
	return nil
}

// passTo has a tenant's program answer, by way of the edge.
func passTo(c *gin.Context, to http.Handler) {
	r := c.Request.WithContext(c.Request.Context())
	if r.ContentLength != 0 {
		// The body may take any time, as long as some of it arrives.
		body := newStream(c, math.MaxInt64)
		defer body.leave()
		r.Body = struct {
			io.Reader
			io.Closer
		}{body, r.Body}
	}
	for _, ours := range []string{"Cache-Control", "Referrer-Policy", "X-Content-Type-Options"} {
		c.Writer.Header().Del(ours)
	}
	to.ServeHTTP(c.Writer, r)
}
