package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	freezePause = time.Millisecond // between two looks at cgroup.events
	// holdTick is the unit in which a hold is counted.
	holdTick = time.Second
	// maxUnfrozen is how many processes that did not stop are named.
	maxUnfrozen = 8
)

// Freezer stops and resumes the whole workload. A guest is captured while its
// workload is stopped, so that nothing in a copy draws random numbers before the
// copy has entropy of its own.
type Freezer struct {
	dir    string       // "": there are no groups, and nothing to stop
	reseed func() error // before a thaw without an identity

	// starting is read-locked while a command is started: one that is stopped
	// between fork and exec would block a thread of the agent.
	starting sync.RWMutex
	thawed   chan struct{} // nil while nothing is frozen; changed under starting

	ticks func(every time.Duration) (c <-chan time.Time, stop func())

	mu   sync.Mutex    // one freeze or thaw at a time; taken before starting
	held chan struct{} // closed when what is frozen is held no longer; nil while nothing is
}

func ticks(every time.Duration) (<-chan time.Time, func()) {
	t := time.NewTicker(every)
	return t.C, t.Stop
}

// NewFreezer returns the freezer of the groups. What an earlier agent left frozen
// is thawed after hold.
func NewFreezer(groups Groups, hold time.Duration, reseed func() error) *Freezer {
	f := &Freezer{dir: groups.dir, reseed: reseed, ticks: ticks}
	for _, dir := range f.groups() {
		if raw, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze")); err == nil && strings.TrimSpace(string(raw)) == "1" {
			f.begin(hold)
			break
		}
	}
	return f
}

// groups are the directories of the groups that processes are in.
func (f *Freezer) groups() []string {
	if f.dir == "" {
		return nil
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(f.dir, e.Name()))
		}
	}
	return out
}

// Enter waits until nothing is frozen, or ended is closed. No freeze begins until
// leave is called.
func (f *Freezer) Enter(ended <-chan struct{}) (leave func(), ok bool) {
	for {
		f.starting.RLock()
		thawed := f.thawed
		if thawed == nil {
			return f.starting.RUnlock, true
		}
		f.starting.RUnlock()
		select {
		case <-thawed:
		case <-ended:
			return nil, false
		}
	}
}

// Freeze stops the workload's processes and waits until they are stopped. It
// returns those that are not in time: they are in a system call, and do not get
// back to their own code before the thaw. Thaw ends it, or hold, where no identity
// has come by then.
func (f *Freezer) Freeze(hold, wait time.Duration) (moving []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin(hold)
	groups := f.groups()
	for _, dir := range groups {
		if err := write(dir, "cgroup.freeze", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			f.thaw()
			return nil, err
		}
	}
	for deadline := time.Now().Add(wait); ; {
		groups = unfrozenGroups(groups)
		if len(groups) == 0 {
			return nil, nil
		}
		if time.Now().After(deadline) {
			return unfrozen(groups), nil
		}
		time.Sleep(freezePause)
	}
}

func (f *Freezer) begin(hold time.Duration) {
	f.release()
	f.held = make(chan struct{})
	go f.hold(f.held, hold)
	f.starting.Lock()
	defer f.starting.Unlock()
	if f.thawed == nil {
		f.thawed = make(chan struct{})
	}
}

// hold thaws where no identity comes in time. It counts ticks: where the guest's clock
// is KVM's, that jumps, when a copy goes on, by all the time since the guest was saved.
// A timer would end then, before the copy has its identity; a jump costs one tick.
func (f *Freezer) hold(held chan struct{}, hold time.Duration) {
	each := min(hold, holdTick)
	c, stop := f.ticks(each)
	defer stop()
	for ; hold > 0; hold -= each {
		select {
		case <-c:
		case <-held:
			return
		}
	}
	f.expire(held)
}

// expire thaws where no identity has come. This may be a copy of the guest, so the
// kernel is reseeded first.
func (f *Freezer) expire(held chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held != held {
		return // it was thawed, or frozen anew, meanwhile
	}
	_ = f.reseed() // there is no better source; and it cannot stay frozen
	f.thaw()
}

// release ends the hold of what is frozen.
func (f *Freezer) release() {
	if f.held != nil {
		close(f.held)
		f.held = nil
	}
}

// Thaw resumes the workload.
func (f *Freezer) Thaw() {
	f.starting.RLock()
	frozen := f.thawed != nil
	f.starting.RUnlock()
	if !frozen {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.thaw()
}

func (f *Freezer) thaw() {
	f.release()
	for _, dir := range f.groups() {
		_ = write(dir, "cgroup.freeze", "0") // it fails for a group that is gone
	}
	f.starting.Lock()
	defer f.starting.Unlock()
	if f.thawed != nil {
		close(f.thawed)
		f.thawed = nil
	}
}

// unfrozenGroups returns those of the groups that are not frozen yet.
func unfrozenGroups(groups []string) []string {
	var out []string
	for _, dir := range groups {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		if err == nil && !strings.Contains(string(raw), "frozen 1") && strings.Contains(string(raw), "populated 1") {
			out = append(out, dir)
		}
	}
	return out
}

// unfrozen names the processes of groups that are in uninterruptible sleep.
func unfrozen(groups []string) []string {
	out := []string{}
	for _, dir := range groups {
		raw, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, pid := range strings.Fields(string(raw)) {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			if err != nil {
				continue
			}
			// pid (name) state …; the name may have any character.
			_, rest, _ := strings.Cut(string(stat), "(")
			i := strings.LastIndex(rest, ") ")
			if i < 0 || len(rest) < i+3 || rest[i+2] == 'S' {
				continue
			}
			if out = append(out, fmt.Sprintf("%s %s (%c)", pid, rest[:i], rest[i+2])); len(out) == maxUnfrozen {
				return out
			}
		}
	}
	return out
}
