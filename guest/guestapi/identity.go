package guestapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Identity is what makes a restored guest distinct: two guests that were restored
// from one state must share no names, keys or random numbers, nor a stale clock.
type Identity struct {
	Generation  uint64 // 0 while a template is built, then from 1
	UnixNanos   int64  // host wall clock at sending
	ResetTCP    bool   // abort the connections the captured guest had
	Resumed     bool   // it only stood still: its commands keep their callers
	Entropy     []byte // at least 64 bytes, credited to the kernel
	Hostname    string
	MachineID   string // 32 lower-case hex digits
	GatewayMAC  string
	Nameservers []string
	SSHHostKeys []SSHHostKey
	Env         map[string]string
}

// SSHHostKey is one host key pair, in the formats of sshd's files.
type SSHHostKey struct {
	Type    string // "ed25519", "ecdsa" or "rsa": the <type> of ssh_host_<type>_key
	Private string // PEM, OPENSSH PRIVATE KEY
	Public  string // one authorized_keys line
}

// IdentityConfirmation is sent when every part of an Identity is in effect. If a
// part fails, the answer is an error.
type IdentityConfirmation struct {
	Generation      uint64 `json:"generation"`
	EntropyBits     int    `json:"entropy_bits"`      // credited and reseeded
	ClockSteppedMS  int64  `json:"clock_stepped_ms"`  // how far the clock was off
	ConnectionsCut  int    `json:"connections_cut"`   // TCP connections reset
	TookMicrosecond int64  `json:"took_microseconds"` // inside the guest
}

// MaxIdentity bounds the message that an Identity is sent as, in bytes. A guest of a
// template that was stored earlier takes 1 MiB.
const MaxIdentity = 2 << 20

// ErrIdentityFormat is wrapped by errors about messages that cannot be decoded.
var ErrIdentityFormat = errors.New("identity message")

// The message is, in this order and big-endian:
//
//	version       1 byte, identityVersion
//	flags         1 byte: identityResetTCP, identityResumed
//	generation    8 bytes
//	unix_nanos    8 bytes, signed
//	entropy, hostname, machine id, gateway's MAC
//	nameservers   their number, then each
//	host keys     their number, then each one's type, private and public part
//	variables     their number, then each one's name and value, sorted by name
//
// A number is 2 bytes. All else is a length in 4 bytes and as many bytes. An
// identity has exactly one encoding, and nothing follows it.
const (
	identityVersion = 1

	identityResetTCP = 1 << 0
	identityResumed  = 1 << 1
)

// MarshalBinary returns the message. It fails where that is larger than MaxIdentity.
func (id *Identity) MarshalBinary() ([]byte, error) {
	if most := max(len(id.Nameservers), len(id.SSHHostKeys), len(id.Env)); most > math.MaxUint16 {
		return nil, fmt.Errorf("%w: a list of %d entries", ErrIdentityFormat, most)
	}
	var flags byte
	if id.ResetTCP {
		flags |= identityResetTCP
	}
	if id.Resumed {
		flags |= identityResumed
	}
	b := []byte{identityVersion, flags}
	b = binary.BigEndian.AppendUint64(b, id.Generation)
	b = binary.BigEndian.AppendUint64(b, uint64(id.UnixNanos))
	b = appendStrings(b, string(id.Entropy), id.Hostname, id.MachineID, id.GatewayMAC)
	b = appendStrings(appendCount(b, len(id.Nameservers)), id.Nameservers...)
	b = appendCount(b, len(id.SSHHostKeys))
	for _, k := range id.SSHHostKeys {
		b = appendStrings(b, k.Type, k.Private, k.Public)
	}
	b = appendCount(b, len(id.Env))
	for _, name := range slices.Sorted(maps.Keys(id.Env)) {
		b = appendStrings(b, name, id.Env[name])
	}
	if len(b) > MaxIdentity {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are sent", ErrIdentityFormat, len(b), MaxIdentity)
	}
	return b, nil
}

func appendCount(b []byte, n int) []byte { return binary.BigEndian.AppendUint16(b, uint16(n)) }

func appendStrings(b []byte, all ...string) []byte {
	for _, s := range all {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	return b
}

// UnmarshalBinary decodes what MarshalBinary returned, and refuses all else. After
// an error the content of id is undefined.
func (id *Identity) UnmarshalBinary(raw []byte) error {
	r := identityReader{rest: raw}
	if len(raw) > MaxIdentity {
		return fmt.Errorf("%w: %d bytes, at most %d are read", ErrIdentityFormat, len(raw), MaxIdentity)
	}
	if v := r.byte(); r.err == nil && v != identityVersion {
		return fmt.Errorf("%w: it is of version %d, and %d is read here", ErrIdentityFormat, v, identityVersion)
	}
	flags := r.byte()
	if flags&^(identityResetTCP|identityResumed) != 0 {
		r.fail("unknown flags")
	}
	*id = Identity{
		ResetTCP: flags&identityResetTCP != 0, Resumed: flags&identityResumed != 0,
		Generation: r.uint64(), UnixNanos: int64(r.uint64()),
		Entropy: []byte(r.string()), Hostname: r.string(), MachineID: r.string(), GatewayMAC: r.string(),
	}
	for n := r.count(); n > 0 && r.err == nil; n-- {
		id.Nameservers = append(id.Nameservers, r.string())
	}
	for n := r.count(); n > 0 && r.err == nil; n-- {
		id.SSHHostKeys = append(id.SSHHostKeys, SSHHostKey{Type: r.string(), Private: r.string(), Public: r.string()})
	}
	id.Env = r.env()
	if len(r.rest) != 0 {
		r.fail("something follows it")
	}
	return r.err
}

// identityReader decodes a message field by field. After the first error every
// field is empty.
type identityReader struct {
	rest []byte
	err  error
}

func (r *identityReader) fail(reason string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrIdentityFormat, reason)
	}
	r.rest = nil
}

func (r *identityReader) bytes(n uint32) []byte {
	if uint64(len(r.rest)) < uint64(n) {
		r.fail("it is cut short")
		n = 0
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

// word is an unsigned number of n bytes, 0 after an error.
func (r *identityReader) word(n uint32) uint64 {
	var word [8]byte
	b := r.bytes(n)
	copy(word[8-len(b):], b)
	return binary.BigEndian.Uint64(word[:])
}

func (r *identityReader) byte() byte     { return byte(r.word(1)) }
func (r *identityReader) count() int     { return int(r.word(2)) }
func (r *identityReader) uint64() uint64 { return r.word(8) }
func (r *identityReader) string() string { return string(r.bytes(uint32(r.word(4)))) }

func (r *identityReader) env() map[string]string {
	n := r.count()
	if n == 0 {
		return nil
	}
	env := map[string]string{}
	last := ""
	for i := range n {
		name, value := r.string(), r.string()
		if r.err == nil && i > 0 && name <= last {
			r.fail("its variables are not sorted, or one comes twice")
		}
		if r.err != nil {
			return nil
		}
		env[name], last = value, name
	}
	return env
}
