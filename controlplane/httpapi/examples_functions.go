package httpapi

import "github.com/berth-cloud/berth/controlplane/api"

var (
	exampleCreateFunction = api.CreateFunction{Name: "thumbnail", Runtime: api.RuntimePython, Env: api.StringMap{"LOG_LEVEL": "info"}}
	exampleNewFunction    = api.Function{
		ID: "fn-t6r2p7j5dcz2q4m6", Name: "thumbnail", Runtime: api.RuntimePython, Status: api.AppCreated, TimeoutSeconds: 30,
		Env: map[string]string{"LOG_LEVEL": "info"}, CreatedAt: exampleAt, UpdatedAt: exampleAt,
	}
	exampleFunction = func() api.Function {
		f := exampleNewFunction
		f.Status, f.Instances, f.DeploymentID, f.LastInvokedAt, f.UpdatedAt = api.AppRunning, 1, exampleDeploymentID, &exampleExpires, exampleExpires
		return f
	}()
	examplePatchFunction      = api.PatchFunction{TimeoutSeconds: api.SetTo(60)}
	exampleFunctionDeployment = api.Deployment{
		ID: exampleDeploymentID, AppID: exampleNewFunction.ID, Status: api.DeploymentQueued, Source: api.AppFromUpload, SourceID: "src-p4t5r6sdk7m2qz4xw3v5",
		Trigger: api.TriggerAPI, CreatedAt: exampleAt, Phases: []api.DeploymentPhase{},
	}
)
