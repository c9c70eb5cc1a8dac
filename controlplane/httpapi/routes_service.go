package httpapi

import (
	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// serviceRoutes are the routes of the replica itself.
func serviceRoutes() []route {
	return []route{
		{get, "/healthz", public, (*API).healthz, operation{
			id: "healthz", tag: "Service", summary: "Check the health of this replica",
			detail: "It answers 200 even while no sandbox can be placed.",
			status: 200, anyReplica: true, answer: api.Health{Status: "ok"},
			failures: []apierror.Error{{Code: apierror.EUnavailable, Message: "unhealthy"}},
		}},
		{get, "/readyz", public, (*API).readyz, operation{
			id: "readyz", tag: "Service", summary: "Check the readiness of this replica: whether it can serve requests now",
			detail: "For load balancers. It is a member of the cluster that knows a leader and what was committed, and does not stop. The detail names what is missing.",
			status: 200, anyReplica: true, answer: api.Health{Status: "ok"},
			failures: []apierror.Error{{Code: apierror.EUnavailable, Message: "not ready", Detail: "leader: none is known"}},
		}},
		{get, "/version", public, (*API).version, operation{
			id: "version", tag: "Service", summary: "Read the version of this replica",
			status: 200, anyReplica: true, answer: exampleVersion,
		}},
		{get, "/metrics", public, (*API).showMetrics, operation{
			id: "metrics", tag: "Service", summary: "Prometheus metrics of this replica",
			status: 200, anyReplica: true, answerType: "text/plain",
		}},
		{get, "/openapi.json", public, (*API).showOpenAPI, operation{
			id: "openapi", tag: "Service", summary: "This document",
			status: 200, anyReplica: true, answerType: "application/json",
		}},
	}
}
