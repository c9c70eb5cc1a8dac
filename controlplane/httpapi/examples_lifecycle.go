package httpapi

import "github.com/berth-cloud/berth/controlplane/api"

var (
	exampleLifecycle      = api.Lifecycle{Status: api.SandboxRunning, TTLSeconds: &exampleTTL, ExpiresAt: &exampleExpires, Persistent: true}
	examplePatchLifecycle = api.PatchLifecycle{TTLSeconds: api.SetTo[int64](3600), Persistent: api.SetTo(true)}
)
