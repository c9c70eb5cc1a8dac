package record

import (
	"slices"
	"time"
)

// What usage is counted by. The products are also the types of Owner.
const (
	ProductSandbox  = "sandbox" // with the snapshots and volumes of the workspace
	ProductDatabase = "database"
	ProductApp      = "app"
)

// Resource is what can be used, and in which unit it is counted.
type Resource string

// The resources. All are counted in milliseconds: of one virtual CPU, of one processor,
// of one MiB.
const (
	ResourceVCPU     Resource = "vcpu"   // virtual CPUs of what runs
	ResourceCPU      Resource = "cpu"    // processor time that was used
	ResourceMemory   Resource = "memory" // of what runs or is paused
	ResourceDisk     Resource = "disk"   // also of what sleeps
	ResourceSnapshot Resource = "snapshot"
	ResourceVolume   Resource = "volume"
	ResourceArchive  Resource = "archive" // base backups and WAL of databases
)

// Usage is what a workspace has used in a month. The id is "<workspace>/<month>". The
// row has a line for each product and resource, so its size is bounded.
type Usage struct {
	Meta
	WorkspaceID string      `json:"workspace_id"`
	Month       string      `json:"month"` // 2006-01, in UTC
	Lines       []UsageLine `json:"lines,omitempty"`
	// StorageAt is until when snapshots, volumes and archives are counted.
	StorageAt time.Time `json:"storage_at,omitzero"`
	// WarnedAt and ExhaustedAt are when its members were told, once each, that the
	// month's credit is nearly spent, and spent.
	WarnedAt    time.Time `json:"warned_at,omitzero"`
	ExhaustedAt time.Time `json:"exhausted_at,omitzero"`
}

// UsageLine is one resource of one product.
type UsageLine struct {
	Product  string   `json:"p"`
	Resource Resource `json:"r"`
	Amount   int64    `json:"n"`           // in the unit of the resource
	MicroUSD int64    `json:"c,omitempty"` // what it has cost, by the prices of its time
	// Rest is the part of a micro-USD that MicroUSD lacks, in units of the price's
	// denominator: so that sums are exact.
	Rest uint64 `json:"f,omitempty"`
}

// UsageID is the id of a workspace's row of a month.
func UsageID(workspaceID, month string) string { return workspaceID + "/" + month }

// MonthOf names the month of a time.
func MonthOf(t time.Time) string { return t.UTC().Format("2006-01") }

// Line returns the line of a product and resource, for the caller to change. The lines
// stay in order.
func (u *Usage) Line(product string, r Resource) *UsageLine {
	i, found := slices.BinarySearchFunc(u.Lines, UsageLine{Product: product, Resource: r}, func(a, b UsageLine) int {
		switch {
		case a.Product != b.Product && a.Product < b.Product, a.Product == b.Product && a.Resource < b.Resource:
			return -1
		case a.Product == b.Product && a.Resource == b.Resource:
			return 0
		}
		return 1
	})
	if !found {
		u.Lines = slices.Insert(u.Lines, i, UsageLine{Product: product, Resource: r})
	}
	return &u.Lines[i]
}

// MicroUSD is what the month has cost so far.
func (u *Usage) MicroUSD() (sum int64) {
	for _, l := range u.Lines {
		sum += l.MicroUSD
	}
	return sum
}

// CPUSeconds is the processor time that was used in the month.
func (u *Usage) CPUSeconds() (sum int64) {
	for _, l := range u.Lines {
		if l.Resource == ResourceCPU {
			sum += l.Amount
		}
	}
	return sum / 1000
}

// Clone returns a deep copy.
func (u *Usage) Clone() *Usage {
	c := *u
	c.Lines = slices.Clone(u.Lines)
	return &c
}

// MeterCursor says which of a host's batches of usage are written down. The id is the
// host's.
type MeterCursor struct {
	Meta
	Epoch    string `json:"epoch"` // of the host's file; numbers of another do not compare
	Sequence uint64 `json:"sequence"`
	// To is until when the host's time is accounted for: no time counts twice.
	To time.Time `json:"to,omitzero"`
	// A batch that is written down in parts, and how many of its boxes are.
	PartEpoch    string `json:"part_epoch,omitempty"`
	PartSequence uint64 `json:"part_sequence,omitempty"`
	Part         int    `json:"part,omitempty"`
}

// EndedBox is a sandbox that is gone, and whose last use its host may still tell. It is
// written in the transaction that deletes the sandbox's row, or moves the sandbox to another
// host. The id is EndedBoxID; one of an earlier version has the sandbox's. UpdatedAt is when
// it ended there: it may have come back in between.
type EndedBox struct {
	Meta
	WorkspaceID string    `json:"workspace_id"`
	Product     string    `json:"product"`
	HostID      string    `json:"agent_id"`
	CPU         int       `json:"cpu"`
	MemoryMB    int       `json:"memory_mb"`
	DiskMB      int       `json:"disk_mb"`
	Began       time.Time `json:"began"` // when the sandbox's row was made
}

// EndedBoxID is the id of what has ended of a sandbox on one host: a sandbox that was moved
// ends on more than one, and each of them has yet to tell its part.
func EndedBoxID(sandboxID, hostID string) string { return sandboxID + "/" + hostID }

// Product is what a sandbox's use is counted for.
func (s *Sandbox) Product() string {
	if s.Owner == nil {
		return ProductSandbox
	}
	return s.Owner.Type
}
