package events

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
)

// perBoot is how many numbers each run of the machine has for itself: it gives
// far fewer.
const perBoot = 1 << 32

// perSecond is how many numbers lie between the beginnings of two disks, for each
// second between those. The sum stays below 2^53.
const perSecond = 1 << 20

// sequence is a file that says below which number this run of the machine has
// given none.
type sequence struct {
	BootID string `json:"boot_id"`
	Above  uint64 `json:"above"`
}

// firstNumber returns the number after which the host's events are numbered. A
// number is never given to two events. In one run of the machine every event is in
// the spool, which outlives the daemon, and spooled is its last. A power cut may
// take the spool's end, so another run of the machine has numbers of its own, as
// has one whose spool is gone.
//
// A host whose disk was replaced has events to tell before it hears which numbers
// replicas have had of it. Its numbers begin with the time, which is above those
// unless the machine was started anew every hour or so.
func firstNumber(path, bootID string, spooled uint64, now time.Time, log *slog.Logger) uint64 {
	var s sequence
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	switch {
	case err == nil && s.BootID == bootID && spooled > s.Above:
		return spooled
	case errors.Is(err, os.ErrNotExist) && spooled == 0:
		s.Above = uint64(max(now.Unix(), 0)) * perSecond
	default:
		s.Above = max(spooled, s.Above) + perBoot
	}
	s.BootID = bootID
	if raw, err = json.Marshal(s); err == nil {
		err = atomicfile.Write(path, raw, 0o600)
	}
	if err != nil {
		// The next start leaves out numbers again, after those in the spool.
		log.Warn("which event numbers are taken is not written", "error", err)
	}
	return s.Above
}
