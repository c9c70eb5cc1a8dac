package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// agreement compares what the API lists of a tenant with what the hosts have
// and what the kernel runs. It returns nil when they are one.
//
// The tenant must be the only one with sandboxes.
func agreement(ctx context.Context, c *tenant) error {
	boxes, err := theStack.Boxes(ctx)
	if err != nil {
		return err
	}
	type place struct{ host, status string }
	listed, onHosts := map[string]place{}, map[string]place{}
	for s, err := range c.Sandboxes(ctx) {
		if err != nil {
			return err
		}
		if s.Status == api.SandboxStarting || s.Status == api.SandboxDeleting {
			return fmt.Errorf("sandbox %s is %s in the list", hostapi.ShortID(s.ID), s.Status)
		}
		if s.Status == api.SandboxFailed {
			// A failed sandbox waits for its user. Whether its host still keeps
			// the remains is the host's affair.
			continue
		}
		listed[s.ID] = place{s.AgentID, string(s.Status)}
	}
	vmms := map[int]string{}
	for host, list := range boxes {
		for _, b := range list {
			if b.Status == hostapi.StatusFailed {
				continue
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
	return vmmsAre(vmms)
}

// vmmsAre compares the VMM processes of the stack's directory with the boxes'.
func vmmsAre(want map[int]string) error {
	things, err := theStack.Census()
	if err != nil {
		return err
	}
	running := map[int]bool{}
	for _, thing := range things {
		if thing.Kind == "process" && isVMM(thing.PID) {
			running[thing.PID] = true
			if _, ok := want[thing.PID]; !ok {
				return fmt.Errorf("VMM without a box: %s", thing.Name)
			}
		}
	}
	for pid, id := range want {
		if !running[pid] {
			return fmt.Errorf("box %s has the VMM %d, which does not run", hostapi.ShortID(id), pid)
		}
	}
	return nil
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

// hasTap looks into a slot's namespace for its tap.
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

// slotsAreHomed wants every namespace of the stack to be one that its host
// knows: given to a box, or kept ready in the pool.
func slotsAreHomed(ctx context.Context) error {
	things, err := theStack.Census()
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

// agrees waits for agreement, and fails the test without it.
func (c *tenant) agrees(t *testing.T, most time.Duration) {
	t.Helper()
	eventually(t, most, "API, hosts and kernel agree", func(ctx context.Context) error {
		if err := agreement(ctx, c); err != nil {
			return err
		}
		return slotsAreHomed(ctx)
	})
}
