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
	// RemovedRouters are the names of routers of databases that are trusted no more.
	RemovedRouters []string `json:"removed_routers,omitempty"`
	// Rebalance is the last rebalancing of the hosts; nil: there was none, or it was given up.
	Rebalance *Rebalance `json:"rebalance,omitempty"`
}

// Rebalance is how far hosts have been made alike in what sleeps on them.
type Rebalance struct {
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended,omitzero"`
	AtOnce  int       `json:"at_once"`          // sandboxes that move at a time
	Percent int       `json:"percent"`          // of an even share, by which hosts may differ
	Planned int       `json:"planned"`          // sandboxes to be moved, as it was when it began
	Moved   int       `json:"moved,omitempty"`  // that are on other hosts now
	Failed  int       `json:"failed,omitempty"` // moves that failed; each is tried once
}

// Clone returns a deep copy.
func (c *Cluster) Clone() *Cluster {
	n := *c
	n.Removed, n.RemovedRouters = slices.Clone(c.Removed), slices.Clone(c.RemovedRouters)
	if c.Rebalance != nil {
		r := *c.Rebalance
		n.Rebalance = &r
	}
	return &n
}
