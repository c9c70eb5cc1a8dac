package httpapi

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/telemetry"
)

// Keys of the middleware's values in the gin context.
const (
	keyRequestID = "berth.request_id"
	keyCaller    = "berth.caller"
)

// withRequestID sets the request's id: the client's own X-Request-Id if it is valid,
// otherwise a new one.
func (a *API) withRequestID(c *gin.Context) {
	given := ""
	if v := c.Request.Header.Values(api.HeaderRequestID); len(v) == 1 {
		given = v[0]
	}
	id := core.RequestID(given, a.cfg.MaxRequestID)
	c.Set(keyRequestID, id)
	c.Header(api.HeaderRequestID, id)
	c.Header("X-Content-Type-Options", "nosniff")
	// Answers contain bearer credentials: sandbox ids and keys.
	c.Header("Cache-Control", "no-store")
	c.Header("Referrer-Policy", "no-referrer")
}

func requestID(c *gin.Context) string { return c.GetString(keyRequestID) }

func callerOf(c *gin.Context) core.Caller {
	caller, _ := c.Get(keyCaller)
	out, _ := caller.(core.Caller)
	return out
}

// routeOf returns the route's pattern, which, unlike the path, contains no id.
func routeOf(c *gin.Context) string {
	if r := c.FullPath(); r != "" {
		return r
	}
	return "none"
}

// observe logs and counts the request when it has ended.
func (a *API) observe(c *gin.Context) {
	start := time.Now()
	route := routeOf(c)
	a.metrics.inFlight.Inc()
	defer func() {
		a.metrics.inFlight.Dec()
		took := time.Since(start)
		status := c.Writer.Status()
		method := methodLabel(c.Request.Method)
		a.metrics.observe(route, method, status, took)

		level := slog.LevelInfo
		if route == "/healthz" || route == "/readyz" || route == "/metrics" {
			level = slog.LevelDebug
		}
		caller := callerOf(c)
		attrs := []slog.Attr{
			slog.String("request_id", requestID(c)),
			slog.String("method", method),
			slog.String("route", route),
			slog.Int("status", status),
			slog.Float64("duration_ms", float64(took.Microseconds())/1000),
			slog.Int("bytes", max(c.Writer.Size(), 0)),
		}
		if caller.WorkspaceID != "" {
			attrs = append(attrs, slog.String("workspace_id", caller.WorkspaceID))
		}
		if caller.Admin {
			attrs = append(attrs, slog.Bool("operator", true))
		}
		if id := c.GetString(keySandboxID); id != "" {
			attrs = append(attrs, slog.String("sandbox_id", id))
		}
		a.log.LogAttrs(c.Request.Context(), level, "request", attrs...)
		if span := telemetry.Current(c.Request.Context()); span.On() {
			span.Name(method + " " + route)
			span.Set(telemetry.KeyMethod, method)
			span.Set(telemetry.KeyRoute, route)
			span.Set(telemetry.KeyWorkspaceID, caller.WorkspaceID)
			span.SetSandbox(c.GetString(keySandboxID))
			span.Status(status)
		}
	}()
	c.Next()
}

// recoverPanic answers 500 if a handler panics.
func (a *API) recoverPanic(c *gin.Context) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if err, ok := v.(error); ok && err == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
			panic(v)
		}
		a.log.LogAttrs(c.Request.Context(), slog.LevelError, "request panicked",
			slog.String("request_id", requestID(c)),
			slog.String("route", routeOf(c)),
			slog.String("panic", fmt.Sprint(v)),
			slog.String("stack", string(debug.Stack())))
		c.Abort()
		if c.Writer.Written() {
			panic(http.ErrAbortHandler)
		}
		writeJSON(c, http.StatusInternalServerError, api.ErrorBody{Error: "internal error"})
	}()
	c.Next()
}

// requireBody refuses a POST without a body with 411 and an empty body, before the
// caller is authenticated. On a path without a POST, the method is refused instead.
func requireBody(c *gin.Context) {
	// ContentLength is 0 if it is 0 or absent, and -1 if the body is chunked.
	if c.Request.Method == http.MethodPost && c.Request.ContentLength == 0 {
		c.AbortWithStatus(http.StatusLengthRequired)
		c.Writer.WriteHeaderNow()
	}
}
