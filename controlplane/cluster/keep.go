package cluster

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// countEvery is the interval at which the remaining time is updated.
const countEvery = time.Minute

// countDown counts down the time after a restore during which hosts keep what has no
// row. Each leader counts the time that it leads, so that clocks need not agree.
func countDown(ctx context.Context, t *loops.Term) {
	last := t.Clock()
	for {
		view := t.Store.View()
		keep := loops.Kept(view)
		step := min(keep, countEvery)
		if keep == 0 {
			last = t.Clock()
		} else if passed := t.Clock().Sub(last); passed >= step {
			if t.Update(ctx, loopRestore, func(tx *raftstore.Tx) error {
				row, ok := raftstore.Get(tx, record.Clusters, record.ClusterID)
				if !ok || row.ModifyIndex > view.Index() {
					return nil // another restore, or accepted
				}
				row = row.Clone()
				row.Keep = max(0, row.Keep-passed)
				raftstore.Put(tx, record.Clusters, row)
				return nil
			}) {
				last = t.Clock()
			}
		}
		pause := t.Every
		if keep > 0 { // its end is not passed over by much
			pause = min(pause, max(step, pause/10))
		}
		if !loops.Pause(ctx, pause, nil) {
			return
		}
	}
}
