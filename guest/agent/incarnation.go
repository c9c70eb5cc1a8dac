package agent

import (
	"bytes"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// incarnation is the guest since its last identity. Entropy tells a restored guest
// from one that is given the same identity twice: it is drawn for each restore,
// and repeated only with its identity. A generation does not tell: it is the
// sandbox's, and a fork may have its parent's or a lower one.
type incarnation struct {
	generation uint64
	machineID  string // "" before the first
	entropy    []byte
}

// is reports whether the incarnation began with this identity.
func (l *incarnation) is(id *guestapi.Identity) bool {
	return l.generation == id.Generation && l.machineID == id.MachineID && bytes.Equal(l.entropy, id.Entropy)
}

// supersedes reports whether the identity is of an earlier incarnation of the same
// sandbox.
func (l *incarnation) supersedes(id *guestapi.Identity) bool {
	return id.Generation < l.generation && l.machineID == id.MachineID
}

func (l *incarnation) begin(id *guestapi.Identity) {
	*l = incarnation{generation: id.Generation, machineID: id.MachineID, entropy: id.Entropy}
}
