package raftstore

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// errDiskHangs is why a replica does not act as a leader for now.
var errDiskHangs = errors.New("the disk under the log hangs")

// disk is the log and Raft's own state, and knows how long the write under way
// has taken. Raft's heartbeats do not pass its main loop: a leader whose disk
// hangs would send them for ever, and no other replica would replace it.
type disk struct {
	*raftboltdb.BoltStore
	limit time.Duration
	fault func() // for tests: called before each write

	began atomic.Int64 // of the write under way, ns since start; 0: none
	start time.Time
}

func newDisk(bolt *raftboltdb.BoltStore, cfg Config) *disk {
	return &disk{BoltStore: bolt, limit: cfg.DiskTimeout, fault: cfg.diskFault, start: time.Now()}
}

// hangs reports whether a write has been under way for too long.
func (d *disk) hangs() bool {
	began := d.began.Load()
	return began != 0 && time.Since(d.start)-time.Duration(began) > d.limit
}

func (d *disk) write(do func() error) error {
	d.began.Store(int64(time.Since(d.start)) + 1)
	defer d.began.Store(0)
	if d.fault != nil {
		d.fault()
	}
	return do()
}

// StoreLog implements raft.LogStore.
func (d *disk) StoreLog(l *raft.Log) error {
	return d.write(func() error { return d.BoltStore.StoreLog(l) })
}

// StoreLogs implements raft.LogStore.
func (d *disk) StoreLogs(logs []*raft.Log) error {
	return d.write(func() error { return d.BoltStore.StoreLogs(logs) })
}

// DiskFree returns how many bytes are free on the disk of this replica's files.
func (s *Store) DiskFree() (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.cfg.Dir, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", s.cfg.Dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// silenced is a pipeline that nothing is sent through while the disk hangs.
type silenced struct {
	raft.AppendPipeline
	disk *disk
}

// AppendEntries implements raft.AppendPipeline.
func (p *silenced) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if p.disk.hangs() {
		return nil, errDiskHangs
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}

// AppendEntriesPipeline implements raft.Transport.
func (t *ackTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, fmt.Errorf("open pipeline: %w", err)
	}
	return &silenced{AppendPipeline: p, disk: t.disk}, nil
}
