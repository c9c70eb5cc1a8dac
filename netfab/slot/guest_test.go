package slot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/netfab/tap"
)

// guest stands in for a VM: a namespace with the guest's address on a tap of
// its own, whose frames are carried to and from the slot's tap, as a VMM does.
type guest struct {
	slot  Slot
	ns    ns.NetNS
	wire  *os.File // the slot's tap, as the VMM holds it
	inner *os.File
	done  chan struct{}
}

func newGuest(t testing.TB, s Slot) *guest {
	t.Helper()
	path := filepath.Join("/run/test", "guest-"+s.NetNS)
	check(t, makeNetNS(path))
	inside, err := ns.GetNS(path)
	check(t, err)
	g := &guest{slot: s, ns: inside, done: make(chan struct{}, 2)}
	check(t, ns.WithNetNSPath(s.NetNSPath, func(ns.NetNS) error {
		g.wire, err = tap.Open(TapName)
		return err
	}))
	check(t, inside.Do(func(ns.NetNS) error {
		if g.inner, err = tap.Open("eth0"); err != nil {
			return err
		}
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetHardwareAddr(link, GuestMAC); err != nil {
			return err
		}
		if err := addAddr("eth0", GuestAddr.String()+"/30"); err != nil {
			return err
		}
		for _, name := range []string{"lo", "eth0"} {
			if err := setUp(name); err != nil {
				return err
			}
		}
		// As the guest agent does.
		gateway := &netlink.Neigh{
			LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: GatewayAddr.AsSlice(), HardwareAddr: TapMAC,
		}
		if err := netlink.NeighSet(gateway); err != nil {
			return err
		}
		_, all, _ := net.ParseCIDR("0.0.0.0/0")
		return netlink.RouteReplace(&netlink.Route{Dst: all, Gw: GatewayAddr.AsSlice()})
	}))
	// The kernel drops what it sends to a tap until it has noticed that the
	// tap is open. A VM is far from its first packet then, this guest is not.
	await(t, "the tap is up", func() (up bool) {
		check(t, ns.WithNetNSPath(s.NetNSPath, func(ns.NetNS) error {
			link, err := netlink.LinkByName(TapName)
			up = err == nil && link.Attrs().OperState == netlink.OperUp
			return err
		}))
		return up
	})
	carry := func(to, from *os.File) {
		defer func() { g.done <- struct{}{} }()
		buf := make([]byte, 1<<17)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			if _, err := to.Write(buf[:n]); errors.Is(err, os.ErrClosed) {
				return
			}
		}
	}
	go carry(g.wire, g.inner)
	go carry(g.inner, g.wire)
	t.Cleanup(func() { g.end(t) })
	return g
}

// end is the VMM's end: its descriptors close.
func (g *guest) end(t testing.TB) {
	if g.ns == nil {
		return
	}
	g.wire.Close()
	g.inner.Close()
	<-g.done
	<-g.done
	path := g.ns.Path()
	g.ns.Close()
	g.ns = nil
	if err := dropNetNS(path); err != nil {
		t.Error(err)
	}
}

func (g *guest) dial(network, addr string, timeout time.Duration) (c net.Conn, err error) {
	err = g.ns.Do(func(ns.NetNS) error {
		c, err = net.DialTimeout(network, addr, timeout)
		return err
	})
	return c, err
}

