package loops

import "sync"

// Job is a call to a host that a pass has begun.
type Job struct{ What, Host, ID string }

// jobs run beside the passes, which do not wait for them: a box or a host that
// hangs holds up none but its own host's. What did not find a place, or failed,
// is seen again by a later pass.
type jobs struct {
	wg sync.WaitGroup

	mu      sync.Mutex
	running map[Job]bool
	count   map[Job]int // by what and host
}

func newJobs() *jobs { return &jobs{running: map[Job]bool{}, count: map[Job]int{}} }

// Begin runs do, unless that is under way or its host has atMost of the same.
func (j *jobs) Begin(is Job, atMost int, do func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	alike := Job{What: is.What, Host: is.Host}
	if j.running[is] || j.count[alike] >= atMost {
		return
	}
	j.running[is] = true
	j.count[alike]++
	j.wg.Go(func() {
		defer func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			delete(j.running, is)
			if j.count[alike]--; j.count[alike] == 0 {
				delete(j.count, alike)
			}
		}()
		do()
	})
}
