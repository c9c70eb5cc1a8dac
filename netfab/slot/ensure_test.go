package slot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/berth-cloud/berth/netfab/tap"
)

func TestEnsureIsIdempotentAndListsFromTheKernel(t *testing.T) {
	f := newFabric(t)
	for _, n := range []int{5, 0} {
		first, second := ensure(t, f, n), ensure(t, f, n)
		if first != second {
			t.Errorf("slot %d: %+v, then %+v", n, first, second)
		}
	}
	wantList(t, f, 0, 5)
	s := f.Slot(5)
	if s.NetNS != "berth-h1-5" || s.NSAddr.String() != "10.213.0.11" || s.HostAddr.String() != "10.213.0.10" || s.UID != DefaultBaseUID+5 {
		t.Errorf("slot 5 is %+v", s)
	}
	for range 2 {
		check(t, f.Remove(t.Context(), 5))
	}
	wantList(t, f, 0)
	if _, err := f.Ensure(t.Context(), f.Count()); !errors.Is(err, ErrNoSuchSlot) {
		t.Errorf("slot past the last: %v", err)
	}
	if _, err := f.Ensure(t.Context(), -1); !errors.Is(err, ErrNoSuchSlot) {
		t.Errorf("slot -1: %v", err)
	}
}

// A host that is told to have fewer slots keeps the guests that it has.
func TestASlotFromWhenThereWereMore(t *testing.T) {
	f := newFabric(t)
	guestd(t, newGuest(t, ensure(t, f, 7)))
	fewer, err := NewFabric(Config{Host: "h1", CIDR: testCIDR, Count: 3, ControlPlane: prefixes(controlAddr + "/32")}, slog.New(slog.DiscardHandler))
	check(t, err)
	defer fewer.Close()
	check(t, roundTrip(t.Context(), fewer, 7))
	if _, err := fewer.Traffic(t.Context(), 7); err != nil {
		t.Error(err)
	}
	names, err := fewer.Names(7)
	check(t, err)
	check(t, names.Close())
	check(t, fewer.EnsureHost(t.Context()))
	ensure(t, fewer, 7)
	check(t, roundTrip(t.Context(), fewer, 7))
}

func wantList(t testing.TB, f *Fabric, want ...int) {
	t.Helper()
	got, err := f.List(t.Context())
	check(t, err)
	if !slices.Equal(got, want) {
		t.Errorf("List is %v, want %v", got, want)
	}
}

var errInjected = errors.New("injected")

// A daemon that dies in the middle leaves any prefix of the steps. Whatever
// it was, the next one completes the slot, and can remove it.
func TestCrashAtEveryStep(t *testing.T) {
	f := newFabric(t)
	var ensureSteps, removeSteps []string
	f.fault = func(step string) error { ensureSteps = append(ensureSteps, step); return nil }
	ensure(t, f, 0)
	f.fault = func(step string) error { removeSteps = append(removeSteps, step); return nil }
	check(t, f.Remove(t.Context(), 0))
	if len(ensureSteps) < 10 || len(removeSteps) < 2 {
		t.Fatalf("steps of Ensure %v, of Remove %v", ensureSteps, removeSteps)
	}

	crash := func(t *testing.T, at string, do func(*Fabric) error) {
		broken, err := NewFabric(f.cfg, f.log)
		check(t, err)
		defer broken.Close()
		broken.fault = func(step string) error {
			if step == at {
				return errInjected
			}
			return nil
		}
		if err := do(broken); !errors.Is(err, errInjected) {
			t.Fatalf("failed at %q with %v", at, err)
		}
	}
	f.fault = nil
	for _, at := range ensureSteps {
		t.Run("ensure/"+at, func(t *testing.T) {
			crash(t, at, func(b *Fabric) error { _, err := b.Ensure(t.Context(), 0); return err })
			g := newGuest(t, ensure(t, f, 0))
			g.works(t)
			g.refused(t, "host", hostUplink+":8080")
			g.end(t)
			check(t, f.Remove(t.Context(), 0))
			wantList(t, f)

			crash(t, at, func(b *Fabric) error { _, err := b.Ensure(t.Context(), 0); return err })
			check(t, f.Remove(t.Context(), 0))
			wantList(t, f)
		})
	}
	for _, at := range removeSteps {
		t.Run("remove/"+at, func(t *testing.T) {
			ensure(t, f, 0)
			crash(t, at, func(b *Fabric) error { return b.Remove(t.Context(), 0) })
			g := newGuest(t, ensure(t, f, 0))
			g.works(t)
			g.end(t)
			crash(t, at, func(b *Fabric) error { return b.Remove(t.Context(), 0) })
			wantList(t, f, 0)
			check(t, f.Remove(t.Context(), 0))
			wantList(t, f)
		})
	}
}

