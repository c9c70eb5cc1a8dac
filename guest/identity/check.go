package identity

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// ErrInvalid is wrapped by errors that say which part of an identity is wrong.
var ErrInvalid = errors.New("invalid identity")

// minEntropy is what the kernel needs for a reseed to mean anything: 256 bits,
// twice, as the contract says.
const (
	minEntropy = 64
	maxEntropy = 512
)

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
		if !slices.Contains(keyTypes, k.Type) || k.Private == "" || k.Public == "" {
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
