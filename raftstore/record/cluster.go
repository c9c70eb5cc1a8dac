package record

import (
	"slices"
	"time"
)

// Ids of the rows of Clusters.
const (
	ClusterID = "cluster"
	// OriginID is of a row whose name a restored backup brings along: the cluster
	// that is restored owns what the one that was backed up owned. It has no more
	// than a name.
	OriginID = "origin"
)

// Cluster is what the cluster knows of itself.
type Cluster struct {
	Meta
	// Name says whose Raft terms hosts obey. It is random, and another one after
	// each restore of a backup: terms may begin anew there.
	Name string `json:"name"`
	// Keep is how much longer what a host has and no row accounts for is left
	// where it is, because a backup was restored that may not know it. It is a
	// duration, which each leader counts down by its own clock.
	Keep time.Duration `json:"keep_ns,omitempty"`
	// Removed are the ids of replicas that were members and are trusted no more.
	Removed []string `json:"removed,omitempty"`
}

// Clone returns a deep copy.
func (c *Cluster) Clone() *Cluster {
	n := *c
	n.Removed = slices.Clone(c.Removed)
	return &n
}