func TestDamagedSlotIsRepaired(t *testing.T) {
	inside := func(do func() error) func(*Fabric, Slot) error {
		return func(_ *Fabric, s Slot) error {
			return ns.WithNetNSPath(s.NetNSPath, func(ns.NetNS) error { return do() })
		}
	}
	link := func(name string, do func(netlink.Link) error) func() error {
		return func() error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return do(l)
		}
	}
	for name, damage := range map[string]func(*Fabric, Slot) error{
		"rules flushed": inside(func() error {
			conn := &nftables.Conn{}
			conn.FlushRuleset()
			return conn.Flush()
		}),
		"tap deleted":         inside(link(TapName, netlink.LinkDel)),
		"tap down":            inside(link(TapName, netlink.LinkSetDown)),
		"uplink deleted":      inside(link(uplinkName, netlink.LinkDel)),
		"uplink down":         inside(link(uplinkName, netlink.LinkSetDown)),
		"forwarding off":      inside(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644) }),
		"tap of another user": inside(func() error { return tap.Create(TapName, 1234) }),
		"tap is not a tap": inside(func() error {
			if err := link(TapName, netlink.LinkDel)(); err != nil {
				return err
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name = TapName
			veth := netlink.NewVeth(attrs)
			veth.PeerName = "other"
			return netlink.LinkAdd(veth)
		}),
		"addresses gone": inside(func() error {
			return errors.Join(link(TapName, flushAddrs)(), link(uplinkName, flushAddrs)())
		}),
		"host link deleted": func(f *Fabric, s Slot) error {
			return link(f.cfg.linkName(s.Number), netlink.LinkDel)()
		},
		"host address gone": func(f *Fabric, s Slot) error {
			return link(f.cfg.linkName(s.Number), flushAddrs)()
		},
		"host forwarding off": func(f *Fabric, s Slot) error {
			return os.WriteFile(forwardingPath(f.cfg.linkName(s.Number)), []byte("0"), 0o644)
		},
		"host link of another pair": func(f *Fabric, s Slot) error {
			name := f.cfg.linkName(s.Number)
			if err := link(name, netlink.LinkDel)(); err != nil {
				return err
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			veth := netlink.NewVeth(attrs)
			veth.PeerName = "other"
			return netlink.LinkAdd(veth)
		},
		"namespace unmounted": func(f *Fabric, s Slot) error { return dropNetNS(s.NetNSPath) },
		"namespace is an empty file": func(f *Fabric, s Slot) error {
			return errors.Join(dropNetNS(s.NetNSPath), os.WriteFile(s.NetNSPath, nil, 0o444))
		},
		"namespace mounted twice": func(f *Fabric, s Slot) error {
			return makeNetNS(s.NetNSPath)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			check(t, damage(f, ensure(t, f, 2)))
			g := newGuest(t, ensure(t, f, 2))
			g.works(t)
			g.refused(t, "host", hostUplink+":8080")
			g.refused(t, "gateway", hostPort(GatewayAddr, 999))
		})
	}
}

func flushAddrs(l netlink.Link) error {
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_V4) })
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if err := netlink.AddrDel(l, &a); err != nil {
			return err
		}
	}
	return nil
}

func TestRepairUnderARunningGuest(t *testing.T) {
	f := newFabric(t)
	s := ensure(t, f, 0)
	g := newGuest(t, s)
	link, err := netlink.LinkByName(f.cfg.linkName(0))
	check(t, err)
	check(t, netlink.LinkDel(link))
	g.unreached(t, "internet without a link", webAddr+":80")
	ensure(t, f, 0)
	g.works(t)
}

