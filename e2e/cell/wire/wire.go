// Package wire joins machines, which are network namespaces, by a switch of its own. It
// carries IPv4 between their interfaces, and loses, delays and cuts what it is told to, in
// each direction apart. So a network can be bad also where the kernel has no netem.
package wire

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/netfab/slot"
)

// Quality is what becomes of packets in one direction.
type Quality struct {
	Cut   bool
	Loss  float64       // of packets, 0 to 1
	Delay time.Duration // of each
}

// Wire is a switch. Its methods may be called concurrently.
type Wire struct {
	prefix string // of the names of namespaces
	net    netip.Prefix
	work   sync.WaitGroup

	mu       sync.Mutex
	machines []*Machine
	quality  map[[2]*Machine]Quality
}

// New makes a Wire without machines. Namespaces are named after the prefix; net is the
// network of all.
func New(prefix string, network netip.Prefix) *Wire {
	return &Wire{prefix: prefix, net: network, quality: map[[2]*Machine]Quality{}}
}

// Machine is a network namespace with one interface.
type Machine struct {
	Name string
	Addr netip.Addr

	wire *Wire
	ns   netns.NsHandle
	tun  *os.File
	out  map[*Machine]chan packet // to each other machine
	gone chan struct{}
}

type packet struct {
	bytes []byte
	due   time.Time
}

const (
	mtu      = 1500
	inFlight = 4096 // packets from one machine to another; more are lost
)

// Machine adds a machine.
func (w *Wire) Machine(name string) (*Machine, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &Machine{Name: w.prefix + name, wire: w, ns: netns.None(), out: map[*Machine]chan packet{}, gone: make(chan struct{})}
	m.Addr = w.net.Addr()
	for range len(w.machines) + 1 {
		m.Addr = m.Addr.Next()
	}
	if err := m.make(); err != nil {
		return nil, errors.Join(fmt.Errorf("machine %s: %w", m.Name, err), m.remove())
	}
	for _, other := range w.machines {
		w.join(m, other)
		w.join(other, m)
	}
	w.machines = append(w.machines, m)
	w.work.Go(m.read)
	return m, nil
}

// join carries packets from one machine to another. The caller holds the lock.
func (w *Wire) join(from, to *Machine) {
	c := make(chan packet, inFlight)
	from.out[to] = c
	w.work.Go(func() {
		for {
			select {
			case p := <-c:
				<-time.After(time.Until(p.due))
				_, _ = to.tun.Write(p.bytes) // one that is not taken is lost, as on any network
			case <-from.gone:
				return
			case <-to.gone:
				return
			}
		}
	})
}

// Set sets what becomes of packets from one machine to another.
func (w *Wire) Set(from, to *Machine, q Quality) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quality[[2]*Machine{from, to}] = q
}

// SetAll sets it for every direction.
func (w *Wire) SetAll(q Quality) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, from := range w.machines {
		for _, to := range w.machines {
			w.quality[[2]*Machine{from, to}] = q
		}
	}
}

// carry passes a packet on to its receiver.
func (w *Wire) carry(from *Machine, b []byte) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return
	}
	dst, _ := netip.AddrFromSlice(b[16:20])
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, to := range w.machines {
		if to.Addr != dst || to == from {
			continue
		}
		q := w.quality[[2]*Machine{from, to}]
		if q.Cut || q.Loss > 0 && rand.Float64() < q.Loss { //nolint:gosec // which packets are lost is no secret
			return
		}
		select {
		case from.out[to] <- packet{append([]byte(nil), b...), time.Now().Add(q.Delay)}:
		default:
		}
		return
	}
}

// Close removes everything.
func (w *Wire) Close() error {
	w.mu.Lock()
	var errs []error
	for _, m := range w.machines {
		errs = append(errs, m.remove())
	}
	w.machines = nil
	w.mu.Unlock()
	w.work.Wait()
	return errors.Join(errs...)
}

func (m *Machine) make() error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	defer func() {
		if netns.Set(home) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
	}()
	if _, err := slot.ShareNetNSDir(slot.DefaultNetNSDir); err != nil {
		return err
	}
	if m.ns, err = netns.NewNamed(m.Name); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq("wire0")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return errors.Join(fmt.Errorf("make interface: %w", err), unix.Close(fd))
	}
	m.tun = os.NewFile(uintptr(fd), "wire0")
	link, err := netlink.LinkByName("wire0")
	if err != nil {
		return err
	}
	ip := &net.IPNet{IP: m.Addr.AsSlice(), Mask: net.CIDRMask(m.wire.net.Bits(), 32)}
	return errors.Join(
		netlink.AddrAdd(link, &netlink.Addr{IPNet: ip}), netlink.LinkSetMTU(link, mtu), netlink.LinkSetUp(link),
	)
}

func (m *Machine) read() {
	buf := make([]byte, mtu+64)
	for {
		n, err := m.tun.Read(buf)
		if err != nil {
			return
		}
		m.wire.carry(m, buf[:n])
	}
}

func (m *Machine) remove() error {
	var errs []error
	if m.tun != nil {
		close(m.gone)
		errs = append(errs, m.tun.Close())
	}
	if m.ns.IsOpen() {
		errs = append(errs, m.ns.Close())
		if err := netns.DeleteNamed(m.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove namespace %s: %w", m.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Command is a command that runs on the machine, in a process with the id that it has.
func (m *Machine) Command(name string, arg ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + m.Name, "--", name}, arg...)...)
}

// Dial connects from the machine to an address with a literal IP.
func (m *Machine) Dial(timeout time.Duration) func(network, address string) (net.Conn, error) {
	return func(network, address string) (net.Conn, error) {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			return nil, err
		}
		defer home.Close()
		defer func() {
			if netns.Set(home) == nil {
				runtime.UnlockOSThread()
			}
		}()
		if err := netns.Set(m.ns); err != nil {
			return nil, err
		}
		// One literal address is dialled by this goroutine, and so from this namespace.
		return (&net.Dialer{Timeout: timeout}).Dial(network, address)
	}
}
