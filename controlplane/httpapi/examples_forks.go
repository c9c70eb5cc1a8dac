package httpapi

import (
	"fmt"

	"github.com/berth-cloud/berth/controlplane/api"
)

var (
	exampleCount  = 2
	exampleVolMB  = 1024
	exampleTreeID = "tree-w4n7x2k5q3z6m2b7c4d5"

	exampleCreateSnapshot = api.CreateSnapshot{Name: "before the upgrade"}
	exampleSnapshot       = api.Snapshot{
		ID: "snap-q5t3nz7k2m4w6x2p7j3d", Status: api.SnapshotReady, SandboxID: exampleSandbox.ID, Template: "base",
		Name: exampleCreateSnapshot.Name, CreatedAt: exampleAt, SizeBytes: 134217728 + 12582912, MemoryBytes: 134217728, DiskBytes: 12582912,
		AgentID: "host-a", Stored: true, PauseMS: 61,
	}

	exampleFork   = api.Fork{Count: &exampleCount, Mode: new(api.ForkCold)}
	exampleForked = api.Forked{
		ParentID: exampleSandbox.ID, Mode: api.ForkCold, PauseMS: 12, Failed: []api.FailedFork{},
		Children: []api.Sandbox{
			exampleChild("b3n5x7z2q4m6w2k4t6r2p7j5da", fmt.Sprintf(`{"forked_from":%q}`, exampleSandbox.ID)),
			exampleChild("c6w2k4t6r2p7j5d3n5x7z2q4mb", fmt.Sprintf(`{"forked_from":%q}`, exampleSandbox.ID)),
		},
	}

	exampleForkTree   = api.ForkTree{Count: &exampleCount, Metadata: api.Object(`{"try":"the other branch"}`)}
	exampleForkedTree = api.ForkedTree{
		TreeID: exampleTreeID, ParentID: exampleSandbox.ID, PauseMS: 61, Stored: true,
		Children: []api.Sandbox{exampleChild("d7j5d3n5x7z2q4m6w2k4t6r2pc", treeMetadata("child", 0))},
		Failed:   []api.FailedFork{{Index: 1, Error: "insufficient host memory for sandbox"}},
	}

	examplePromote  = api.Promote{TreeID: exampleTreeID, CleanupSiblings: true}
	examplePromoted = api.Promoted{
		Promoted: exampleChild("d7j5d3n5x7z2q4m6w2k4t6r2pc", treeMetadata("promoted", 0)),
		Deleted:  []string{"e2q4m6w2k4t6r2p7j5d3n5x7zd"},
	}

	exampleCreateVolume = api.CreateVolume{Name: "data", SizeMB: &exampleVolMB}
	exampleVolume       = api.Volume{Name: "data", SizeMB: exampleVolMB, UsedBytes: 33554432, AgentID: "host-a", CreatedAt: exampleAt}
)

func treeMetadata(role string, index int) string {
	return fmt.Sprintf(`{"fork_index":%d,"fork_parent_id":%q,"fork_tree_id":%q,"fork_tree_role":%q,"try":"the other branch"}`,
		index, exampleSandbox.ID, exampleTreeID, role)
}

func exampleChild(id, metadata string) api.Sandbox {
	s := exampleSandbox
	parent := s.ID
	s.ID, s.ForkedFrom, s.Metadata = id, &parent, api.Object(metadata)
	s.PreviewURL = "https://{port}-" + id + ".preview.example.com"
	return s
}
