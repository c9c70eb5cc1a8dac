package limits

import (
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The rate of requests of workspaces whose tier does not say: the specification's.
const (
	RequestsBurst     = 50
	RequestsPerSecond = 25
)

// Rate is how many requests a workspace may make.
type Rate struct {
	Burst, PerSecond int
	None             bool // there is no limit
}

// DefaultRate is the rate of who has no tier.
var DefaultRate = Rate{Burst: RequestsBurst, PerSecond: RequestsPerSecond}

// Rate returns how many requests a workspace may make.
func (t *Tiers) Rate(w *record.Workspace) Rate {
	q, r := t.Of(w), DefaultRate
	for _, f := range []struct {
		quota *int
		to    *int
	}{{q.RequestsBurst, &r.Burst}, {q.RequestsPerSecond, &r.PerSecond}} {
		switch {
		case f.quota == nil:
		case *f.quota < 0:
			return Rate{None: true}
		default:
			*f.to = *f.quota
		}
	}
	return r
}

// Exceeded is the refusal of a request too many.
func (r Rate) Exceeded() *apierror.Error {
	return &apierror.Error{
		Code: apierror.ERateLimited, Message: fmt.Sprintf("rate limit: %d req/burst, %d/sec sustained per workspace", r.Burst, r.PerSecond), RetryAfter: time.Second,
	}
}
