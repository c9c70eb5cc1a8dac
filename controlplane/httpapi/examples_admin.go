package httpapi

import "github.com/berth-cloud/berth/controlplane/api"

var (
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
		Versions:  api.AgentVersions{Hostd: "v0.1.0", Engine: "cloud-hypervisor v53.0+cpu-1f0a96c2", Kernel: "6.12.57+deb12-cloud-amd64"},
		Templates: []api.AgentTemplate{{Name: "base", BuildID: "b7c1f0e2", Status: "ready"}},
		Sandboxes: 16,
		CreatedAt: exampleAt,
	}
	exampleEvacuated   = evacuated(exampleAgent)
	exampleRebalancing = api.Rebalancing{
		DryRun: true, AtOnce: 4, Percent: 20, Planned: 1, Waiting: 1,
		Hosts: []api.RebalancedHost{
			{ID: "host-a", Sandboxes: 4, DiskMB: 8192, Share: 200, ShareAfter: 100},
			{ID: "host-b", Share: 0, ShareAfter: 100},
		},
		Moves: []api.RebalanceMove{{Kind: "sandbox", ID: "q7w2e9r4", WorkspaceID: "ws-1", From: "host-a", To: "host-b", DiskMB: 4096, State: "waiting"}},
		Stays: []api.AgentStay{},
	}
	exampleJoinToken = api.JoinToken{
		Token: "bjt_w4n7x2k5q3z6", ExpiresAt: exampleExpires,
		CASHA256: "9f2b6c1d0a7e4c35b8d1f06e2a94c7d3e5b80f1a6c2d7e9341b5a8c0d6f2e714",
		Peers:    []string{"10.0.0.11:7001", "10.0.0.12:7001", "10.0.0.13:7001"},
	}
)

func evacuated(a api.Agent) api.Agent {
	a.Draining, a.Sandboxes = true, 5
	a.Evacuation = &api.AgentEvacuation{
		BeganAt: exampleAt, AtOnce: 4, Moved: 11, Moving: 4, Staying: 1,
		Stays: []api.AgentStay{{Kind: "sandbox", ID: "q7w2e9r4", WorkspaceID: "ws-1", Reason: "it is paused: resume or hibernate it"}},
	}
	return a
}