// get connects to a server of the test and returns the address that the
// server saw.
func (g *guest) get(addr string) (string, error) {
	c, err := g.dial("tcp", addr, 2*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// ask sends a datagram and returns the answer.
func (g *guest) ask(addr, text string) (string, error) {
	c, err := g.dial("udp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	buf := make([]byte, 2000)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// works fails the test unless the guest has internet by NAT, DNS, and answers
// its host.
func (g *guest) works(t testing.TB) {
	t.Helper()
	if seen, err := g.get(webAddr + ":80"); err != nil || seen != hostUplink {
		t.Errorf("internet: the server saw %q, error %v; want it to see %s", seen, err, hostUplink)
	}
	for _, network := range []string{"udp", "tcp"} {
		seen, err := g.resolve(network)
		if err != nil || seen != hostUplink {
			t.Errorf("dns by %s: the server saw %q, error %v; want it to see %s", network, seen, err, hostUplink)
		}
	}
}

func (g *guest) resolve(network string) (string, error) {
	if network == "tcp" {
		return g.get(GatewayAddr.String() + ":53")
	}
	return g.ask(GatewayAddr.String()+":53", "query")
}

// refused fails the test unless a connection is refused, and not left to time out.
func (g *guest) refused(t testing.TB, what, addr string) {
	t.Helper()
	c, err := g.dial("tcp", addr, 10*time.Second)
	if err == nil {
		c.Close()
		t.Errorf("%s: guest reached %s", what, addr)
		return
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%s: guest to %s: %v; want connection refused", what, addr, err)
	}
}

// unreached fails the test if a connection is made within a moment.
func (g *guest) unreached(t testing.TB, what, addr string) {
	t.Helper()
	if c, err := g.dial("tcp", addr, 300*time.Millisecond); err == nil {
		c.Close()
		t.Errorf("%s: guest reached %s", what, addr)
	}
}

// frame is a UDP datagram to the internet's port 123 as it would stand on the
// guest's wire, behind an empty virtio-net header.
func frame(srcMAC net.HardwareAddr, src netip.Addr, text string) []byte {
	const virtio, eth, ip, udp = 10, 14, 20, 8
	b := make([]byte, virtio+eth+ip+udp, virtio+eth+ip+udp+len(text))
	b = append(b, text...)
	e := b[virtio:]
	copy(e, TapMAC)
	copy(e[6:], srcMAC)
	binary.BigEndian.PutUint16(e[12:], unix.ETH_P_IP)
	p := e[eth:]
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], src.AsSlice())
	copy(p[16:], netip.MustParseAddr(webAddr).AsSlice())
	var sum uint32
	for i := 0; i < ip; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum&0xffff+sum>>16))
	u := p[ip:]
	binary.BigEndian.PutUint16(u, 4321)
	binary.BigEndian.PutUint16(u[2:], 123)
	binary.BigEndian.PutUint16(u[4:], uint16(len(u))) // no checksum: it is optional
	return b
}

// arpFrame asks for (op 1) or answers (op 2) the gateway, as it would stand on
// the guest's wire.
func arpFrame(op uint16, mac net.HardwareAddr, sender netip.Addr) []byte {
	b := make([]byte, 10, 10+14+28) // the virtio-net header
	b = append(b, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}...)
	b = append(b, mac...)
	for _, v := range []uint16{unix.ETH_P_ARP, 1, unix.ETH_P_IP, 6<<8 | 4, op} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	b = append(append(b, mac...), sender.AsSlice()...)
	return append(append(b, TapMAC...), GatewayAddr.AsSlice()...)
}

// neighbourSolicitation is IPv6's question (RFC 4861, 4.3), from an address of
// the link that is made of mac, for fe80::1.
func neighbourSolicitation(mac net.HardwareAddr) []byte {
	src := netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 10: mac[0], 11: mac[1], 12: mac[2], 13: mac[3], 14: mac[4], 15: mac[5]})
	target := netip.MustParseAddr("fe80::1")
	icmp := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	icmp = append(append(icmp, 1, 1), mac...)
	pseudo := append(append(src.AsSlice(), target.AsSlice()...), 0, 0, 0, byte(len(icmp)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	var sum uint32
	for _, part := range [][]byte{pseudo, icmp} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(icmp[2:], ^uint16(sum&0xffff+sum>>16))
	b := append(make([]byte, 10), TapMAC...)
	b = append(append(b, mac...), 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(icmp)), unix.IPPROTO_ICMPV6, 255)
	b = append(append(b, src.AsSlice()...), target.AsSlice()...)
	return append(b, icmp...)
}

