package slot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/tier"
)

// The tests that need root run in a copy of the test program that has network
// and mount namespaces of its own, so that the machine's are left alone. There
// the test's "host" has one uplink, to a namespace that plays the internet.
const (
	innerEnv  = "BERTH_TEST_INNER"  // set in the copy
	helperEnv = "BERTH_TEST_HELPER" // set in a child that plays a VMM
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(helperEnv) != "":
		os.Exit(playVMM())
	case !tier.HasRoot():
		goleak.VerifyTestMain(m)
	case os.Geteuid() != 0:
		fmt.Fprintln(os.Stderr, tier.EnvRoot+"=1 needs root")
		os.Exit(1)
	case os.Getenv(innerEnv) == "":
		os.Exit(unshared())
	default:
		if err := makeWorld(); err != nil {
			fmt.Fprintln(os.Stderr, "make the test's network:", err)
			os.Exit(1)
		}
		goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getenv(innerEnv) == "" {
		t.Skip("it needs root: " + tier.EnvRoot + "=1")
	}
}

func unshared() int {
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Env = append(os.Environ(), innerEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	// Pdeathsig follows the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// The addresses of the test's internet.
const (
	webAddr      = "203.0.113.10" // a public server
	controlAddr  = "203.0.113.99" // public, but the control plane's
	dnsAddr      = "10.255.255.53"
	metadataAddr = "169.254.169.254"
	hostUplink   = "192.0.2.2"
)

// privateAddrs are of networks that guests may not reach by default.
var privateAddrs = []string{"10.99.0.1", "172.20.0.1", "192.168.77.1", "100.64.1.1"}

var internet ns.NetNS

func makeWorld() error {
	// The machine's own namespaces, which this copy of its mounts would keep
	// alive, and which come and go.
	for unix.Unmount(DefaultNetNSDir, unix.MNT_DETACH) == nil {
	}
	if err := unix.Mount("none", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount a tmpfs on /run: %w", err)
	}
	// A machine's /dev/net/tun is open to all users where udev runs; here it
	// may not be, and the machine's own should not change.
	if err := unix.Mknod("/run/tun", unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200))); err != nil {
		return err
	}
	if err := os.Chmod("/run/tun", 0o666); err != nil {
		return err
	}
	if err := unix.Mount("/run/tun", "/dev/net/tun", "none", unix.MS_BIND, ""); err != nil {
		return err
	}
	resolvConf, systemdResolvConf = "/run/resolv.conf", "/run/systemd-resolv.conf"
	if err := os.WriteFile(resolvConf, []byte("nameserver "+dnsAddr+"\n"), 0o644); err != nil {
		return err
	}
	if err := os.Mkdir("/run/test", 0o755); err != nil {
		return err
	}
	if err := makeNetNS("/run/test/internet"); err != nil {
		return err
	}
	var err error
	if internet, err = ns.GetNS("/run/test/internet"); err != nil {
		return err
	}
	if err := setUp("lo"); err != nil {
		return err
	}
	// Link-local addresses would appear some time after their link.
	if err := writeSysctls(map[string]string{"net/ipv6/conf/default/addr_gen_mode": "1"}); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	veth := netlink.NewVeth(attrs)
	veth.PeerName = "eth0"
	veth.PeerNamespace = netlink.NsFd(internet.Fd())
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	if err := addAddr("eth0", hostUplink+"/24"); err != nil {
		return err
	}
	if err := setUp("eth0"); err != nil {
		return err
	}
	if err := internet.Do(furnishInternet); err != nil {
		return err
	}
	up := func(ns.NetNS) error { return awaitUp(context.Background(), "eth0") }
	if err := errors.Join(up(nil), internet.Do(up)); err != nil {
		return err
	}
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	if err := netlink.RouteReplace(&netlink.Route{Dst: all, Gw: net.ParseIP("192.0.2.1")}); err != nil {
		return err
	}
	// A service of the host, on all its addresses.
	l, err := net.Listen("tcp4", ":8080")
	if err != nil {
		return err
	}
	go serve(l)
	return nil
}

