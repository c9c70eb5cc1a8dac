package stack

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// place is a sandbox's reported host and status.
type place struct{ host, status string }

// Agreement compares the API's lists of the clients' workspaces with the hosts'
// boxes and with the kernel's VMMs, taps and namespaces. It returns nil if they
// agree. No other workspace may have sandboxes.
func (s *Stack) Agreement(ctx context.Context, workspaces ...*api.Client) error {
	listed, err := settled(ctx, workspaces)
	if err != nil {
		return err
	}
	boxes, err := s.Boxes(ctx)
	if err != nil {
		return err
	}
	onHosts := map[string]place{}
	vmms := map[int]string{}
	for host, list := range boxes {
		for _, b := range list {
			if b.Status == hostapi.StatusFailed {
				continue
			}
			if other, twice := onHosts[b.ID]; twice {
				return fmt.Errorf("box %s: on %s and on %s", hostapi.ShortID(b.ID), other.host, host)
			}
			onHosts[b.ID] = place{host, string(b.Status)}
			if b.VMMPID == 0 { // it hibernates, or a warm fork took its place
				if b.Status == hostapi.StatusRunning {
					return fmt.Errorf("box %s runs without a VMM", hostapi.ShortID(b.ID))
				}
				continue
			}
			if other, taken := vmms[b.VMMPID]; taken {
				return fmt.Errorf("boxes %s and %s share the VMM %d", hostapi.ShortID(other), hostapi.ShortID(b.ID), b.VMMPID)
			}
			vmms[b.VMMPID] = b.ID
			if err := hasTap(host, b.Slot); err != nil {
				return err
			}
		}
	}
	for id, want := range listed {
		if got, ok := onHosts[id]; !ok || got != want {
			return fmt.Errorf("sandbox %s: the API says %v, the hosts %v", hostapi.ShortID(id), want, got)
		}
	}
	for id, got := range onHosts {
		if _, ok := listed[id]; !ok {
			return fmt.Errorf("box %s: on %v and not in the API's list", hostapi.ShortID(id), got)
		}
	}
	if err := s.vmmsAre(vmms); err != nil {
		return err
	}
	return s.slotsAreHomed()
}

// settled lists the workspaces' sandboxes without failed ones. A sandbox in a
// transition is an error.
func settled(ctx context.Context, workspaces []*api.Client) (map[string]place, error) {
	listed := map[string]place{}
	for _, c := range workspaces {
		for box, err := range c.Sandboxes(ctx) {
			switch {
			case err != nil:
				return nil, err
			case box.Status == api.SandboxStarting, box.Status == api.SandboxDeleting:
				return nil, fmt.Errorf("sandbox %s is %s in the list", hostapi.ShortID(box.ID), box.Status)
			case box.Status == api.SandboxFailed:
				// It waits for its user to delete it. Its host may or may not
				// still have its files.
			default:
				listed[box.ID] = place{box.AgentID, string(box.Status)}
			}
		}
	}
	return listed, nil
}

// vmmsAre compares the VMM processes of the stack's directory with the boxes'.
func (s *Stack) vmmsAre(want map[int]string) error {
	pids, err := s.VMMs()
	if err != nil {
		return err
	}
	running := map[int]bool{}
	for _, pid := range pids {
		running[pid] = true
		if _, ok := want[pid]; !ok {
			return fmt.Errorf("VMM %d without a box", pid)
		}
	}
	for pid, id := range want {
		if !running[pid] {
			return fmt.Errorf("box %s has the VMM %d, which does not run", hostapi.ShortID(id), pid)
		}
	}
	return nil
}

// VMMs returns the process ids of the running VMMs, as the kernel lists them.
func (s *Stack) VMMs() ([]int, error) {
	things, err := s.Census()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, thing := range things {
		if thing.Kind == "process" && isVMM(thing.PID) {
			pids = append(pids, thing.PID)
		}
	}
	return pids, nil
}

// isVMM tells a VMM from its QEMU and from the stack's daemons.
func isVMM(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return false
	}
	program := filepath.Base(string(bytes.SplitN(b, []byte{0}, 2)[0]))
	return program == "chvemu" || strings.HasPrefix(program, "cloud-hypervisor")
}

// hasTap checks that a slot's namespace has its tap.
func hasTap(host string, slot int) error {
	name := fmt.Sprintf("berth-%s-%d", host, slot)
	ns, err := netns.GetFromName(name)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	if !slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == "tap0" }) {
		return fmt.Errorf("namespace %s has no tap0", name)
	}
	return nil
}

// slotsAreHomed checks that every namespace of the stack is known to its host:
// used by a box, or ready in the pool.
func (s *Stack) slotsAreHomed() error {
	things, err := s.Census()
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, thing := range things {
		if thing.Kind == "namespace" {
			count["namespaces"]++
		}
		if thing.Kind == "link" {
			count["links"]++
		}
	}
	if count["namespaces"] != count["links"] {
		return fmt.Errorf("%d namespaces and %d links: a slot has one of each", count["namespaces"], count["links"])
	}
	return nil
}
