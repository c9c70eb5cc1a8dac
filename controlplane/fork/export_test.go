package fork

import "time"

// SetLimits changes how long one batch of children may take, and a whole fork, for
// flows made from now on. It returns what puts them back.
func SetLimits(batch, whole time.Duration) (restore func()) {
	was, wasWhole := actTimeout, Deadline
	actTimeout, Deadline = batch, whole
	return func() { actTimeout, Deadline = was, wasWhole }
}
