// Package identity gives a guest its own identity. Two guests restored from one
// state share everything until this ran: names, keys, the state of the random
// number generator, and a clock that stopped when the state was captured.
package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/netcfg"
	"github.com/berth-cloud/berth/guest/proc"
)

// ErrInvalid is wrapped by errors that say which part of an identity is wrong.
var ErrInvalid = errors.New("invalid identity")

// minEntropy is what the kernel needs for a reseed to mean anything: 256 bits,
// twice, as the contract says.
const minEntropy = 64

// Check refuses an identity that could be applied in part only.
func Check(id *guestapi.Identity) error {
	switch {
	case len(id.Entropy) < minEntropy || len(id.Entropy) > maxEntropy:
		return fmt.Errorf("%w: %d bytes of entropy, want %d to %d", ErrInvalid, len(id.Entropy), minEntropy, maxEntropy)
	case id.UnixNanos <= 0:
		return fmt.Errorf("%w: unix_nanos is %d", ErrInvalid, id.UnixNanos)
	case !validHostname(id.Hostname):
		return fmt.Errorf("%w: hostname %q is not 1 to 63 letters, digits, '-' and '.'", ErrInvalid, id.Hostname)
	case !validMachineID(id.MachineID):
		return fmt.Errorf("%w: machine_id %q is not 32 lower-case hexadecimal digits", ErrInvalid, id.MachineID)
	}
	for _, k := range id.SSHHostKeys {
		if keyFile(k.Type) == "" || k.Private == "" || k.Public == "" {
			return fmt.Errorf("%w: SSH host key of type %q", ErrInvalid, k.Type)
		}
	}
	for _, s := range id.Nameservers {
		if s == guestapi.GatewayAddr {
			continue
		}
		if _, err := netip.ParseAddr(s); err != nil {
			return fmt.Errorf("%w: nameserver %q", ErrInvalid, s)
		}
	}
	for k, v := range id.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fmt.Errorf("%w: environment variable %q", ErrInvalid, k)
		}
	}
	return nil
}

// publicSuffix is that of a public key's file, beside the private one.
const publicSuffix = ".pub"

// keyFile is the public key's file, "" of an unknown type.
func keyFile(keyType string) string {
	switch keyType {
	case "ed25519":
		return "ssh_host_ed25519_key" + publicSuffix
	case "ecdsa":
		return "ssh_host_ecdsa_key" + publicSuffix
	case "rsa":
		return "ssh_host_rsa_key" + publicSuffix
	}
	return ""
}