// resolvesGateway lets the guest forget its gateway and ask for it by ARP.
func (g *guest) resolvesGateway(t testing.TB) {
	t.Helper()
	check(t, g.ns.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		gateway := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, IP: GatewayAddr.AsSlice(), HardwareAddr: TapMAC}
		if err := netlink.NeighDel(gateway); err != nil {
			return err
		}
		c, err := net.Dial("udp4", hostPort(GatewayAddr, 9))
		if err != nil {
			return err
		}
		defer c.Close()
		await(t, "the gateway answers ARP", func() bool {
			_, _ = c.Write([]byte("x"))
			neighs, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(gateway.LinkIndex, netlink.FAMILY_V4) })
			check(t, err)
			for _, n := range neighs {
				if n.IP.Equal(gateway.IP) && n.State&(netlink.NUD_REACHABLE|netlink.NUD_STALE|netlink.NUD_DELAY) != 0 {
					return true
				}
			}
			return false
		})
		gateway.State = netlink.NUD_PERMANENT
		return netlink.NeighSet(gateway)
	}))
}

// startVMM starts a process in the slot's namespace, as the slot's user and
// without any capability, that opens the tap and keeps it until it is killed.
func startVMM(t testing.TB, s Slot) (kill func()) {
	t.Helper()
	said, kill := launchVMM(t, s)
	if said != "open" {
		t.Fatalf("process of uid %d says %q; want it to open the tap", s.UID, said)
	}
	return kill
}

// runVMM does the same, ends it, and returns what it said.
func runVMM(t testing.TB, s Slot) string {
	t.Helper()
	said, kill := launchVMM(t, s)
	kill()
	return said
}

func launchVMM(t testing.TB, s Slot, dials ...string) (said string, kill func()) {
	t.Helper()
	// The test program itself lies where only root may go.
	exe, err := vmmProgram()
	check(t, err)
	cmd := exec.Command(exe)
	cmd.Env = []string{helperEnv + "=1"}
	if len(dials) > 0 {
		cmd.Env = []string{helperEnv + "=" + strings.Join(dials, " ")}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.UID)},
	}
	out, err := cmd.StdoutPipe()
	check(t, err)
	// A child begins in the namespace of the thread that forks it.
	check(t, ns.WithNetNSPath(s.NetNSPath, func(ns.NetNS) error { return cmd.Start() }))
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	t.Cleanup(kill)
	line, _ := bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(line), kill
}

var vmmProgram = sync.OnceValues(func() (string, error) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	path := "/run/test/vmm"
	return path, os.WriteFile(path, self, 0o755)
})

// playBrokenOut is what a guest could run once it is in its VMM: a socket
// beside the tap.
func playBrokenOut(dials []string) int {
	for _, addr := range dials {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err == nil {
			c.Close()
		}
		fmt.Printf("%s: %v; ", addr, errors.Is(err, unix.ECONNREFUSED))
	}
	fmt.Println()
	return 0
}

func playVMM() int {
	if dials := os.Getenv(helperEnv); dials != "1" {
		return playBrokenOut(strings.Fields(dials))
	}
	file, err := tap.Open(TapName)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("open")
	buf := make([]byte, 1<<17)
	for {
		if _, err := file.Read(buf); err != nil {
			return 1
		}
	}
}

func hostPort(a netip.Addr, port int) string { return net.JoinHostPort(a.String(), strconv.Itoa(port)) }

// publishRules translate TCP port 8081 and UDP port 53 of any address of the
// machine to a port of addr.
func publishRules(addr string) [][]expr.Any {
	rule := func(proto byte, port, to uint16) []expr.Any {
		return []expr.Any{
			&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
			&expr.Immediate{Register: 1, Data: netip.MustParseAddr(addr).AsSlice()},
			&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(to)},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
		}
	}
	return [][]expr.Any{rule(unix.IPPROTO_TCP, 8081, 80), rule(unix.IPPROTO_UDP, 53, 124)}
}
