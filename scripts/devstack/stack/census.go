package stack

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Thing is a kernel resource of a stack.
type Thing struct {
	Kind string // "process", "namespace", "link", "table", "mount" or "cgroup"
	Name string
	PID  int // of a process
}

func (t Thing) String() string { return t.Kind + " " + t.Name }

// Census lists the kernel resources of a stack, by its directory and host ids. It
// reads the kernel's tables and not Berth's programs, so that it finds what they
// leaked. The order is stable.
func (o Options) Census() ([]Thing, error) {
	var all []Thing
	var failed error
	for _, list := range []func() ([]Thing, error){
		o.processes, o.namespaces, o.links, o.tables, o.mounts, o.cgroups, o.machines,
	} {
		things, err := list()
		failed = errors.Join(failed, err)
		all = append(all, things...)
	}
	slices.SortFunc(all, func(a, b Thing) int {
		return strings.Compare(a.Kind+" "+a.Name, b.Kind+" "+b.Name)
	})
	return all, failed
}

// processes finds every process that names a directory of the stack on its
// command line (VMMs and their QEMU), is one of the recorded programs, or runs as a
// user of the hosts' ranges.
func (o Options) processes() ([]Thing, error) {
	recorded := make(map[int]bool)
	records, _ := filepath.Glob(filepath.Join(o.recordDir(), "*.json"))
	for _, r := range records {
		if pid, alive, err := readRecord(r); err == nil && alive {
			recorded[pid] = true
		}
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []Thing
	inside := [][]byte{[]byte(o.Dir + "/")}
	for _, id := range o.HostIDs() {
		inside = append(inside, inRunDir(id)...)
	}
	uids := uidRange{o.baseUID(0), o.baseUID(o.Hosts)}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if pid == os.Getpid() || pid == os.Getppid() {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(cmdline) == 0 {
			continue // gone, or a kernel thread, or a zombie
		}
		names := slices.ContainsFunc(inside, func(dir []byte) bool { return bytes.Contains(cmdline, dir) })
		if !recorded[pid] && !names && !uids.owns(dir) {
			continue
		}
		words := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
		out = append(out, Thing{Kind: "process", PID: pid,
			Name: fmt.Sprintf("%d %s", pid, abbreviate(strings.Join(words, " "), 120))})
	}
	return out, nil
}

// inRunDir is what the command line of a process contains that names a host's runtime
// directory, or something in it.
func inRunDir(id string) [][]byte {
	return [][]byte{[]byte(runDir(id) + "/"), []byte(runDir(id) + "\x00")}
}

// uidRange are the user ids that hosts give to VMMs: from the first one up to the
// second.
type uidRange [2]int

// owns reports whether the process of a /proc directory runs as one of the users.
func (u uidRange) owns(procDir string) bool {
	status, err := os.ReadFile(filepath.Join(procDir, "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		uids, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		uid, err := strconv.Atoi(strings.Fields(uids)[0])
		return err == nil && uid >= u[0] && uid < u[1]
	}
	return false
}

func (o Options) namespaces() ([]Thing, error) {
	entries, err := os.ReadDir("/run/netns")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []Thing
	for _, e := range entries {
		for _, id := range o.HostIDs() {
			if strings.HasPrefix(e.Name(), "berth-"+id+"-") {
				out = append(out, Thing{Kind: "namespace", Name: e.Name()})
			}
		}
	}
	return out, err
}

// links finds the host's ends of the slots' pairs, and taps left outside a namespace.
func (o Options) links() ([]Thing, error) {
	var links []netlink.Link
	err := o.eachNetwork(func(ns netns.NsHandle) error {
		here, err := linksIn(ns)
		links = append(links, here...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	ours := regexp.MustCompile(`^b(` + strings.Join(o.HostIDs(), "|") + `)-[0-9]+$`)
	var out []Thing
	for _, l := range links {
		if ours.MatchString(l.Attrs().Name) {
			out = append(out, Thing{Kind: "link", Name: l.Attrs().Name})
		}
	}
	return out, nil
}

// linksIn lists a network's links; those of ours for netns.None().
func linksIn(ns netns.NsHandle) ([]netlink.Link, error) {
	h := &netlink.Handle{}
	if ns.IsOpen() {
		var err error
		if h, err = netlink.NewHandleAt(ns); err != nil {
			return nil, err
		}
		defer h.Close()
	}
	links, err := h.LinkList()
	for tries := 0; errors.Is(err, netlink.ErrDumpInterrupted) && tries < 20; tries++ {
		links, err = h.LinkList() // links came and went meanwhile
	}
	return links, err
}

func (o Options) tables() ([]Thing, error) {
	var tables []*nftables.Table
	err := o.eachNetwork(func(ns netns.NsHandle) error {
		var in []nftables.ConnOption
		if ns.IsOpen() {
			in = append(in, nftables.WithNetNSFd(int(ns)))
		}
		conn, err := nftables.New(in...)
		if err != nil {
			return err
		}
		here, err := conn.ListTables()
		tables = append(tables, here...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	var out []Thing
	for _, t := range tables {
		for _, id := range o.HostIDs() {
			if t.Name == "berth_"+id {
				out = append(out, Thing{Kind: "table", Name: t.Name})
			}
		}
	}
	return out, nil
}

func (o Options) mounts() ([]Thing, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Thing
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		// Field 5 is the mount point. A namespace's file below /run/netns is a
		// mount as well, and is counted as a namespace.
		if point := fields[4]; strings.HasPrefix(point, o.Dir+"/") {
			out = append(out, Thing{Kind: "mount", Name: point})
		}
	}
	return out, nil
}

// cgroups finds the groups of the hosts' sandboxes, in every hierarchy: a
// directory of a host's id below one whose name begins with "berth".
func (o Options) cgroups() ([]Thing, error) {
	var out []Thing
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // came and went while we walked
			}
			return err
		}
		if !d.IsDir() || !o.isCgroup(path) {
			return nil
		}
		out = append(out, Thing{Kind: "cgroup", Name: path})
		return nil
	})
	return out, err
}

func (o Options) isCgroup(path string) bool {
	parts := strings.Split(path, "/")
	at := slices.IndexFunc(parts, func(s string) bool { return strings.HasPrefix(s, "berth") })
	if at < 0 {
		return false
	}
	for _, part := range parts[at:] {
		for _, id := range o.HostIDs() {
			if part == id || part == "berth-"+id || strings.HasPrefix(part, "berth-"+id+".") {
				return true
			}
		}
	}
	return false
}

func abbreviate(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
