package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// writeJSON sends the value with its length.
func writeJSON(c *gin.Context, status int, v any) {
	writeBytes(c, status, typeJSON, marshal(v))
}

func writeBytes(c *gin.Context, status int, contentType string, body []byte) {
	// A deadline stays on the connection until the next one is set, which
	// every answer does.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(answerTimeout))
	c.Header("Content-Type", contentType)
	c.Header("Content-Length", strconv.Itoa(len(body)))
	c.Status(status)
	_, _ = c.Writer.Write(body) // the client may have gone; there is nobody else to tell
}

func noContent(c *gin.Context) error {
	c.Status(http.StatusNoContent)
	c.Writer.WriteHeaderNow()
	return nil
}

func ok(c *gin.Context, v any) error {
	writeJSON(c, http.StatusOK, v)
	return nil
}

func created(c *gin.Context, v any) error {
	writeJSON(c, http.StatusCreated, v)
	return nil
}

// each converts a list; an empty one renders as [], never null.
func each[A, B any](in []A, convert func(A) B) []B {
	out := make([]B, len(in))
	for i, v := range in {
		out[i] = convert(v)
	}
	return out
}

// orNull is nil for the empty string.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func renderSandbox(s sandbox.Sandbox) api.Sandbox {
	out := api.Sandbox{
		ID:           s.ID,
		Status:       api.SandboxStatus(s.Status),
		Template:     s.Template,
		CPU:          s.CPU,
		MemoryMB:     s.MemoryMB,
		DiskMB:       s.DiskMB,
		AgentID:      s.AgentID,
		FromSnapshot: orNull(s.FromSnapshot),
		ForkedFrom:   orNull(s.ForkedFrom),
		CreatedAt:    api.Time{Time: s.CreatedAt},
		StartedAt:    api.NewTime(s.StartedAt),
		ExpiresAt:    api.NewTime(s.ExpiresAt),
		TTLSeconds:   s.TTLSeconds,
		Persistent:   s.Persistent,
		Error:        orNull(s.Error),
		Volumes: each(s.Volumes, func(v sandbox.VolumeMount) api.VolumeMount {
			return api.VolumeMount{Name: v.Name, MountPath: v.MountPath}
		}),
		PreviewURL: s.PreviewURL,
		Preview:    api.PreviewMode(s.Preview),
	}
	if string(s.Metadata) != "null" {
		out.Metadata = api.Object(s.Metadata)
	}
	if s.Owner != nil {
		out.Owner = &api.Owner{Type: s.Owner.Type, ID: s.Owner.ID}
	}
	return out
}

func renderMe(p org.Profile) api.Me {
	out := api.Me{ID: p.UserID, Email: p.Email, Orgs: each(p.Workspaces, renderOrg)}
	for i := range out.Orgs {
		if out.Orgs[i].ID == p.CurrentWorkspaceID {
			out.CurrentOrg = &out.Orgs[i]
		}
	}
	return out
}

func renderOrg(w org.Workspace) api.Org {
	return api.Org{ID: w.ID, Name: w.Name, Suspended: w.Suspended, CreatedAt: api.Time{Time: w.CreatedAt}}
}

func renderToken(t org.Token) api.Token {
	return api.Token{Prefix: t.Prefix, Name: t.Name, CreatedAt: api.Time{Time: t.CreatedAt}, ExpiresAt: api.NewTime(t.ExpiresAt)}
}

func renderRaftStatus(s cluster.RaftStatus) api.RaftStatus {
	return api.RaftStatus{
		NodeID:            s.NodeID,
		State:             s.State,
		LeaderID:          s.LeaderID,
		LeaderAddress:     s.LeaderAddress,
		Term:              s.Term,
		CommitIndex:       s.CommitIndex,
		AppliedIndex:      s.AppliedIndex,
		LastLogIndex:      s.LastLogIndex,
		LastSnapshotIndex: s.LastSnapshotIndex,
		LastContactMS:     contactMS(s.LastContact),
		Peers: each(s.Peers, func(p cluster.RaftPeer) api.RaftPeer {
			return api.RaftPeer{
				ID: p.ID, Address: p.Address, Voter: p.Voter, Healthy: p.Healthy,
				LastContactMS: contactMS(p.LastContact), AppliedIndex: p.AppliedIndex,
			}
		}),
	}
}

// contactMS keeps -1, which means unknown, apart from less than a millisecond.
func contactMS(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

func renderAgent(a cluster.Agent) api.Agent {
	return api.Agent{
		ID: a.ID, Address: a.Address, State: a.State, Ready: a.Ready, Draining: a.Draining,
		LastSeenAt: api.NewTime(a.LastSeen),
		Capacity: api.AgentCapacity{
			CPUs: a.CPUs, MemoryMB: a.MemoryMB, ReservedMB: a.ReservedMB,
			Slots: a.Slots, SlotsUsed: a.SlotsUsed, DiskFreeBytes: a.DiskFreeBytes,
		},
		Versions: api.AgentVersions{Hostd: a.Versions.Hostd, Engine: a.Versions.Engine, Kernel: a.Versions.Kernel},
		Templates: each(a.Templates, func(t cluster.AgentTemplate) api.AgentTemplate {
			return api.AgentTemplate{Name: t.Name, BuildID: t.BuildID, Status: t.Status, Error: orNull(t.Error)}
		}),
		Sandboxes: a.Sandboxes,
		CreatedAt: api.Time{Time: a.CreatedAt},
	}
}
