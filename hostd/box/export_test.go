package box

import "time"

// SetCopyTime changes for how long a box stands still for a copy. It returns what puts
// it back.
func SetCopyTime(d time.Duration) (restore func()) {
	was := copyTime
	copyTime = d
	return func() { copyTime = was }
}

// SetMaxCopy changes how much of a disk is copied where no blocks are shared. It
// returns what puts it back.
func SetMaxCopy(bytes int64) (restore func()) {
	was := maxCopy
	maxCopy = bytes
	return func() { maxCopy = was }
}

// RemoveKeptDisks is what the sweep does once an hour.
func (h *Host) RemoveKeptDisks() { h.removeKeptDisks() }
