package slot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/netfab/nft"
	"github.com/berth-cloud/berth/netfab/tap"
)

// parallelRemovals bounds Purge. Most of a removal waits for the kernel.
const parallelRemovals = 16

// Remove removes everything of slot n. It does not check whether a guest runs in
// it: that guest loses its network. A process that is still in the namespace keeps
// the namespace alive, but without a link or a name, and the slot can be made
// again.
func (f *Fabric) Remove(ctx context.Context, n int) error {
	unlock, err := f.slots.lock(ctx, n)
	if err != nil {
		return err
	}
	defer unlock()
	if err := f.remove(ctx, n); err != nil {
		return fmt.Errorf("remove slot %d: %w", n, err)
	}
	f.forget(hostPrefix(f.cfg.nsAddr(n)))
	return nil
}

func (f *Fabric) remove(ctx context.Context, n int) error {
	if err := f.step(ctx, "delete link"); err != nil {
		return err
	}
	link, err := findLink(f.cfg.linkName(n))
	if err != nil {
		return err
	}
	if err := deleteLink(link); err != nil {
		return err
	}
	if err := f.step(ctx, "delete namespace"); err != nil {
		return err
	}
	return dropNetNS(f.nsPath(n))
}

// deleteLink removes the link, if there is one, and with it the other end of
// a veth pair, also out of a namespace that is kept alive. The kernel may be first:
// it removes the links of a namespace some time after its end.
func deleteLink(link netlink.Link) error {
	if link == nil {
		return nil
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// List returns the numbers of all slots of this host that the kernel has
// anything of, in order: a namespace, its mount point or a link.
func (f *Fabric) List(ctx context.Context) ([]int, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found := make(map[int]struct{})
	entries, err := os.ReadDir(f.cfg.NetNSDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for _, e := range entries {
		if n, ok := number(e.Name(), f.cfg.nsPrefix()); ok {
			found[n] = struct{}{}
		}
	}
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if n, ok := number(l.Attrs().Name, f.cfg.linkPrefix()); ok {
			found[n] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// Purge removes everything of this host: slots, rules, and what EnsureHost
// changed on the machine, unless another host still needs it.
func (f *Fabric) Purge(ctx context.Context) error {
	f.host.Lock()
	defer f.host.Unlock()
	f.mu.Lock()
	f.ready = false
	f.mu.Unlock()

	numbers, err := f.List(ctx)
	if err != nil {
		return fmt.Errorf("purge network slots: %w", err)
	}
	var g errgroup.Group
	g.SetLimit(parallelRemovals)
	failed := make([]error, len(numbers))
	for i, n := range numbers {
		g.Go(func() error {
			unlock, err := f.slots.lock(ctx, n)
			if err == nil {
				defer unlock()
				err = f.remove(ctx, n)
			}
			if err != nil {
				failed[i] = fmt.Errorf("slot %d: %w", n, err)
			}
			return nil // one that fails does not keep the others
		})
	}
	_ = g.Wait()
	err = errors.Join(failed...)
	f.forget(f.cfg.CIDR)
	err = errors.Join(err, nft.Delete(f.cfg.hostTable()), f.releaseHost())
	if err != nil {
		return fmt.Errorf("purge network slots: %w", err)
	}
	return nil
}

// InUse returns ErrInUse if a process has the tap of slot n open, as a VMM has
// until it has ended.
func (f *Fabric) InUse(ctx context.Context, n int) error {
	unlock, err := f.slots.lock(ctx, n)
	if err != nil {
		return err
	}
	defer unlock()
	return f.refuseInUse(n)
}

// refuseInUse returns ErrInUse if a process has slot n's tap open.
func (f *Fabric) refuseInUse(n int) error {
	path := f.nsPath(n)
	there, err := isNetNS(path)
	if err != nil || !there {
		return err
	}
	err = ns.WithNetNSPath(path, func(ns.NetNS) error {
		link, err := findLink(TapName)
		if err != nil {
			return err
		}
		if _, ok := link.(*netlink.Tuntap); !ok {
			return nil
		}
		file, err := tap.Open(TapName)
		if err != nil {
			return err
		}
		return file.Close()
	})
	if errors.Is(err, tap.ErrBusy) {
		return fmt.Errorf("slot %d: %w", n, ErrInUse)
	}
	return err
}

// forget drops the host's connection tracking entries of the slots in p.
// Without that, a killed guest's connections would stay for days, and a later
// guest of the slot could meet them. It is best effort: the slot is gone.
func (f *Fabric) forget(p netip.Prefix) {
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, fromPrefix(p))
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, netlink.ErrDumpInterrupted) {
		f.log.Warn("connection tracking entries of a removed slot stay", "prefix", p.String(), "error", err)
	}
}

// fromPrefix matches connections that were opened from within the prefix.
type fromPrefix netip.Prefix

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (p fromPrefix) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	a, ok := netip.AddrFromSlice(flow.Forward.SrcIP)
	return ok && netip.Prefix(p).Contains(a.Unmap())
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
