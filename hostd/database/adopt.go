package database

import (
	"context"
	"errors"
	"net/http"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// adoptStep makes data that came with a copied disk the database's own, once PostgreSQL
// has recovered with it.
func (a *agent) adoptStep(ctx context.Context, spec *hostapi.DatabaseSpec, st *pgapi.Status) (done bool, err error) {
	if a.restored() {
		return true, nil
	}
	if st.State != pgapi.StateReady && st.Volume.Writes != pgapi.WritesStopped { // on a full disk it is a standby
		return false, nil
	}
	a.cfg.Log.Info("a database begins with a copy of another one's disk", "sandbox_id", a.id, "archive", spec.Archive.Name)
	_, err = within(ctx, restoreLimit, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, a.client.Adopt(ctx, spec.Archive.Name)
	})
	if refusal, ok := errors.AsType[*pgapi.Refusal](err); ok && refusal.Status == http.StatusNotFound {
		return false, errRestoreFailed{"the guestpg of its disk is of an earlier version, which adopts no data"}
	}
	return false, err
}
