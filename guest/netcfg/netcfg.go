// Package netcfg sets up the guest's network, which is the same in every slot.
package netcfg

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// linkWait bounds the wait for a network device whose driver is still loading.
const linkWait = 10 * time.Second

// gatewayMAC is that of the tap in every slot.
const gatewayMAC = "52:54:00:be:47:01"

// Up sets up lo and the one virtio network device. Doing it again changes nothing.
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

// currentMAC is what setGateway last set.
var currentMAC string

// SetGatewayMAC replaces the gateway's permanent neighbour entry, if it must. It
// is not for concurrent use.
func SetGatewayMAC(mac string) error {
	if mac == currentMAC {
		return nil
	}
	link, err := findLink()
	if err != nil {
		return err
	}
	return setGateway(link, mac)
}

// setGateway makes the gateway a permanent neighbour, which saves every restored
// guest a round of ARP.
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
	currentMAC = mac
	return nil
}

var errNoLink = errors.New("no network device: the VM lacks it, or the kernel has no virtio_net, built in or as a module")

// findLink finds the one device that is neither lo nor made by the workload.
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
