package agent

import "github.com/berth-cloud/berth/guest/guestapi"

// life is what the last identity began. Entropy is drawn anew for each restore
// and sent again only with the identity that it came with, so it tells a guest
// that was restored from one that is asked twice; a generation does not: it is
// the sandbox's, and a fork's may be that of the sandbox it was forked from, or
// a lower one.
type life struct {
	known      bool
	generation uint64
	machine    [32]byte
	entropy    [64]byte
}

// began says whether it was this identity that began the life.
func (l *life) began(id *guestapi.Identity) bool {
	return l.known && l.generation == id.Generation && string(l.machine[:]) == id.MachineID && string(l.entropy[:]) == string(id.Entropy[:len(l.entropy)])
}

// outlived says whether the identity is of an earlier life of the same sandbox.
func (l *life) outlived(id *guestapi.Identity) bool {
	return l.known && id.Generation < l.generation && string(l.machine[:]) == id.MachineID
}

// begin takes an identity that was checked.
func (l *life) begin(id *guestapi.Identity) {
	l.known, l.generation = true, id.Generation
	copy(l.machine[:], id.MachineID)
	copy(l.entropy[:], id.Entropy)
}