func TestSlotWithARunningGuestIsNotRebuilt(t *testing.T) {
	f := newFabric(t)
	kill := startVMM(t, ensure(t, f, 0))
	if err := f.InUse(t.Context(), 0); !errors.Is(err, ErrInUse) {
		t.Errorf("InUse of a slot whose tap is open: %v", err)
	}
	// With another owner the tap would have to be changed, which it cannot.
	moved, err := NewFabric(func() Config { c := f.cfg; c.BaseUID = 700000; return c }(), f.log)
	check(t, err)
	defer moved.Close()
	if _, err := moved.Ensure(t.Context(), 0); !errors.Is(err, ErrInUse) {
		t.Errorf("Ensure with another owner while the tap is open: %v", err)
	}
	kill()
	check(t, f.InUse(t.Context(), 0))
	s, err := moved.Ensure(t.Context(), 0)
	check(t, err)
	startVMM(t, s)
}

func TestVMMOpensTheTapAsUnprivilegedUser(t *testing.T) {
	f := newFabric(t)
	s := ensure(t, f, 1)
	stranger := s
	stranger.UID++
	kill := startVMM(t, s)
	kill()
	exited := runVMM(t, stranger)
	if exited == "open" {
		t.Error("another user opened the slot's tap")
	}
}

// A process that outlives its slot keeps the old namespace; the new slot of
// that number must not notice.
func TestSlotIsMadeAnewWhileAnOldProcessHangsOn(t *testing.T) {
	f := newFabric(t)
	startVMM(t, ensure(t, f, 0))
	check(t, f.Remove(t.Context(), 0))
	wantList(t, f)
	newGuest(t, ensure(t, f, 0)).works(t)
}

func TestConnectionsOfARemovedSlotAreForgotten(t *testing.T) {
	f := newFabric(t)
	s := ensure(t, f, 0)
	g := newGuest(t, s)
	c, err := g.dial("tcp", webAddr+":80", time.Second)
	check(t, err)
	defer c.Close()
	tracked := func() int {
		flows, err := dump(func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		})
		check(t, err)
		n := 0
		for _, flow := range flows {
			if flow.Forward.SrcIP.Equal(net.IP(s.NSAddr.AsSlice())) {
				n++
			}
		}
		return n
	}
	if tracked() == 0 {
		t.Fatal("the host tracks no connection of the guest")
	}
	g.end(t)
	check(t, f.Remove(t.Context(), 0))
	if n := tracked(); n != 0 {
		t.Errorf("the host still tracks %d connections of the removed slot", n)
	}
}

func TestNeighboursArePermanent(t *testing.T) {
	f := newFabric(t)
	s := ensure(t, f, 0)
	permanent := func(link, ip string) {
		l, err := netlink.LinkByName(link)
		check(t, err)
		neighs, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(l.Attrs().Index, netlink.FAMILY_V4) })
		check(t, err)
		for _, n := range neighs {
			if n.IP.String() == ip && n.State == netlink.NUD_PERMANENT {
				return
			}
		}
		t.Errorf("%s has no permanent neighbour %s: %v", link, ip, neighs)
	}
	permanent(f.cfg.linkName(0), s.NSAddr.String())
	check(t, ns.WithNetNSPath(s.NetNSPath, func(ns.NetNS) error {
		permanent(TapName, GuestAddr.String())
		permanent(uplinkName, s.HostAddr.String())
		l, err := netlink.LinkByName(TapName)
		if err != nil {
			return err
		}
		if a := l.Attrs(); a.HardwareAddr.String() != TapMAC.String() || a.Flags&net.FlagUp == 0 || a.TxQLen != tapQueue {
			t.Errorf("tap is %+v", a)
		}
		return nil
	}))
}

