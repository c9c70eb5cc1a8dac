package stats

import (
	"context"
	"math"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Sandbox returns what a sandbox uses and has used, measured by its host now, with so
// much of its history. A managed one is its owner's.
func (m *Metrics) Sandbox(ctx context.Context, c core.Caller, id string, history time.Duration) (api.SandboxUsage, error) {
	view, err := m.cfg.Core.View(ctx, c)
	if err != nil {
		return api.SandboxUsage{}, err
	}
	row, err := sandbox.Owned(view, c, id)
	if err != nil {
		return api.SandboxUsage{}, err
	}
	if err := sandbox.Unmanaged(row); err != nil {
		return api.SandboxUsage{}, err
	}
	usage, err := m.usage(ctx, c, row, history)
	if err != nil {
		return api.SandboxUsage{}, err
	}
	return api.SandboxUsage{SandboxID: row.ID, Status: api.SandboxStatus(row.Status), Usage: usage}, nil
}

// Database returns the same of a database, as far as it has a virtual machine.
func (m *Metrics) Database(ctx context.Context, c core.Caller, id string, history time.Duration) (api.DatabaseUsage, error) {
	db, err := m.cfg.Databases.Get(ctx, c, id)
	if err != nil {
		return api.DatabaseUsage{}, err
	}
	out := api.DatabaseUsage{DatabaseID: db.ID, Status: db.Status}
	view, err := m.cfg.Core.View(ctx, c)
	if err != nil {
		return api.DatabaseUsage{}, err
	}
	row, ok := raftstore.Get(view, record.Databases, id)
	if !ok || row.WorkspaceID != c.WorkspaceID {
		return api.DatabaseUsage{}, apierror.NotFound()
	}
	box, ok := raftstore.Get(view, record.Sandboxes, row.SandboxID)
	if !ok || box.HostID == "" {
		return out, nil
	}
	usage, err := m.usage(ctx, c, box, history)
	if err != nil {
		return api.DatabaseUsage{}, err
	}
	out.Usage = &usage
	if st := m.heard(box); st != nil {
		out.Clients, out.ArchiveLagSeconds = &st.Clients, &st.Archive.LagSeconds
	}
	return out, nil
}

// heard is what a database's host has told of it, nil if nothing.
func (m *Metrics) heard(box *record.Sandbox) *hostapi.DatabaseState {
	session, _ := m.cfg.Core.Hosts.Session(box.HostID)
	for _, b := range session.Heartbeat.Boxes {
		if b.ID == box.ID {
			return b.Database
		}
	}
	return nil
}

// usage asks a sandbox's host.
func (m *Metrics) usage(ctx context.Context, c core.Caller, row *record.Sandbox, history time.Duration) (api.ResourceUsage, error) {
	if row.HostID == "" {
		return api.ResourceUsage{}, apierror.NotRunning("its status is " + string(row.Status))
	}
	ctx, cancel := context.WithTimeout(hosts.WithRequestID(ctx, c.RequestID), askTimeout)
	defer cancel()
	client, err := m.cfg.Core.Hosts.Reach(ctx, row.HostID)
	if err != nil {
		return api.ResourceUsage{}, hostError(err)
	}
	ctx, release := m.cfg.Core.Hosts.WhileHeard(ctx, row.HostID)
	defer release()
	got, err := client.BoxStats(ctx, row.ID, history)
	if err != nil {
		return api.ResourceUsage{}, hostError(err)
	}
	return showUsage(row, got), nil
}

func showUsage(row *record.Sandbox, u hostapi.BoxStats) api.ResourceUsage {
	return api.ResourceUsage{
		At: api.Time{Time: u.At}, Since: api.Time{Time: u.Since}, CPU: row.CPU, CPUSeconds: seconds(u.CPU),
		MemoryBytes: u.MemoryBytes, MemoryLimitBytes: int64(row.MemoryMB) << 20, DiskBytes: u.DiskBytes, DiskLimitBytes: int64(row.DiskMB) << 20,
		NetworkReceivedBytes: u.ReceivedBytes, NetworkSentBytes: u.SentBytes, IntervalSeconds: seconds(u.Every),
		History: core.Each(u.History, func(s hostapi.StatsSample) api.UsageSample {
			return api.UsageSample{
				At: api.Time{Time: s.At}, Seconds: seconds(s.Took), CPUSeconds: seconds(s.CPU), MemoryBytes: s.MemoryBytes, DiskBytes: s.DiskBytes,
				NetworkReceivedBytes: s.ReceivedBytes, NetworkSentBytes: s.SentBytes,
			}
		}),
	}
}

// seconds are seconds with three digits after the point.
func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }
