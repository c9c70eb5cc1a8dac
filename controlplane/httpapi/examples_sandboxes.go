package httpapi

import "github.com/berth-cloud/berth/controlplane/api"

var (
	exampleCreate = api.CreateSandbox{
		Template:   "base",
		TTLSeconds: &exampleTTL,
		Metadata:   api.Object(`{"purpose":"try-out"}`),
		Env:        api.StringMap{"LANG": "C.UTF-8"},
	}
	exampleSandbox = api.Sandbox{
		ID:         "k7m2qz4xw3v5n6a2j7p4t5r6sd",
		Status:     api.SandboxRunning,
		Template:   "base",
		Metadata:   exampleCreate.Metadata,
		CPU:        1,
		MemoryMB:   512,
		DiskMB:     4096,
		AgentID:    "host-a",
		CreatedAt:  exampleAt,
		StartedAt:  &exampleStarted,
		ExpiresAt:  &exampleExpires,
		TTLSeconds: &exampleTTL,
		Volumes:    []api.VolumeMount{},
		Preview:    api.PreviewPublic,
		PreviewURL: "https://{port}-k7m2qz4xw3v5n6a2j7p4t5r6sd.preview.example.com",
	}
	exampleExec       = api.Exec{Cmd: api.Shell("uname -s && python3 -c 'print(6*7)'"), TimeoutSeconds: &exampleTimeout}
	exampleExecResult = api.ExecResult{Stdout: "Linux\n42\n", DurationMS: 38}
)
