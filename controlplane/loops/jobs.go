package loops

import "sync"

// Job identifies a call to a host that a pass has begun.
type Job struct{ What, Host, ID string }

// jobs run beside the passes, which do not wait for them, so that a box or a host
// that hangs delays only its own host. A later pass repeats a job that failed or
// found no place.
type jobs struct {
	wg sync.WaitGroup

	mu      sync.Mutex
	running map[Job]bool
	count   map[Job]int // by what and host
}

func newJobs() *jobs { return &jobs{running: map[Job]bool{}, count: map[Job]int{}} }

// Begin runs do in the background, unless the same job is running or its host has
// atMost jobs of the kind.
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
