package agent

import (
	"fmt"
	"net/http"

	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pgapi"
)

// postAdopt makes data that came with a copied disk a database's own. PostgreSQL serves
// by then: it has recovered from its own WAL, as after a power cut, and goes on where
// the other one was. It stays on the other's timeline; see DESIGN.md.
func (a *Agent) postAdopt(w http.ResponseWriter, r *http.Request) error {
	var want pgapi.Adopt
	if err := decode(w, r, &want); err != nil {
		return err
	}
	if want.As == "" || len(want.As) > pgapi.MaxAs {
		return fmt.Errorf("%w: as has %d bytes: want 1 to %d", errInvalid, len(want.As), pgapi.MaxAs)
	}
	if err := a.lock(r.Context()); err != nil {
		return err
	}
	defer a.op.Unlock()
	if a.restoring() {
		return errRestoring
	}
	if !a.adopted(want.As) {
		// Where the disk has no room it serves as a standby: see restrained.
		if v, _ := a.server.View(); v.State != pgapi.StateReady && v.State != pgapi.StateRecovering {
			return fmt.Errorf("%w: it is %s", postgres.ErrNotServing, v.State)
		}
		if err := a.archive.Adopt(); err != nil {
			return err
		}
		own := &restore{}
		if err := a.note(own, func(s *pgapi.RestoreStatus) { s.Phase, s.As, s.Unclaimed = pgapi.RestoreDone, want.As, true }); err != nil {
			return err
		}
		a.mu.Lock()
		a.restore = own
		a.mu.Unlock()
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// adopted says whether the data has been made a database's own before.
func (a *Agent) adopted(as string) bool {
	a.mu.Lock()
	r := a.restore
	a.mu.Unlock()
	return r != nil && r.view().As == as
}
