package core

import (
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

// Open limits how much of one kind each workspace has open at once on this replica: what
// lasts as long as its client likes, which the limit on requests does not see.
type Open struct {
	what string
	most int

	mu sync.Mutex
	of map[string]int // by workspace; those that have any
}

// NewOpen returns a limit of so many for each workspace. what names them in the plural.
func NewOpen(what string, most int) *Open {
	return &Open{what: what, most: most, of: map[string]int{}}
}

// Enter counts one more, or refuses it. leave ends it; only its first call has an
// effect.
func (o *Open) Enter(workspace string) (leave func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if active := o.of[workspace]; active >= o.most {
		return nil, &apierror.Error{
			Code: apierror.ERateLimited, Message: "too many " + o.what + " at once", Fields: map[string]any{"max": o.most, "active": active},
			RetryAfter: time.Second,
		}
	}
	o.of[workspace]++
	return sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.of[workspace]--; o.of[workspace] == 0 {
			delete(o.of, workspace)
		}
	}), nil
}
