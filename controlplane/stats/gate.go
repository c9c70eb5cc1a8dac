package stats

import (
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

const (
	// maxQuestions is how many questions of one workspace are answered at a time.
	maxQuestions = 4
	// maxFollowers is how many streams of requests one workspace follows at a time.
	maxFollowers = 16
)

// gate limits what each workspace does at a time.
type gate struct {
	most int
	what string // in the error

	mu   sync.Mutex
	busy map[string]int // by workspace
}

func newGate(most int, what string) *gate {
	return &gate{most: most, what: what, busy: map[string]int{}}
}

func (g *gate) enter(workspace string) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy[workspace] >= g.most {
		return nil, &apierror.Error{Code: apierror.ERateLimited, Message: g.what, RetryAfter: time.Second}
	}
	g.busy[workspace]++
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.busy[workspace]--; g.busy[workspace] == 0 {
			delete(g.busy, workspace)
		}
	}), nil
}
