package api

import (
	"context"
	"net/url"
	"strconv"
)

// SandboxUsage is the answer of GET /v1/sandboxes/{id}/metrics.
type SandboxUsage struct {
	SandboxID string        `json:"sandbox_id"`
	Status    SandboxStatus `json:"status"`
	Usage     ResourceUsage `json:"usage"`
}

// DatabaseUsage is the answer of GET /v1/databases/{id}/metrics. A database without a
// virtual machine has no usage.
type DatabaseUsage struct {
	DatabaseID        string         `json:"database_id"`
	Status            DatabaseStatus `json:"status"`
	Clients           *int           `json:"clients"`             // clients' sessions, while it runs
	ArchiveLagSeconds *float64       `json:"archive_lag_seconds"` // age of the oldest write that may not be archived, while it runs
	Usage             *ResourceUsage `json:"usage"`
}

// ResourceUsage is what a virtual machine uses and has used, as its host measures it.
type ResourceUsage struct {
	At    Time `json:"at"`    // when it was measured
	Since Time `json:"since"` // when the totals were zero: its create, or a restart of the host's machine

	CPU                  int     `json:"cpu"`         // virtual CPUs
	CPUSeconds           float64 `json:"cpu_seconds"` // total, of all CPUs, with the virtual machine monitor's own
	MemoryBytes          int64   `json:"memory_bytes"`
	MemoryLimitBytes     int64   `json:"memory_limit_bytes"`
	DiskBytes            int64   `json:"disk_bytes"` // that its disk takes on the host
	DiskLimitBytes       int64   `json:"disk_limit_bytes"`
	NetworkReceivedBytes int64   `json:"network_received_bytes"` // total
	NetworkSentBytes     int64   `json:"network_sent_bytes"`     // total

	IntervalSeconds float64       `json:"interval_seconds"` // of the history
	History         []UsageSample `json:"history"`          // oldest first; begins anew when the host's daemon restarts
}

// UsageSample is what was used in the seconds before a moment.
type UsageSample struct {
	At                   Time    `json:"at"`
	Seconds              float64 `json:"seconds"`
	CPUSeconds           float64 `json:"cpu_seconds"`
	MemoryBytes          int64   `json:"memory_bytes"` // at the moment
	DiskBytes            int64   `json:"disk_bytes"`   // at the moment
	NetworkReceivedBytes int64   `json:"network_received_bytes"`
	NetworkSentBytes     int64   `json:"network_sent_bytes"`
}

// MaxUsageMinutes is how many minutes of history may be asked for.
const MaxUsageMinutes = 60

// GetSandboxUsage returns what a sandbox uses and has used, with so many minutes of its
// history, at most MaxUsageMinutes.
func (c *Client) GetSandboxUsage(ctx context.Context, id string, minutes int) (*SandboxUsage, error) {
	return into[SandboxUsage](ctx, c, usageOf(minutes, "sandboxes", id))
}

// GetDatabaseUsage is GetSandboxUsage for a database.
func (c *Client) GetDatabaseUsage(ctx context.Context, id string, minutes int) (*DatabaseUsage, error) {
	return into[DatabaseUsage](ctx, c, usageOf(minutes, "databases", id))
}

func usageOf(minutes int, kind, id string) call {
	cl := get(Version, kind, id, "metrics")
	cl.query = url.Values{"minutes": {strconv.Itoa(minutes)}}
	return cl
}
