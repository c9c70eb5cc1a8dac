package httpapi

import "github.com/berth-cloud/berth/controlplane/api"

var (
	exampleOrg = api.Org{ID: "ws-q5t3nz7k", Name: "Ada's", CreatedAt: exampleAt}
	exampleMe  = api.Me{
		ID: "u-7b2kq4xm", Email: "ada@example.com",
		CurrentOrg: &exampleOrg, Orgs: []api.Org{exampleOrg},
	}
	exampleToken = api.Token{Prefix: "k3v7q2xa", Name: "laptop", CreatedAt: exampleAt}
)
