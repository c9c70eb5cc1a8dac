package capture

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Identity is what a box keeps when it moves to another host, beside its disk and its
// memory. Its host key is in that memory, too, so the store has no secret more for it.
type Identity struct {
	BoxID     string       `json:"box_id"`
	Hostname  string       `json:"hostname"`
	MachineID string       `json:"machine_id"`
	HostKey   []byte       `json:"host_key,omitempty"`
	Boot      hostapi.Boot `json:"boot"`
	CreatedAt time.Time    `json:"created_at"`
	StartedAt time.Time    `json:"started_at,omitzero"`
}

func identityOf(rec *ledger.Record) *Identity {
	return &Identity{
		BoxID: rec.ID, Hostname: rec.Hostname, MachineID: rec.MachineID, HostKey: rec.HostKey, Boot: hostapi.Boot(rec.Boot),
		CreatedAt: rec.CreatedAt, StartedAt: rec.StartedAt,
	}
}

// IdentityIn returns the identity in a capture's directory. hosterr.ErrInvalid: the
// capture is not that of a box that leaves its host.
func IdentityIn(dir string) (*Identity, error) {
	m, err := readManifest(filepath.Join(dir, fileManifest))
	if err != nil {
		return nil, fmt.Errorf("read the identity in a capture: %w", err)
	}
	if m.Identity == nil {
		return nil, hosterr.Invalid("capture %s is not of a sandbox that leaves its host", m.ID)
	}
	return m.Identity, nil
}