func TestBandwidthIsLimitedAndTheLimitTakenAway(t *testing.T) {
	const rate = 8_000_000 // 1 MB a second
	f := newFabric(t, func(c *Config) { c.EgressBits, c.IngressBits = rate, rate })
	s := ensure(t, f, 0)
	g := newGuest(t, s)
	var sink net.Listener
	check(t, internet.Do(func(ns.NetNS) (err error) {
		sink, err = net.Listen("tcp4", webAddr+":2000")
		return err
	}))
	defer sink.Close()
	go func() {
		for {
			c, err := sink.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				// The first byte says who sends.
				var b [1]byte
				if _, err := io.ReadFull(c, b[:]); err != nil {
					return
				}
				if b[0] == 'd' {
					_, _ = c.Write(make([]byte, 1<<20))
					return
				}
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	transfer := func(direction string) {
		c, err := g.dial("tcp", webAddr+":2000", time.Second)
		check(t, err)
		defer c.Close()
		_, err = io.WriteString(c, direction)
		check(t, err)
		if direction == "u" {
			_, err = c.Write(make([]byte, 1<<20))
			check(t, err)
			check(t, c.(*net.TCPConn).CloseWrite())
		}
		_, err = io.Copy(io.Discard, c)
		check(t, err)
	}
	for direction, name := range map[string]string{"u": "egress", "d": "ingress"} {
		before := heldBack(t, s)
		transfer(direction)
		if heldBack(t, s) == before {
			t.Errorf("%s: no packet of 1 MiB at 1 MB/s had to wait", name)
		}
	}
	free, err := NewFabric(func() Config { c := f.cfg; c.EgressBits, c.IngressBits = 0, 0; return c }(), f.log)
	check(t, err)
	defer free.Close()
	ensure(t, free, 0)
	for _, direction := range []string{"u", "d"} {
		transfer(direction)
	}
	if heldBack(t, s) != 0 {
		t.Error("packets wait without a limit")
	}
}

// heldBack is how many packets of a slot have had to wait for its limits.
func heldBack(t *testing.T, s Slot) (n uint32) {
	t.Helper()
	count := func(ns.NetNS) error {
		qdiscs, err := netlink.QdiscList(nil)
		for _, q := range qdiscs {
			if _, limit := q.(*netlink.Tbf); limit {
				n += q.Attrs().Statistics.Queue.Overlimits
			}
		}
		return err
	}
	check(t, count(nil))
	check(t, ns.WithNetNSPath(s.NetNSPath, count))
	return n
}

func TestConcurrentEnsureRemoveList(t *testing.T) {
	f := newFabric(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 6 {
				n := (i + j) % 3
				if _, err := f.Ensure(t.Context(), n); err != nil {
					t.Errorf("ensure %d: %v", n, err)
				}
				if _, err := f.List(t.Context()); err != nil {
					t.Errorf("list: %v", err)
				}
				if err := f.InUse(t.Context(), n); err != nil {
					t.Errorf("in use %d: %v", n, err)
				}
				if j%2 == 1 {
					if err := f.Remove(t.Context(), n); err != nil {
						t.Errorf("remove %d: %v", n, err)
					}
				}
			}
		})
	}
	wg.Wait()
	for n := range 3 {
		g := newGuest(t, ensure(t, f, n))
		g.works(t)
		g.end(t)
	}
}

func TestCancelledContextStopsWork(t *testing.T) {
	f := newFabric(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Ensure(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("Ensure: %v", err)
	}
	if _, err := f.Dial(ctx, 0, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial: %v", err)
	}
}

func TestManySlotsAreMadeAndPurged(t *testing.T) {
	f := newFabric(t)
	check(t, f.EnsureHost(t.Context()))
	const count = 64
	start := time.Now()
	for n := range count {
		ensure(t, f, n)
	}
	made := time.Since(start)
	start = time.Now()
	check(t, f.Purge(t.Context()))
	purged := time.Since(start)
	t.Logf("%d slots one after the other: %v each; purge: %v", count, made/count, purged)
}

func BenchmarkEnsureRemove(b *testing.B) {
	f := newFabric(b)
	check(b, f.EnsureHost(b.Context()))
	for b.Loop() {
		ensure(b, f, 0)
		check(b, f.Remove(b.Context(), 0))
	}
}

func ExampleConfig_names() {
	c, _ := Config{Host: "a", CIDR: testCIDR}.withDefaults()
	fmt.Println(c.nsName(7), c.linkName(7), c.hostTable())
	// Output: berth-a-7 ba-7 berth_a
}
