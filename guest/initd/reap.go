package initd

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper starts process 1's own children and waits for every child that process
// 1 has, its own and the orphans it inherits. The two must not race: a child
// that ends before it is entered in own would be taken for an orphan, so both
// hold mu.
type reaper struct {
	mu  sync.Mutex
	own map[int]chan syscall.WaitStatus
}

func newReaper() *reaper {
	return &reaper{own: map[int]chan syscall.WaitStatus{}}
}

// start runs a program. Its end is sent on the channel, once.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	ended := make(chan syscall.WaitStatus, 1)
	r.own[pid] = ended
	return pid, ended, nil
}

// run reaps until done is closed.
func (r *reaper) run(done <-chan struct{}) {
	// Signals of the same number collapse while one is pending, so each means
	// "at least one child ended" and all of them are collected.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	defer signal.Stop(signals)
	for {
		r.collect()
		select {
		case <-signals:
		case <-done:
			return
		}
	}
}

func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ended, ok := r.own[pid]; ok {
			ended <- status
			delete(r.own, pid)
		}
	}
}
