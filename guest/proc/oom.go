package proc

import (
	"fmt"
	"os"
	"strconv"
	"sync"
)

// AgentOOMScore keeps the kernel from choosing the agent when memory runs out.
const AgentOOMScore = -1000

// SetOOMScore writes a process's oom_score_adj.
func SetOOMScore(pid, score int) error {
	path := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	return os.WriteFile(path, []byte(strconv.Itoa(score)), 0)
}

// A child inherits its parent's score, and between fork and exec nothing of
// ours runs in it. So the agent gives its own protection up for the moment of a
// fork: setting the child's score after the fact would leave what the child
// forks meanwhile unkillable for ever.
var exposure struct {
	mu        sync.Mutex
	forks     int
	protected bool // this process had AgentOOMScore when first asked
}

const ownScore = "/proc/self/oom_score_adj"

// expose is called around a fork; the returned function ends it.
func expose() func() {
	exposure.mu.Lock()
	defer exposure.mu.Unlock()
	if exposure.forks == 0 {
		// Process 1 sets the score a moment after the agent started, so "not yet"
		// is asked again and "yes" is not.
		if !exposure.protected {
			raw, err := os.ReadFile(ownScore)
			exposure.protected = err == nil && string(raw) == strconv.Itoa(AgentOOMScore)+"\n"
		}
		if exposure.protected {
			_ = os.WriteFile(ownScore, []byte("0"), 0)
		}
	}
	exposure.forks++
	return func() {
		exposure.mu.Lock()
		defer exposure.mu.Unlock()
		exposure.forks--
		if exposure.forks == 0 && exposure.protected {
			_ = os.WriteFile(ownScore, []byte(strconv.Itoa(AgentOOMScore)), 0)
		}
	}
}
