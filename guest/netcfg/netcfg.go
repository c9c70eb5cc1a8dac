// Package netcfg sets up the guest's network, which is the same in every slot.
package netcfg

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// linkWait bounds the wait for a network device whose driver is still loading.
const linkWait = 10 * time.Second

// gatewayMAC is that of the tap in every slot.
const gatewayMAC = "52:54:00:be:47:01"

const resolvConf = "/etc/resolv.conf"

// Up sets up lo and the one virtio network device, and resolv.conf if the image
// brings none that names a server. Doing it again changes nothing.
func Up() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("network device lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	link, err := awaitLink()
	if err != nil {
		return err
	}
	// There is no IPv6 on the slot's link; without this the kernel would keep
	// soliciting routers.
	noIPv6 := "/proc/sys/net/ipv6/conf/" + link.Attrs().Name + "/disable_ipv6"
	if err := os.WriteFile(noIPv6, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(guestapi.GuestAddr).To4(), Mask: net.CIDRMask(30, 32)}}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("set address %s: %w", guestapi.GuestAddr, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", link.Attrs().Name, err)
	}
	if err := setGateway(link, gatewayMAC); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(guestapi.GatewayAddr)}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("set the default route: %w", err)
	}
	return nil
}

// SetGatewayMAC replaces the gateway's permanent neighbour entry.
func SetGatewayMAC(mac string) error {
	link, err := findLink()
	if err != nil {
		return err
	}
	return setGateway(link, mac)
}

// setGateway saves the first packet, and every restored guest, a round of ARP.
func setGateway(link netlink.Link, mac string) error {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return fmt.Errorf("MAC address of the gateway: %w", err)
	}
	err = netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: net.ParseIP(guestapi.GatewayAddr), HardwareAddr: hw,
	})
	if err != nil {
		return fmt.Errorf("set the gateway's neighbour entry: %w", err)
	}
	return nil
}

var errNoLink = errors.New("no network device: the VM lacks it, or the kernel has no virtio_net, built in or as a module")

// findLink finds the one device that is neither lo nor made by the tenant.
func findLink() (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback == 0 && l.Type() == "device" {
			return l, nil
		}
	}
	return nil, errNoLink
}

func awaitLink() (netlink.Link, error) {
	deadline := time.Now().Add(linkWait)
	for {
		link, err := findLink()
		if err == nil || !errors.Is(err, errNoLink) || time.Now().After(deadline) {
			return link, err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// ResolvConf is the content of /etc/resolv.conf for these servers.
func ResolvConf(servers []string) []byte {
	var b bytes.Buffer
	for _, s := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	return b.Bytes()
}

// SetUpResolver points the guest at the gateway's resolver unless the image's
// own resolv.conf already names one.
func SetUpResolver(write func(path string, data []byte, mode os.FileMode) error) error {
	raw, err := os.ReadFile(resolvConf)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ELOOP) {
		return err
	}
	if bytes.Contains(raw, []byte("nameserver")) {
		return nil
	}
	return write(resolvConf, ResolvConf([]string{guestapi.GatewayAddr}), 0o644)
}
