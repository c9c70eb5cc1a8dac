package raftbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/berth-cloud/berth/raftstore/internal/plaintcp"
)

// plainCluster is three nodes of the Raft library with its bolt log store and
// a state machine that does nothing, set up as raftstore sets it up.
type plainCluster struct {
	nodes  []*raft.Raft
	bolts  []*raftboltdb.BoltStore
	leader *raft.Raft
	value  []byte
}

func startPlain(dir string) (*plainCluster, error) {
	c := &plainCluster{value: []byte(value())}
	var conf raft.Configuration
	for i := range replicas {
		id := fmt.Sprintf("n%d", i+1)
		addr, err := c.node(id, filepath.Join(dir, id))
		if err != nil {
			c.close()
			return nil, err
		}
		conf.Servers = append(conf.Servers, raft.Server{ID: raft.ServerID(id), Address: addr})
	}
	if err := c.nodes[0].BootstrapCluster(conf).Error(); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *plainCluster) node(id, dir string) (raft.ServerAddress, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path:                    filepath.Join(dir, "raft.db"),
		BoltOptions:             &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return "", err
	}
	c.bolts = append(c.bolts, bolt)
	logs, err := raft.NewLogCache(512, bolt)
	if err != nil {
		return "", err
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
	if err != nil {
		return "", err
	}
	stream, err := plaintcp.Listen("127.0.0.1:0")
	if err != nil {
		return "", err
	}
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(id)
	rc.HeartbeatTimeout, rc.ElectionTimeout, rc.LeaderLeaseTimeout = heartbeat, heartbeat, heartbeat
	rc.NoLegacyTelemetry = true
	rc.Logger = hclog.NewNullLogger()
	node, err := raft.NewRaft(rc, nothing{}, logs, bolt, snaps, raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: stream, MaxPool: 4, Timeout: rpcTimeout, Logger: hclog.NewNullLogger(), MsgpackUseNewTimeFormat: true,
	}))
	if err != nil {
		return "", err
	}
	c.nodes = append(c.nodes, node)
	return raft.ServerAddress(stream.Addr().String()), nil
}

func (c *plainCluster) close() {
	for _, n := range c.nodes {
		_ = n.Shutdown().Error()
	}
	for _, b := range c.bolts {
		_ = b.Close()
	}
}

func (c *plainCluster) commit(_ context.Context, _, _ int) error {
	if c.leader == nil { // found while warming up, by one client
		for _, n := range c.nodes {
			if n.State() == raft.Leader {
				c.leader = n
			}
		}
		if c.leader == nil {
			return errors.New("no leader")
		}
	}
	return c.leader.Apply(c.value, rpcTimeout).Error()
}

// nothing is the least that Raft can be asked to replicate to.
type nothing struct{}

func (nothing) Apply(*raft.Log) any                  { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error)  { return nothing{}, nil }
func (nothing) Restore(r io.ReadCloser) error        { return nil }
func (nothing) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (nothing) Release()                             {}
