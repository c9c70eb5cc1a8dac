package httpapi

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// The values that the document shows as examples. They are values of the types
// that the handlers use, so an example cannot drift from the API.
var (
	exampleAt      = api.Time{Time: time.Date(2026, time.November, 20, 13, 5, 9, 412e6, time.UTC)}
	exampleStarted = api.Time{Time: exampleAt.Add(231 * time.Millisecond)}
	exampleExpires = api.Time{Time: exampleAt.Add(time.Hour)}
	exampleTTL     = int64(3600)
	exampleTimeout = int64(30)

	exampleVersion = api.VersionInfo{Version: "v0.1.0", Commit: "4f2c1d7e", GoVersion: "go1.26.0", API: api.Version}

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
		PreviewURL: "https://{port}-k7m2qz4xw3v5n6a2j7p4t5r6sd.preview.example.com",
	}
	exampleExec       = api.Exec{Cmd: api.Shell("uname -s && python3 -c 'print(6*7)'"), TimeoutSeconds: &exampleTimeout}
	exampleExecResult = api.ExecResult{Stdout: "Linux\n42\n", DurationMS: 38}

	exampleOrg = api.Org{ID: "ws-q5t3nz7k", Name: "Ada's", CreatedAt: exampleAt}
	exampleMe  = api.Me{
		ID: "u-7b2kq4xm", Email: "ada@example.com",
		CurrentOrg: &exampleOrg, Orgs: []api.Org{exampleOrg},
	}
	exampleToken = api.Token{Prefix: "k3v7q2xa", Name: "laptop", CreatedAt: exampleAt}

	exampleRaftStatus = api.RaftStatus{
		NodeID: "r1", State: "leader", LeaderID: "r1", LeaderAddress: "10.0.0.11:7001",
		Term: 4, CommitIndex: 1873, AppliedIndex: 1873, LastLogIndex: 1873, LastSnapshotIndex: 1024,
		Peers: []api.RaftPeer{
			{ID: "r1", Address: "10.0.0.11:7001", Voter: true, Healthy: true, AppliedIndex: 1873},
			{ID: "r2", Address: "10.0.0.12:7001", Voter: true, Healthy: true, LastContactMS: 41, AppliedIndex: 1873},
			{ID: "r3", Address: "10.0.0.13:7001", Voter: true, LastContactMS: -1},
		},
	}
	exampleAgent = api.Agent{
		ID: "host-a", Address: "10.0.1.21:7443", State: "up", Ready: true, LastSeenAt: &exampleAt,
		Capacity: api.AgentCapacity{
			CPUs: 16, MemoryMB: 65536, ReservedMB: 9216, Slots: 128, SlotsUsed: 16, DiskFreeBytes: 412316860416,
		},
		Versions:  api.AgentVersions{Hostd: "v0.1.0", Engine: "cloud-hypervisor v53.0", Kernel: "6.12.57+deb12-cloud-amd64"},
		Templates: []api.AgentTemplate{{Name: "base", BuildID: "b7c1f0e2", Status: "ready"}},
		Sandboxes: 16,
		CreatedAt: exampleAt,
	}
	exampleJoinToken = api.JoinToken{
		Token: "bjt_w4n7x2k5q3z6", ExpiresAt: exampleExpires,
		CASHA256: "9f2b6c1d0a7e4c35b8d1f06e2a94c7d3e5b80f1a6c2d7e9341b5a8c0d6f2e714",
		Peers:    []string{"10.0.0.11:7001", "10.0.0.12:7001", "10.0.0.13:7001"},
	}
)
