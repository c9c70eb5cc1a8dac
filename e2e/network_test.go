package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-cloud/berth/controlplane/api"
)

// reach is the guest's side of each check: it prints "open" when a TCP
// connection is made and "closed" otherwise, within three seconds.
const reach = `python3 -c '
import socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.settimeout(3)
    try:
        s.connect((host, int(port)))
        print(target, "open")
    except OSError as e:
        print(target, "closed")
' `

func TestGuestReachesNeitherHostNorGuests(t *testing.T) {
	c := newTenant(t)
	attacker, target := c.create(t), c.create(t)

	// A service of the host's, on every address that the host has.
	service := httptest.NewUnstartedServer(http.NotFoundHandler())
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	service.Listener = l
	service.Start()
	defer service.Close()
	port := l.Addr().(*net.TCPAddr).Port
	var targets []string
	for _, a := range hostAddresses(t) {
		targets = append(targets, a.String()+":"+strconv.Itoa(port))
	}
	targets = append(targets,
		"198.18.0.1:"+strconv.Itoa(port), // its own gateway
		"169.254.169.254:80",             // a cloud's metadata service
	)
	for _, u := range theStack.URLs {
		_, p, _ := strings.Cut(strings.TrimPrefix(u, "http://"), ":")
		targets = append(targets, "198.18.0.1:"+p)
	}

	// A service of another guest's, at every address that the guest could have.
	c.exec(t, target.ID, "cd / && setsid python3 -m http.server 8000 </dev/null >/dev/null 2>&1 &")
	c.exec(t, target.ID, "for i in $(seq 50); do curl -s -o /dev/null http://127.0.0.1:8000/ && exit 0; sleep 0.2; done; exit 1")
	for _, a := range slotAddresses(t) {
		targets = append(targets, a.String()+":8000", a.String()+":999")
	}

	got, err := c.Exec(t.Context(), attacker.ID, api.Exec{Cmd: api.Shell(reach + strings.Join(targets, " ")), TimeoutSeconds: new(int64(300))})
	if err != nil || got.ExitCode != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := strings.Count(got.Stdout, "\n"); n != len(targets) {
		t.Fatalf("%d answers for %d targets: %s", n, len(targets), got.Stdout)
	}
	for line := range strings.Lines(got.Stdout) {
		if !strings.HasSuffix(line, " closed\n") {
			t.Errorf("the guest reaches %s", line)
		}
	}
	// The agent answers the host alone, not the guest's own programs.
	if out := c.exec(t, attacker.ID, reach+"127.0.0.1:999 198.18.0.2:999"+
		" ; curl -s -m 3 -o /dev/null -w '%{http_code}' http://198.18.0.2:999/v1/health || true"); strings.Contains(out, "200") {
		t.Errorf("a program of the guest drives the agent: %q", out)
	}
}

// hostAddresses are this machine's IPv4 addresses but loopback.
func hostAddresses(t *testing.T) []netip.Addr {
	t.Helper()
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP.To4()); ok && !addr.IsLoopback() && !isSlotLink(a.Label) {
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		t.Fatal("this machine has no address but loopback")
	}
	return out
}

// slotAddresses are both ends of the pair of every slot of the stack.
func slotAddresses(t *testing.T) []netip.Addr {
	t.Helper()
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP.To4()); ok && isSlotLink(a.Label) {
			out = append(out, addr, addr.Next())
		}
	}
	if len(out) < 4 {
		t.Fatalf("two guests run and the slots have %d addresses", len(out))
	}
	return out
}

func isSlotLink(name string) bool {
	for _, id := range theStack.HostIDs() {
		if strings.HasPrefix(name, "b"+id+"-") {
			return true
		}
	}
	return false
}

// The kernel's tables show what a running stack has, so that the census which
// finds nothing at the end is known to look in the right places.
func TestCensusSeesARunningSandbox(t *testing.T) {
	c := newTenant(t)
	c.create(t)
	things, err := theStack.Census()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, thing := range things {
		kinds[thing.Kind]++
	}
	for _, kind := range []string{"process", "namespace", "link", "table", "cgroup"} {
		if kinds[kind] == 0 {
			t.Errorf("the census finds no %s; it finds %s", kind, fmt.Sprint(kinds))
		}
	}
}
