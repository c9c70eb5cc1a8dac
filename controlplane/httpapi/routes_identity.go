package httpapi

import (
	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// identityRoutes are the routes of the user of a JWT.
func identityRoutes() []route {
	return []route{
		{get, "/v1/me", jwtOnly, (*API).getMe, operation{
			action: personal, id: "me", tag: "Identity", summary: "Read who the JWT belongs to", status: 200, answer: exampleMe,
		}},
		{post, "/v1/me/current-org", jwtOnly, (*API).setCurrentOrg, operation{
			action: personal, id: "setCurrentOrg", tag: "Identity", summary: "Choose the organization in which the JWT acts from now on",
			body: api.SetCurrentOrg{OrgID: exampleOrg.ID}, status: 200, answer: exampleMe,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "org_id is required"},
				{Code: apierror.ENotFound, Message: "not found"},
			},
		}},
		{post, "/v1/me/tokens", jwtOnly, (*API).createToken, operation{
			id: "createToken", tag: "Identity", summary: "Create an API key of the current organization",
			detail:     "The key is shown only here, and for 24 hours to whoever repeats the request with the same Idempotency-Key.",
			idempotent: true,
			body:       api.CreateToken{Name: "laptop", Scopes: []string{"read-only", "sandboxes"}}, status: 201,
			answer: api.NewToken{Token: exampleToken, Key: "brt_k3v7q2xa_x5n2w7jq4mz6t3c2y7b5r6d4s2f7h3gk"},
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "name is required"},
				{Code: apierror.EInvalid, Message: "invalid expires_at", Detail: "expires_at must be in the future"},
				{Code: apierror.EInvalid, Message: "invalid scopes", Detail: "want all, read-only, sandboxes, databases, apps, volumes, webhooks, or app:<id>"},
				{Code: apierror.ERateLimited, Message: "max keys reached", Fields: map[string]any{"max": 10, "active": 10}},
			},
		}},
		{get, "/v1/me/tokens", jwtOnly, (*API).listTokens, operation{
			id: "listTokens", tag: "Identity", summary: "List the current organization's API keys, newest first", list: true,
			status: 200, answer: []api.Token{exampleToken},
		}},
		{del, "/v1/me/tokens/:prefix", jwtOnly, (*API).revokeToken, operation{
			id: "revokeToken", tag: "Identity", summary: "Revoke an API key by its prefix", status: 204,
		}},
	}
}