func validHostname(s string) bool {
	return s != "" && len(s) <= 63 && isAlnum(s[0]) && isAlnum(s[len(s)-1]) && each(s, func(c byte) bool {
		return isAlnum(c) || c == '-' || c == '.'
	})
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func validMachineID(s string) bool {
	return len(s) == 32 && s != noMachineID && each(s, func(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' })
}

const noMachineID = "00000000000000000000000000000000"

func each(s string, allowed func(byte) bool) bool {
	for i := range len(s) {
		if !allowed(s[i]) {
			return false
		}
	}
	return true
}

// Guest is the guest that identities are given to. What a new identity must not
// lose time to open is open.
type Guest struct {
	groups     proc.Groups // for the template's hooks
	system     system
	generation *file
	last       *file
	files      *files
	number     uint64   // what the generation's file says
	entropy    [64]byte // of the last identity; see next
	known      bool     // there was one
	watch      *watch
	look       bool // in this identity: something may not be as it was
	looked     bool // all of the identity before was looked at
	noHooks    bool // when that was last looked at
	// hosts is the tenant's part of the file, and the whole that was last written.
	hosts struct{ kept, whole []byte }
	sent  int64 // unix time of the one that set the clock last
	// buf is where contents are put together. Fresh memory would be page faults.
	buf [16 << 10]byte
}

// system is what an identity changes in the kernel.
type system struct {
	addEntropy     func([]byte) error
	thaw           func() // the tenant's processes
	setClock       func(unixNanos int64) error
	setHostname    func([]byte) error
	setGateway     func(mac string) error
	cutConnections func(keep netip.AddrPort) (int, error)
}

// NewGuest prepares the guest for identities. thaw lets the tenant's processes go
// on, for the hooks: they speak to them.
func NewGuest(groups proc.Groups, thaw func()) (*Guest, error) {
	random, err := unix.Open(randomDevice, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", randomDevice, err)
	}
	return newGuest("", groups, system{
		addEntropy:     func(b []byte) error { return addEntropy(random, b) },
		thaw:           thaw,
		setClock:       setClock,
		setHostname:    unix.Sethostname,
		setGateway:     netcfg.SetGatewayMAC,
		cutConnections: cutConnections,
	})
}

func newGuest(root string, groups proc.Groups, sys system) (*Guest, error) {
	files, err := prepareFiles(root)
	if err != nil {
		return nil, err
	}
	generation, err := files.open("../"+filepath.Base(guestapi.GenerationPath), 0o644)
	if err != nil {
		return nil, err
	}
	last, err := files.open("../identity.json", 0o600)
	if err != nil {
		return nil, err
	}
	g := &Guest{groups: groups, system: sys, generation: generation, last: last, files: files, watch: newWatch(root)}
	n, err := unix.Pread(generation.fd, g.buf[:32], 0)
	if err != nil {
		return nil, err
	}
	// Absent before the first identity.
	g.number, _ = strconv.ParseUint(strings.TrimSpace(string(g.buf[:n])), 10, 64)
	return g, nil
}

// next is the number of an identity: higher than any before it, though the
// generation of a fork may be that of its parent, and that of a sandbox which
// woke is what it was. Only the same identity again, by its entropy, and that of
// a template's build have the same number again.
func (g *Guest) next(id *guestapi.Identity) uint64 {
	if id.Generation == 0 || g.has(id) {
		return max(g.number, id.Generation)
	}
	return max(g.number+1, id.Generation)
}

// has reports whether the guest has this identity already, by its entropy.
func (g *Guest) has(id *guestapi.Identity) bool {
	return g.known && bytes.Equal(id.Entropy[:len(g.entropy)], g.entropy[:])
}

// Apply makes the guest id's. received is when the request arrived, so that the
// time spent since is not lost to the clock; keep is the peer of the connection
// that the identity came by. What it reports took effect; after an error some
// of it may have, and the whole is to be applied again.
func (g *Guest) Apply(id *guestapi.Identity, received time.Time, keep netip.AddrPort) (guestapi.IdentityConfirmation, error) {
	done := guestapi.IdentityConfirmation{Generation: id.Generation}
	if g.has(id) {
		err := g.again(id, received, &done)
		return done, err
	}
	g.look = g.watch.changed() || !g.looked
	g.looked = false
	// Random numbers come first: whatever runs meanwhile draws from them.
	if err := g.system.addEntropy(id.Entropy); err != nil {
		return done, err
	}
	done.EntropyBits = 8 * len(id.Entropy)
	if err := g.step(id, received, &done); err != nil {
		return done, err
	}
	if id.ResetTCP {
		var err error
		if done.ConnectionsCut, err = g.system.cutConnections(keep); err != nil {
			return done, err
		}
	}
	if id.GatewayMAC != "" {
		if err := g.system.setGateway(id.GatewayMAC); err != nil {
			return done, err
		}
	}
	if err := g.writeNames(id); err != nil {
		return done, err
	}
	if err := g.writeHostKeys(id.SSHHostKeys); err != nil {
		return done, err
	}
	number := g.next(id)
	if err := g.runHooks(id, number); err != nil {
		return done, err
	}
	if err := g.remember(id); err != nil {
		return done, err
	}
	// It never has fewer digits than the one before it, so that one write
	// replaces it: who watches the file reads it whole.
	if err := g.generation.set(append(strconv.AppendUint(g.buf[:0], number, 10), '\n')); err != nil {
		return done, err
	}
	g.number = number
	copy(g.entropy[:], id.Entropy)
	g.known, g.looked = true, true
	return done, nil
}

// again is an identity that took effect before: the host asks because an answer
// was late, or because the clock can be no better than the message was quick.
// All else stays as it is: what connected since belongs to the new life, among
// it the host.
func (g *Guest) again(id *guestapi.Identity, received time.Time, done *guestapi.IdentityConfirmation) error {
	done.EntropyBits = 8 * len(id.Entropy)
	if id.UnixNanos <= g.sent { // it was overtaken
		return nil
	}
	return g.step(id, received, done)
}

// step sets the clock to when the identity was sent, and what has passed since
// it arrived.
func (g *Guest) step(id *guestapi.Identity, received time.Time, done *guestapi.IdentityConfirmation) error {
	now := id.UnixNanos + int64(time.Since(received))
	done.ClockSteppedMS = (now - time.Now().UnixNano()) / int64(time.Millisecond)
	if err := g.system.setClock(now); err != nil {
		return err
	}
	g.sent = id.UnixNanos
	return nil
}

// Last is what an agent that starts again must know of the last identity.
type Last struct {
	Generation uint64            `json:"generation"`
	Env        map[string]string `json:"env"`
}

// Last returns the zero value before the first identity.
func (g *Guest) Last() (Last, error) {
	var last Last
	raw := make([]byte, g.last.size)
	n, err := unix.Pread(g.last.fd, raw, 0)
	if err != nil || n == 0 {
		return last, err
	}
	// Only the first value counts: the agent may have died between the writing
	// of a shorter one and the truncation.
	if err := json.NewDecoder(bytes.NewReader(raw[:n])).Decode(&last); err != nil {
		return last, fmt.Errorf("read the last identity: %w", err)
	}
	return last, nil
}

func (g *Guest) remember(id *guestapi.Identity) error {
	raw := strconv.AppendUint(append(g.buf[:0], `{"generation":`...), id.Generation, 10)
	if len(id.Env) > 0 {
		env, err := json.Marshal(id.Env)
		if err != nil {
			return err
		}
		raw = append(append(raw, `,"env":`...), env...)
	}
	return g.last.set(append(raw, '}'))
}

// RNDADDENTROPY and RNDRESEEDCRNG of linux/random.h.
const (
	rndAddEntropy = 0x40085203
	rndReseedCRNG = 0x5207
	maxEntropy    = 512
	entropyHeader = 8 // int entropy_count (bits), int buf_size (bytes)
	randomDevice  = "/dev/urandom"
)

// addEntropy credits the bytes and makes the generator start over from its
// pool at once; without the second call it may go on with the captured key for
// minutes.
func addEntropy(fd int, b []byte) error {
	var arg struct {
		bits, size int32
		buf        [maxEntropy]byte
	}
	arg.bits, arg.size = int32(8*len(b)), int32(len(b))
	copy(arg.buf[:], b)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), rndAddEntropy, uintptr(unsafe.Pointer(&arg))); e != 0 {
		return fmt.Errorf("credit entropy: %w", e)
	}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), rndReseedCRNG, 0); e != 0 {
		return fmt.Errorf("reseed the random number generator: %w", e)
	}
	return nil
}

