package httpapi

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

var (
	exampleBuilt    = api.Time{Time: exampleAt.Add(95 * time.Second)}
	exampleTemplate = api.Template{
		Name: "web", Status: api.TemplateReady, BuildID: "bld-q5t3nz7k2m4w6x2p7j3d", CPU: 1, MemoryMB: 1024, DiskMB: 10240,
		CreatedAt: exampleAt, UpdatedAt: exampleBuilt, SizeBytes: 1128267776,
	}
	exampleBuildTemplate = api.BuildTemplate{
		Name: "web", From: "node", Run: []string{"npm install --prefix /app express@5.1.0"},
		Files: api.StringMap{"/app/server.js": "require('express')().listen(process.env.PORT)\n"},
		Env:   api.StringMap{"NODE_ENV": "production"},
		Ready: &api.TemplateCheck{Port: new(3000), TimeoutSeconds: new(60)},
	}
	exampleBuild = api.Build{ID: exampleTemplate.BuildID, Template: "web", Status: api.TemplateReady, CreatedAt: exampleAt, FinishedAt: &exampleBuilt}
)
