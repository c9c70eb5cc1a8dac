package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/berth-cloud/berth/netfab/slot"
)

// With Options.Machines each replica and each host has its own network namespace.
// A bridge in our namespace connects them, like a switch. Changes to one
// machine's network, and Cut, do not affect the others. Files and processes stay
// on this machine.

// machineName is the namespace of a replica or a host, below /run/netns.
func (o Options) machineName(id string) string { return "berthm-" + o.HostPrefix + "-" + id }

// bridgeName and portName are links of our own namespace.
func (o Options) bridgeName() string        { return "brm" + o.HostPrefix }
func (o Options) portName(id string) string { return "bm" + o.HostPrefix + "-" + id }

// machineNet does not overlap the slots' addresses.
func (o Options) machineNet() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 219, byte(o.HostRange), 0}), 24)
}

// machineIDs lists all ids that have a machine, in the order of their addresses.
func (o Options) machineIDs() []string {
	ids := make([]string, 0, o.Replicas+o.Hosts)
	for i := range o.Replicas {
		ids = append(ids, o.replicaID(i))
	}
	return append(ids, o.HostIDs()...)
}

// machineIP returns the address of a machine or, for id "", of the bridge.
func (o Options) machineIP(id string) netip.Addr {
	last := byte(1)
	if id != "" {
		last = byte(11 + slices.Index(o.machineIDs(), id))
	}
	a := o.machineNet().Addr().As4()
	a[3] = last
	return netip.AddrFrom4(a)
}

// address is where a replica or host listens on a port, and is reached.
func (o Options) address(id string, port int) string {
	if !o.Machines {
		return loopback(port)
	}
	return netip.AddrPortFrom(o.machineIP(id), uint16(port)).String()
}

// onMachine makes a command run on a machine, in the same process.
func (o Options) onMachine(id string, argv ...string) []string {
	if !o.Machines {
		return argv
	}
	return append([]string{"nsenter", "--net=/run/netns/" + o.machineName(id), "--"}, argv...)
}

func (o Options) command(ctx context.Context, id string, argv ...string) *exec.Cmd {
	argv = o.onMachine(id, argv...)
	return exec.CommandContext(ctx, argv[0], argv[1:]...)
}

// makeMachines creates the bridge and one namespace per replica and host.
func (o Options) makeMachines() error {
	if !o.Machines {
		return nil
	}
	if _, err := slot.ShareNetNSDir(slot.DefaultNetNSDir); err != nil {
		return err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: o.bridgeName()}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("make bridge %s: %w", bridge.Name, err)
	}
	if err := setUp(&netlink.Handle{}, bridge, o.machineIP("")); err != nil {
		return err
	}
	for _, id := range o.machineIDs() {
		if err := o.makeMachine(id, bridge); err != nil {
			return fmt.Errorf("machine of %s: %w", id, err)
		}
	}
	return nil
}

func (o Options) makeMachine(id string, bridge netlink.Link) error {
	ns, err := newNamespace(o.machineName(id))
	if err != nil {
		return err
	}
	defer ns.Close()
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: o.portName(id), MasterIndex: bridge.Attrs().Index})
	pair.PeerName = "eth0"
	pair.PeerNamespace = netlink.NsFd(int(ns))
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("make link %s: %w", pair.Name, err)
	}
	if err := netlink.LinkSetUp(pair); err != nil {
		return fmt.Errorf("set %s up: %w", pair.Name, err)
	}
	in, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer in.Close()
	lo, err := in.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := in.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	eth0, err := in.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := setUp(in, eth0, o.machineIP(id)); err != nil {
		return err
	}
	gateway := net.IP(o.machineIP("").AsSlice())
	if err := in.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: gateway}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return nil
}

// newNamespace creates a named network namespace; the caller stays in its own.
func newNamespace(name string) (netns.NsHandle, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return -1, err
	}
	defer home.Close()
	ns, err := netns.NewNamed(name)
	if err != nil {
		return -1, errors.Join(fmt.Errorf("make namespace %s: %w", name, err), netns.Set(home))
	}
	return ns, netns.Set(home)
}

func setUp(h *netlink.Handle, link netlink.Link, addr netip.Addr) error {
	ip := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(24, 32)}
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: ip}); err != nil {
		return fmt.Errorf("address %s on %s: %w", ip, link.Attrs().Name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", link.Attrs().Name, err)
	}
	return nil
}

// removeMachines removes what makeMachines created and still exists.
func (o Options) removeMachines() error {
	if !o.Machines {
		return nil
	}
	var failed error
	for _, id := range o.machineIDs() {
		// The kernel removes the pair with its end in the namespace, but later;
		// the next stack needs the name now.
		failed = errors.Join(failed, removeLink(o.portName(id)))
		err := netns.DeleteNamed(o.machineName(id))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("remove namespace %s: %w", o.machineName(id), err))
		}
	}
	return errors.Join(failed, removeLink(o.bridgeName()))
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// Cut disconnects a machine like a pulled cable: no packet leaves or reaches it,
// and no connection is reset. It needs Options.Machines.
func (s *Stack) Cut(id string) error { return s.plug(id, netlink.LinkSetDown) }

// Join reconnects a machine after Cut.
func (s *Stack) Join(id string) error { return s.plug(id, netlink.LinkSetUp) }

func (s *Stack) plug(id string, set func(netlink.Link) error) error {
	if !s.Machines {
		return errors.New("the stack's processes have no machines of their own")
	}
	link, err := netlink.LinkByName(s.portName(id))
	if err != nil {
		return fmt.Errorf("machine of %s: %w", id, err)
	}
	if err := set(link); err != nil {
		return fmt.Errorf("set %s: %w", link.Attrs().Name, err)
	}
	return nil
}

func (o Options) hasMachine(id string) bool {
	_, err := os.Stat("/run/netns/" + o.machineName(id))
	return err == nil
}

// eachNetwork calls visit for every network namespace that hosts of the stack
// use: ours or, with Options.Machines, that of each host's machine, if it exists.
func (o Options) eachNetwork(visit func(netns.NsHandle) error) error {
	if !o.Machines {
		return visit(netns.None())
	}
	for _, id := range o.HostIDs() {
		ns, err := netns.GetFromName(o.machineName(id))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("machine of %s: %w", id, err)
		}
		err = visit(ns)
		ns.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// machines lists the remaining resources of the machines themselves.
func (o Options) machines() ([]Thing, error) {
	if !o.Machines {
		return nil, nil
	}
	var out []Thing
	for _, id := range o.machineIDs() {
		if o.hasMachine(id) {
			out = append(out, Thing{Kind: "machine", Name: o.machineName(id)})
		}
	}
	if _, err := netlink.LinkByName(o.bridgeName()); err == nil {
		out = append(out, Thing{Kind: "bridge", Name: o.bridgeName()})
	}
	return out, nil
}
