package httpapi

import (
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

func (a *API) healthz(c *gin.Context) error {
	if a.cfg.Health != nil {
		if err := a.cfg.Health(c.Request.Context()); err != nil {
			return &apierror.Error{Code: apierror.EUnavailable, Message: "unhealthy", Err: err}
		}
	}
	return ok(c, api.Health{Status: "ok"})
}

// readyz does not log what it answers: a balancer asks every second.
func (a *API) readyz(c *gin.Context) error {
	if a.cfg.Ready != nil {
		if err := a.cfg.Ready(); err != nil {
			writeJSON(c, http.StatusServiceUnavailable, api.ErrorBody{Error: "not ready", Detail: err.Error()})
			return nil
		}
	}
	return ok(c, api.Health{Status: "ok"})
}

func (a *API) version(c *gin.Context) error { return ok(c, a.cfg.Version) }

// showMetrics shows operators more than everybody: what all workspaces have together is
// their business, and takes a walk over the whole store.
func (a *API) showMetrics(c *gin.Context) error {
	shown := prometheus.Gatherers{a.cfg.Gatherer}
	if caller, err := a.cfg.Authenticator.Authenticate(c.Request); err == nil && caller.Admin && a.cfg.OperatorsGatherer != nil {
		shown = append(shown, a.cfg.OperatorsGatherer)
	}
	promhttp.HandlerFor(shown, promhttp.HandlerOpts{}).ServeHTTP(c.Writer, c.Request)
	return nil
}

func (a *API) showOpenAPI(c *gin.Context) error {
	doc, err := a.openapi()
	if err != nil {
		return fmt.Errorf("build the OpenAPI document: %w", err)
	}
	writeBytes(c, http.StatusOK, "application/json; charset=utf-8", doc)
	return nil
}
