package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// The outside world: a namespace with a public address (of a range that is
// reserved for documents) behind a link of this machine. Guests reach it by the
// host's address translation, as they would the internet, and their questions
// for names end there.
const (
	outsideNS   = "e2e-outside"
	outsideLink = "e2e-outside"
	outsideHost = "198.51.100.1" // this machine, as the outside sees it
	outsideAddr = "198.51.100.10"
	outsideDNS  = "198.51.100.53"
	outsideName = "outside.test" // which, with all below it, is outsideAddr
)

// makeOutside makes the namespace, which unmake removes. A machine has one: a second run
// would take the first one's away.
func makeOutside() (unmake func() error, err error) {
	lock, err := os.OpenFile("/run/lock/berth-e2e", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("other end-to-end tests run on this machine: wait for their end: lock %s: %w", lock.Name(), err)
	}
	// What a killed run left.
	_ = exec.Command("ip", "netns", "del", outsideNS).Run()
	_ = exec.Command("ip", "link", "del", outsideLink).Run()
	for _, line := range []string{
		"netns add " + outsideNS,
		"link add " + outsideLink + " type veth peer name eth0 netns " + outsideNS,
		"addr add " + outsideHost + "/24 dev " + outsideLink,
		"link set " + outsideLink + " up",
		"-n " + outsideNS + " link set lo up",
		"-n " + outsideNS + " link set eth0 up",
		"-n " + outsideNS + " addr add " + outsideAddr + "/24 dev eth0",
		"-n " + outsideNS + " addr add " + outsideDNS + "/24 dev eth0",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	// The kernel forwards what comes back by the setting of the link it comes in on.
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+outsideLink+"/forwarding", []byte("1"), 0o644); err != nil {
		return nil, err
	}
	var dns net.PacketConn
	err = insideOf(outsideNS, func() error {
		dns, err = net.ListenPacket("udp4", outsideDNS+":53")
		return err
	})
	if err != nil {
		return nil, err
	}
	go answerNames(dns)
	return func() error {
		return errors.Join(dns.Close(), exec.Command("ip", "netns", "del", outsideNS).Run(), lock.Close())
	}, nil
}

// insideOf runs f on a thread that is in a namespace: the sockets that it makes
// belong there for ever.
func insideOf(name string, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	there, err := netns.GetFromName(name)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	defer there.Close()
	if err := netns.Set(there); err != nil {
		return err
	}
	err = f()
	return errors.Join(err, netns.Set(home))
}

// listenOutside opens a port of the outside world until the test ends.
func listenOutside(t *testing.T) net.Listener {
	t.Helper()
	var l net.Listener
	err := insideOf(outsideNS, func() (err error) {
		l, err = net.Listen("tcp4", outsideAddr+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// registries are the hosts of packages, which guests reach as this machine does.
var registries = map[string]bool{
	"registry.npmjs.org": true, "pypi.org": true, "files.pythonhosted.org": true, "proxy.golang.org": true, "sum.golang.org": true,
}

// answerNames is a DNS server that knows the outside world's name, and those of registries.
func answerNames(c net.PacketConn) {
	b := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		query := bytes.Clone(b[:n])
		go func() { // a registry's name may take a while
			if reply := nameAnswer(query); reply != nil {
				_, _ = c.WriteTo(reply, from)
			}
		}()
	}
}

// addressesOf returns what a name stands for; none: there is no such name.
func addressesOf(name string) []net.IP {
	switch {
	case name == outsideName || strings.HasSuffix(name, "."+outsideName):
		return []net.IP{net.ParseIP(outsideAddr)}
	case registries[name]:
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		defer cancel()
		found, _ := net.DefaultResolver.LookupIP(ctx, "ip4", name)
		return found
	}
	return nil
}

func nameAnswer(query []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	addresses := addressesOf(name)
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true,
		},
		Questions: []dnsmessage.Question{q},
	}
	switch {
	case len(addresses) == 0:
		reply.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		for _, a := range addresses {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
				Body:   &dnsmessage.AResource{A: [4]byte(a.To4())},
			})
		}
	}
	out, err := reply.Pack()
	if err != nil {
		return nil
	}
	return out
}
