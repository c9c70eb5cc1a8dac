package loops

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
)

// Job identifies a call to a host that a pass has begun. Workspace is for BeginInTurn.
type Job struct{ What, Host, Workspace, ID string }

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

// BeginInTurn begins jobs whose workspaces take turns, each as Begin does: first those of
// the workspace that has the fewest of the kind at the host, among equals of any. A
// workspace that waits is next when any of the kind ends.
func (j *jobs) BeginInTurn(due []Job, atMost int, do func(Job)) {
	has, before := map[Job]int{}, map[Job]int{} // by what, host and workspace; by job
	j.mu.Lock()
	for is := range j.running {
		is.ID = ""
		has[is]++
	}
	due = slices.DeleteFunc(due, func(is Job) bool { return j.running[is] })
	j.mu.Unlock()
	rand.Shuffle(len(due), func(a, b int) { due[a], due[b] = due[b], due[a] })
	for _, is := range due {
		of := is
		of.ID = ""
		before[is] = has[of]
		has[of]++
	}
	slices.SortStableFunc(due, func(a, b Job) int { return cmp.Compare(before[a], before[b]) })
	for _, is := range due {
		j.Begin(is, atMost, func() { do(is) })
	}
}
