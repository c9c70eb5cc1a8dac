// Package identity gives a guest its own identity. Two guests restored from one
// state share everything until this ran: names, keys, the state of the random
// number generator, and a clock that stopped when the state was captured.
package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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
	case id.Generation == 0:
		return fmt.Errorf("%w: generation is 0", ErrInvalid)
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
		if !slices.Contains(keyTypes, k.Type) || k.Private == "" || k.Public == "" {
			return fmt.Errorf("%w: SSH host key of type %q", ErrInvalid, k.Type)
		}
	}
	for _, s := range id.Nameservers {
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

var keyTypes = []string{"ed25519", "ecdsa", "rsa"}

func validHostname(s string) bool {
	if s == "" || len(s) > 63 || strings.Trim(s, "-.") != s {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") == ""
}

func validMachineID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == "" && strings.Trim(s, "0") != ""
}

// Guest is the guest that identities are given to.
type Guest struct {
	Groups proc.Groups // for the template's hooks
}

// Apply makes the guest id's. received is when the request arrived, so that the
// time spent since is not lost to the clock; keep is the peer of the connection
// that the identity came by. What it reports took effect; after an error some
// of it may have, and the whole is to be applied again.
func (g Guest) Apply(ctx context.Context, id *guestapi.Identity, received time.Time, keep netip.AddrPort) (guestapi.IdentityConfirmation, error) {
	done := guestapi.IdentityConfirmation{Generation: id.Generation}
	// Random numbers come first: whatever runs meanwhile draws from them.
	if err := addEntropy(id.Entropy); err != nil {
		return done, err
	}
	done.EntropyBits = 8 * len(id.Entropy)
	stepped, err := stepClock(id.UnixNanos, received)
	if err != nil {
		return done, err
	}
	done.ClockSteppedMS = stepped.Milliseconds()
	if id.ResetTCP {
		if done.ConnectionsCut, err = cutConnections(keep); err != nil {
			return done, err
		}
	}
	if id.GatewayMAC != "" {
		if err := netcfg.SetGatewayMAC(id.GatewayMAC); err != nil {
			return done, err
		}
	}
	if err := writeNames(id); err != nil {
		return done, err
	}
	if err := writeHostKeys(sshDir, id.SSHHostKeys); err != nil {
		return done, err
	}
	if err := g.runHooks(ctx, guestapi.HookDir, id); err != nil {
		return done, err
	}
	generation := strconv.FormatUint(id.Generation, 10) + "\n"
	if err := WriteFile(guestapi.GenerationPath, []byte(generation), 0o644); err != nil {
		return done, err
	}
	done.TookMicrosecond = time.Since(received).Microseconds()
	return done, nil
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
func addEntropy(b []byte) error {
	f, err := os.OpenFile(randomDevice, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var arg struct {
		bits, size int32
		buf        [maxEntropy]byte
	}
	arg.bits, arg.size = int32(8*len(b)), int32(len(b))
	copy(arg.buf[:], b)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), rndAddEntropy, uintptr(unsafe.Pointer(&arg))); e != 0 {
		return fmt.Errorf("credit entropy: %w", e)
	}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), rndReseedCRNG, 0); e != 0 {
		return fmt.Errorf("reseed the random number generator: %w", e)
	}
	return nil
}

// stepClock sets the wall clock, and says by how much it was off.
func stepClock(unixNanos int64, received time.Time) (time.Duration, error) {
	want := unixNanos + int64(time.Since(received))
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	ts := unix.NsecToTimespec(want)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return 0, fmt.Errorf("set the clock: %w", err)
	}
	return time.Duration(want - now.Nano()), nil
}

const (
	hostnameFile  = "/etc/hostname"
	hostsFile     = "/etc/hosts"
	machineIDFile = "/etc/machine-id"
	resolvFile    = "/etc/resolv.conf"
	sshDir        = "/etc/ssh"
)

func writeNames(id *guestapi.Identity) error {
	if err := unix.Sethostname([]byte(id.Hostname)); err != nil {
		return fmt.Errorf("set the hostname: %w", err)
	}
	old, err := os.ReadFile(hostsFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	files := []struct {
		path string
		data []byte
	}{
		{hostnameFile, []byte(id.Hostname + "\n")},
		{hostsFile, hosts(old, id.Hostname)},
		{machineIDFile, []byte(id.MachineID + "\n")},
		{resolvFile, netcfg.ResolvConf(id.Nameservers)},
	}
	for _, f := range files {
		if len(f.data) == 0 {
			continue
		}
		if err := WriteFile(f.path, f.data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

const defaultHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

// hosts gives the guest's own name its line, 127.0.1.1 as Debian has it, and
// leaves what the tenant wrote.
func hosts(old []byte, hostname string) []byte {
	var b bytes.Buffer
	if len(bytes.TrimSpace(old)) == 0 {
		old = []byte(defaultHosts)
	}
	for line := range bytes.Lines(old) {
		if f := bytes.Fields(line); len(f) > 0 && string(f[0]) == "127.0.1.1" {
			continue
		}
		b.Write(line)
	}
	if b.Len() > 0 && b.Bytes()[b.Len()-1] != '\n' {
		b.WriteByte('\n')
	}
	b.WriteString("127.0.1.1\t" + hostname + "\n")
	return b.Bytes()
}

// writeHostKeys replaces the host keys by these, and removes those of any other
// type: they would be the same in every guest of the template.
func writeHostKeys(dir string, keys []guestapi.SSHHostKey) error {
	if len(keys) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, k := range keys {
		name := "ssh_host_" + k.Type + "_key"
		keep[name], keep[name+".pub"] = true, true
		if err := WriteFile(filepath.Join(dir, name), lineEnd(k.Private), 0o600); err != nil {
			return err
		}
		if err := WriteFile(filepath.Join(dir, name+".pub"), lineEnd(k.Public), 0o644); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		isKey := strings.HasPrefix(name, "ssh_host_") && strings.HasSuffix(strings.TrimSuffix(name, ".pub"), "_key")
		if isKey && !keep[name] {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func lineEnd(s string) []byte {
	return []byte(strings.TrimRight(s, "\n") + "\n")
}
