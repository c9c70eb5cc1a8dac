package fork

import "time"

// SetLimits sets the time limits of one batch of children and of a whole fork, for
// flows that are created from now on. It returns a function that restores them.
func SetLimits(batch, whole time.Duration) (restore func()) {
	was, wasWhole := actTimeout, Deadline
	actTimeout, Deadline = batch, whole
	return func() { actTimeout, Deadline = was, wasWhole }
}