func furnishInternet(ns.NetNS) error {
	addrs := append([]string{webAddr, controlAddr, dnsAddr, metadataAddr}, privateAddrs...)
	for _, a := range addrs {
		if err := addAddr("lo", a+"/32"); err != nil {
			return err
		}
	}
	if err := addAddr("lo", "2001:db8::1/128"); err != nil {
		return err
	}
	if err := addAddr("eth0", "192.0.2.1/24"); err != nil {
		return err
	}
	for _, name := range []string{"lo", "eth0"} {
		if err := setUp(name); err != nil {
			return err
		}
	}
	for _, port := range []string{":80", ":53"} {
		l, err := net.Listen("tcp", port)
		if err != nil {
			return err
		}
		go serve(l)
	}
	for _, addr := range []string{dnsAddr + ":53", webAddr + ":123"} {
		c, err := net.ListenPacket("udp4", addr)
		if err != nil {
			return err
		}
		go echo(c)
	}
	return nil
}

// serve answers every connection with the address it came from.
func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			fmt.Fprintln(c, c.RemoteAddr().(*net.TCPAddr).IP)
		}()
	}
}

// heard is every datagram that reached the internet, by its text.
var heard sync.Map

func echo(c net.PacketConn) {
	buf := make([]byte, 2000)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		heard.Store(string(buf[:n]), from.(*net.UDPAddr).IP.String())
		_, _ = c.WriteTo([]byte(from.(*net.UDPAddr).IP.String()), from)
	}
}

func addAddr(link, cidr string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	a.Flags = unix.IFA_F_NODAD
	return netlink.AddrAdd(l, a)
}

func setUp(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// logs collects what a fabric logs.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

var testCIDR = netip.MustParsePrefix("10.213.0.0/24")

// newFabric makes a fabric that is purged when the test ends, and then fails
// the test if the kernel does not look as it did before.
func newFabric(t testing.TB, change ...func(*Config)) *Fabric {
	f, _ := newLoggedFabric(t, change...)
	return f
}

func newLoggedFabric(t testing.TB, change ...func(*Config)) (*Fabric, *logs) {
	t.Helper()
	needRoot(t)
	cfg := Config{Host: "h1", CIDR: testCIDR, ControlPlane: prefixes(controlAddr + "/32")}
	for _, c := range change {
		c(&cfg)
	}
	before := kernel(t)
	out := &logs{}
	f, err := NewFabric(cfg, slog.New(slog.NewTextHandler(io.MultiWriter(out, t.Output()), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Purge(context.Background()); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(before, kernel(t)); diff != "" {
			t.Errorf("the kernel before the test and after Purge (-before +after):\n%s", diff)
		}
	})
	return f, out
}

// kernel lists what a fabric may change on the machine.
func kernel(t testing.TB) []string {
	t.Helper()
	var out []string
	add := func(kind string, what ...any) { out = append(out, kind+": "+fmt.Sprint(what...)) }
	links, err := dump(func() ([]netlink.Link, error) { return netlink.LinkList() })
	check(t, err)
	for _, l := range links {
		add("link", l.Attrs().Name)
		v, err := forwarding(l.Attrs().Name)
		check(t, err)
		add("forwarding", l.Attrs().Name, "=", v)
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	check(t, err)
	for _, a := range addrs {
		add("address", a.String())
	}
	routes, err := dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	check(t, err)
	for _, r := range routes {
		add("route", r.String())
	}
	tables, err := (&nftables.Conn{}).ListTables()
	check(t, err)
	for _, table := range tables {
		add("nft table", table.Name)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(mounts)), "\n") {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, "/run") {
			add("mount", point)
		}
	}
	for _, dir := range []string{DefaultNetNSDir, DefaultStateDir} {
		names, _ := filepath.Glob(dir + "/*")
		for _, name := range names {
			add("file", name)
		}
	}
	ipForward, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	check(t, err)
	add("ip_forward", strings.TrimSpace(string(ipForward)))
	tracked, err := os.ReadFile(conntrackMax)
	check(t, err)
	add("nf_conntrack_max", strings.TrimSpace(string(tracked)))
	sort.Strings(out)
	return out
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ensure(t testing.TB, f *Fabric, n int) Slot {
	t.Helper()
	s, err := f.Ensure(t.Context(), n)
	check(t, err)
	return s
}

// await polls until ok holds, for what the kernel does in its own time.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}
