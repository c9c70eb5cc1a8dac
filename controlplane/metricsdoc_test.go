package controlplane

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/telemetry/telemetrytest"
)

// What a replica with everything exports, and what docs/monitoring.md says it does.
func TestDocumentedMetricsAreTheMetrics(t *testing.T) {
	s := runRouter(t, func(c *Config) {
		c.DBDevCA, c.AppSuffix = t.TempDir(), "apps.test"
	})
	awaitLeader(t, s)
	_, strangers := raw(t, http.MethodGet, "http://"+s.Addr()+"/metrics", "", "")
	_, operators := raw(t, http.MethodGet, "http://"+s.Addr()+"/metrics", adminToken, "")
	if name := "berth_usage_month_usd"; strings.Contains(strangers, name) || !strings.Contains(operators, name) || !strings.Contains(strangers, "berth_raft_") {
		t.Error("what operators are shown is what everybody is")
	}
	all := prometheus.NewRegistry()
	all.MustRegister(s.metrics.registry, s.metrics.operators)
	telemetrytest.Exported(t, all, "../docs/monitoring.md", "### Replicas", "### Routers")
}