const (
	entropyDevice = "/dev/hwrng"
	entropyWait   = 2 * time.Second
)

// Reseed gives the kernel's generator what the host's entropy device has: for a
// guest that goes on without an identity.
func Reseed() error {
	device, err := os.OpenFile(entropyDevice, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	fresh := make([]byte, minEntropy)
	for got, deadline := 0, time.Now().Add(entropyWait); got < len(fresh); {
		n, err := unix.Read(int(device.Fd()), fresh[got:])
		switch {
		case err == nil && n > 0:
			got += n
		case err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("read %s: %w", entropyDevice, err)
		case time.Now().After(deadline):
			return fmt.Errorf("%s has nothing", entropyDevice)
		default:
			time.Sleep(time.Millisecond) // the host's turn; such a device cannot be waited for
		}
	}
	random, err := unix.Open(randomDevice, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", randomDevice, err)
	}
	defer unix.Close(random)
	return addEntropy(random, fresh)
}

// setClock steps the wall clock.
func setClock(unixNanos int64) error {
	ts := unix.NsecToTimespec(unixNanos)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}

const (
	etcDir = "/etc/"
	sshDir = "/etc/ssh/"
)

func (g *Guest) writeNames(id *guestapi.Identity) error {
	hostname := g.line(id.Hostname)
	if err := g.system.setHostname(hostname[:len(hostname)-1]); err != nil {
		return fmt.Errorf("set the hostname: %w", err)
	}
	if err := g.place("hostname", hostname); err != nil {
		return err
	}
	hosts, err := g.newHosts(id.Hostname)
	if err != nil {
		return err
	}
	if err := g.place("hosts", hosts); err != nil {
		return err
	}
	if err := g.place("machine-id", g.line(id.MachineID)); err != nil {
		return err
	}
	if len(id.Nameservers) == 0 {
		return nil
	}
	return g.place("resolv.conf", resolvConf(g.buf[:0], id.Nameservers))
}

// place puts data where programs look for it in /etc: in runEtc, and in the
// file itself if the tenant put one in the place of the link.
func (g *Guest) place(name string, data []byte) error {
	const mode = 0o644
	opened, err := g.files.open(name, mode)
	if err != nil {
		return err
	}
	if err := opened.set(data); err != nil {
		return fmt.Errorf("write %s%s: %w", etcDir, name, err)
	}
	if g.isLinked(etcDir, opened) {
		return nil
	}
	return WriteFile(g.files.root+etcDir+name, data, mode)
}

// isLinked says whether the name in dir is still the link to the file.
func (g *Guest) isLinked(dir string, opened *file) bool {
	if g.look || !opened.linked {
		opened.linked = g.files.isLinked(dir+opened.name, opened.name)
	}
	return opened.linked
}

// line is s with a newline at its end.
func (g *Guest) line(s string) []byte {
	b := append(g.buf[:0], s...)
	if len(b) == 0 || b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	return b
}

func resolvConf(b []byte, servers []string) []byte {
	for _, s := range servers {
		b = append(append(append(b, "nameserver "...), s...), '\n')
	}
	return b
}

// writeHostKeys puts the host keys where sshd looks for them. It reads them when
// it starts; a template whose sshd runs when it is stored restarts it in a hook.
func (g *Guest) writeHostKeys(keys []guestapi.SSHHostKey) error {
	for i := range keys {
		public := keyFile(keys[i].Type)
		if err := g.placeKey(public[:len(public)-len(publicSuffix)], keys[i].Private, 0o600); err != nil {
			return err
		}
		if err := g.placeKey(public, keys[i].Public, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// placeKey also makes the link: which types there are is the host's to say.
func (g *Guest) placeKey(name, content string, mode uint32) error {
	opened, err := g.files.open(name, mode)
	if err != nil {
		return err
	}
	if err := opened.set(g.line(content)); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if g.isLinked(sshDir, opened) {
		return nil
	}
	if err := link(g.files.root+sshDir+name, g.files.dir+name); err != nil {
		return err
	}
	opened.linked = true
	return nil
}
