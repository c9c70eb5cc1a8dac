package proc

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// The guest's control groups (v2):
//
//	berth     process 1 and the agent: first on the CPU
//	sandbox   all of the workload: pids.max and memory.max leave room
//	          for the agent, so that no command of a workload can stop the next
//	  exec-…  one command and what it left running, with a smaller pids.max,
//	          so that the next command can clear up after a fork bomb
//	  start   the template's start command
const (
	cgroupRoot    = "/sys/fs/cgroup"
	agentGroup    = "berth"
	workloadGroup = "sandbox"
)

const (
	workloadPIDsPercent = 80 // of the kernel's limit
	execPIDsPercent     = 90 // of the workload's
	// RAM that the workload cannot have: for guestd's file on a tmpfs, its two
	// processes, and what the kernel charges to no group. With 32 MB a fork bomb ran
	// the whole guest out of memory, and the kernel then kills one process every two
	// seconds; a fork bomb that its own group stops ends at once.
	reserveMinBytes = 56 << 20
	reserveDivisor  = 16
	reserveMost     = 3 // of so many parts of a small guest
)

// Groups makes control groups for commands. The zero value makes none: there are
// no limits then, and only process groups are killed.
type Groups struct {
	dir      string
	execPIDs int // 0: the kernel has no limit to offer
}

// SetUpGroups makes the guest's groups and moves process 1, the caller, into
// the agent's. The agent is started later and inherits it.
//
// The error names what the kernel lacks; the groups work without it.
func SetUpGroups() (Groups, error) {
	var failed error
	note := func(err error) { failed = errors.Join(failed, err) }
	for _, controller := range []string{"+cpu", "+memory", "+pids"} {
		note(write(cgroupRoot, "cgroup.subtree_control", controller))
	}
	own, workload := filepath.Join(cgroupRoot, agentGroup), filepath.Join(cgroupRoot, workloadGroup)
	for _, dir := range []string{own, workload} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return Groups{}, errors.Join(failed, err)
		}
	}
	note(write(own, "cpu.weight", "10000"))
	note(write(own, "cgroup.procs", "0"))
	pids, err := maxProcesses()
	note(err)
	total, err := memTotal()
	note(err)
	note(write(own, "memory.min", strconv.FormatInt(reserve(total), 10)))
	note(write(workload, "pids.max", strconv.Itoa(pids*workloadPIDsPercent/100)))
	note(write(workload, "memory.max", strconv.FormatInt(total-reserve(total), 10)))
	for _, controller := range []string{"+cpu", "+pids"} {
		note(write(workload, "cgroup.subtree_control", controller))
	}
	g, err := OpenGroups()
	note(err)
	return g, failed
}

// LeaveWorkload moves the caller, a command, to the agent's group, where memory has no
// limit.
func LeaveWorkload() error {
	return write(filepath.Join(cgroupRoot, agentGroup), "cgroup.procs", "0")
}

// OpenGroups finds the groups that process 1 made.
func OpenGroups() (Groups, error) {
	g, err := openGroups(filepath.Join(cgroupRoot, workloadGroup))
	if err != nil {
		return Groups{}, fmt.Errorf("control groups: %w", err)
	}
	return g, nil
}

func openGroups(dir string) (Groups, error) {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
		return Groups{}, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "pids.max"))
	if errors.Is(err, os.ErrNotExist) {
		return Groups{dir: dir}, nil
	}
	if err != nil {
		return Groups{}, err
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return Groups{}, fmt.Errorf("pids.max of %s: %w", dir, err)
	}
	return Groups{dir: dir, execPIDs: limit * execPIDsPercent / 100}, nil
}

func reserve(total int64) int64 {
	return max(min(reserveMinBytes, total/reserveMost), total/reserveDivisor)
}

// Group is the control group of one command. The nil group is none.
type Group struct {
	dir *os.File
}

var groupCount atomic.Uint64

// NewExec makes a group with a new name: neither this agent nor an earlier one,
// whose commands may still run, has used it.
func (g Groups) NewExec() (*Group, error) {
	return g.New("exec-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(groupCount.Add(1), 10))
}

// New makes a group, or takes over one of the same name.
func (g Groups) New(name string) (*Group, error) {
	if g.dir == "" {
		return nil, nil
	}
	path := filepath.Join(g.dir, name)
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("control group: %w", err)
	}
	if g.execPIDs > 0 {
		if err := write(path, "pids.max", strconv.Itoa(g.execPIDs)); err != nil {
			return nil, fmt.Errorf("control group: %w", err)
		}
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("control group: %w", err)
	}
	return &Group{dir: dir}, nil
}

// Join makes a process that is started with attr start in the group.
func (g *Group) Join(attr *syscall.SysProcAttr) {
	if g == nil {
		return
	}
	attr.UseCgroupFD = true
	attr.CgroupFD = int(g.dir.Fd())
}

// Kill kills everything in the group, including what left its process group
// and what forks meanwhile.
func (g *Group) Kill() error {
	if g == nil {
		return nil
	}
	return write(g.dir.Name(), "cgroup.kill", "1")
}

// Close closes the group's descriptor. Its processes run on.
func (g *Group) Close() error {
	if g == nil {
		return nil
	}
	return g.dir.Close()
}

// leftovers are the groups of ended commands in which processes still ran.
var leftovers struct {
	mu   sync.Mutex
	dirs map[string]struct{}
}

// Remove closes the group and removes it once it is empty: now, or when a later
// command's group is removed.
func (g *Group) Remove() {
	if g == nil {
		return
	}
	_ = g.dir.Close()
	leftovers.mu.Lock()
	defer leftovers.mu.Unlock()
	if leftovers.dirs == nil {
		leftovers.dirs = map[string]struct{}{}
	}
	leftovers.dirs[g.dir.Name()] = struct{}{}
	for dir := range leftovers.dirs {
		if err := unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
			delete(leftovers.dirs, dir)
		}
	}
}

func write(dir, file, value string) error {
	if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", file, value, err)
	}
	return nil
}

// maxProcesses is how many processes the kernel allows at all.
func maxProcesses() (int, error) {
	least := 0
	for _, name := range []string{"pid_max", "threads-max"} {
		raw, err := os.ReadFile("/proc/sys/kernel/" + name)
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			return 0, fmt.Errorf("kernel.%s: %w", name, err)
		}
		if least == 0 || n < least {
			least = n
		}
	}
	return least, nil
}

// memTotal is the RAM that the kernel manages, in bytes.
func memTotal() (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var kib int64
		if _, err := fmt.Sscanf(lines.Text(), "MemTotal: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, errors.Join(errors.New("/proc/meminfo has no MemTotal"), lines.Err())
}
