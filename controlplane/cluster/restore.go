package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Backup writes a backup of the control store to w.
func (s *Cluster) Backup(ctx context.Context, w io.Writer) error {
	if _, err := s.core.Current(ctx); err != nil {
		return err
	}
	return s.core.Store.Backup(w)
}

// Restore replaces the control store's content with a backup. Who was removed is trusted no
// more afterwards: the backup does not know who was since, and a new cluster that it is
// restored into does not know who was before.
//
// A backup with secrets that this replica cannot open is refused unless withoutKeys: they
// would be lost, with the records that are replaced.
func (s *Cluster) Restore(ctx context.Context, r io.Reader, withoutKeys bool) error {
	check := s.openable
	if withoutKeys {
		check = nil
	}
	now, _ := raftstore.Get(s.core.Store.View(), record.Clusters, record.ClusterID)
	err := s.core.Store.RestoreBackup(ctx, r, check, raftstore.AmendBy(record.Clusters, record.ClusterID, func(was *record.Cluster, _ bool) *record.Cluster {
		row := NewRow(s.cfg.Kept)
		for _, c := range []*record.Cluster{was, now} {
			if c != nil {
				row.Removed = union(row.Removed, c.Removed)
				row.RemovedRouters = union(row.RemovedRouters, c.RemovedRouters)
			}
		}
		return row
	}))
	if errors.Is(err, raftstore.ErrBadBackup) {
		return &apierror.Error{Code: apierror.EInvalid, Message: "invalid backup", Detail: "it is damaged, incomplete or not a backup", Err: err}
	}
	if errors.Is(err, raftstore.ErrNoRoom) {
		return &apierror.Error{
			Code: apierror.EInsufficient, Message: "insufficient storage for backup",
			Detail: fmt.Sprintf("a restore needs twice the backup's size on the disk of replica %s, which leads: make room there, or let another replica lead", s.core.Store.Status().NodeID), Err: err,
		}
	}
	var own *apierror.Error
	if errors.As(err, &own) { // from the check, or from the reader: the body ended early
		return own
	}
	return core.StoreError(err)
}

// openable refuses a backup with secrets whose keys this replica has not.
func (s *Cluster) openable(r raftstore.Reader) error {
	if s.cfg.Missing == nil {
		return nil
	}
	missing := s.cfg.Missing(r)
	if len(missing) == 0 {
		return nil
	}
	values := 0
	for _, n := range missing {
		values += n
	}
	return &apierror.Error{
		Code: apierror.EConflict, Message: "backup is sealed with other keys",
		Detail: fmt.Sprintf("%d secrets in it need the keys %s, which are not in seal.key: copy the seal.key of its time to all replicas first, or restore without these secrets",
			values, strings.Join(slices.Sorted(maps.Keys(missing)), ", ")),
	}
}

// AcceptRestore lets hosts remove at once what the restored backup does not know.
func (s *Cluster) AcceptRestore(ctx context.Context) error {
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if row, ok := raftstore.Get(tx, record.Clusters, record.ClusterID); ok && row.Keep > 0 {
			row = row.Clone()
			row.Keep = 0
			raftstore.Put(tx, record.Clusters, row)
		}
		return nil
	})
}

// Salvage writes a backup of what the directory of a replica holds to w, and returns the
// index of its last log entry, and the replicas that were members. A cluster that it is
// restored into refuses them, unless they are members of that one, too: if those that were
// lost run again, they are a majority of the old cluster and would take over whoever is left.
func Salvage(dir string, w io.Writer) (index uint64, former []string, err error) {
	index, err = raftstore.Salvage(dir, raftstore.RecordTables(), w, func(members []raftstore.Server) []raftstore.Amendment {
		former = core.Each(members, func(m raftstore.Server) string { return m.ID })
		return []raftstore.Amendment{raftstore.AmendBy(record.Clusters, record.ClusterID, func(was *record.Cluster, ok bool) *record.Cluster {
			row := NewRow(0)
			if ok {
				row = was.Clone()
			}
			row.Removed = union(row.Removed, former)
			return row
		})}
	})
	return index, former, err
}

// union returns what is in one of two lists, in their order.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
