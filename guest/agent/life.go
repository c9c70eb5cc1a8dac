package agent

import (
	"bytes"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// life is what the last identity began. Entropy is drawn anew for each restore
// and sent again only with the identity that it came with, so it tells a guest
// that was restored from one that is asked twice; a generation does not: it is
// the sandbox's, and a fork's may be that of the sandbox it was forked from, or
// a lower one.
type life struct {
	generation uint64
	machineID  string // "" before the first
	entropy    []byte
}

// began says whether it was this identity that began the life.
func (l *life) began(id *guestapi.Identity) bool {
	return l.generation == id.Generation && l.machineID == id.MachineID && bytes.Equal(l.entropy, id.Entropy)
}

// outlived says whether the identity is of an earlier life of the same sandbox.
func (l *life) outlived(id *guestapi.Identity) bool {
	return id.Generation < l.generation && l.machineID == id.MachineID
}

func (l *life) begin(id *guestapi.Identity) {
	*l = life{generation: id.Generation, machineID: id.MachineID, entropy: id.Entropy}
}
