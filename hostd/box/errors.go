package box

import "errors"

// errDeleted is why a create is cut off by a delete, and errClosing by the
// daemon's end.
var (
	errDeleted = errors.New("sandbox was deleted while it was created")
	errClosing = errors.New("host daemon is shutting down")
)
