package settings

import (
	"context"
	"time"
)

// Follow reads a file again every so often, until ctx ends. reread tells whether the
// file says something else now; after an error what was read before must hold still.
// changed and failed say so, failed once for an error that stays the same.
func Follow(ctx context.Context, every time.Duration, reread func() (bool, error), changed func(), failed func(error)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		other, err := reread()
		switch {
		case err != nil && err.Error() != said:
			failed(err)
		case err == nil && other:
			changed()
		}
		if said = ""; err != nil {
			said = err.Error()
		}
	}
}
