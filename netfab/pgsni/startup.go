package pgsni

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Request codes that stand where a StartupMessage has its version (manual,
// "Message Formats").
const (
	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSSEnc = 80877104
)

// Lengths in bytes. PostgreSQL's own limit of a start-up packet is 10,000
// without the length field (MAX_STARTUP_PACKET_LENGTH).
const (
	packetHead    = 8 // length and code
	maxPacket     = 4 + 10_000
	maxSecret     = 256 // of a cancel key, protocol 3.2
	cancelHead    = packetHead + 4
	tlsHandshake  = 0x16 // first byte of a TLS record that holds a ClientHello
	protocolMajor = 3
)

// errPacketLength is of packets that PostgreSQL answers by closing.
var errPacketLength = errors.New("invalid length of start-up packet")

// packet is one of the messages without a type that a connection begins with.
type packet struct {
	code uint32
	raw  []byte // all of it, with length and code
}

// readHead reads what every such packet has, and is shorter than any ClientHello.
func readHead(r io.Reader) ([]byte, error) {
	head := make([]byte, packetHead)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	return head, nil
}

// readBody reads the rest of the packet that begins with head.
func readBody(r io.Reader, head []byte) (packet, error) {
	length := binary.BigEndian.Uint32(head)
	if length < packetHead || length > maxPacket {
		return packet{}, fmt.Errorf("%w: %d", errPacketLength, length)
	}
	raw := make([]byte, length)
	copy(raw, head)
	if _, err := io.ReadFull(r, raw[packetHead:]); err != nil {
		return packet{}, err
	}
	return packet{code: binary.BigEndian.Uint32(head[4:]), raw: raw}, nil
}

func readPacket(r io.Reader) (packet, error) {
	head, err := readHead(r)
	if err != nil {
		return packet{}, err
	}
	return readBody(r, head)
}

// cancelKey parses a CancelRequest.
func (p packet) cancelKey() (CancelKey, error) {
	if len(p.raw) <= cancelHead || len(p.raw) > cancelHead+maxSecret {
		return CancelKey{}, fmt.Errorf("%w: %d for a cancel request", errPacketLength, len(p.raw))
	}
	return CancelKey{
		PID:    binary.BigEndian.Uint32(p.raw[packetHead:]),
		Secret: slices.Clone(p.raw[cancelHead:]),
	}, nil
}

// startup is a StartupMessage. It goes to the server as it came.
type startup struct {
	raw    []byte
	params []param // in the client's order, doubles and all
}

type param struct{ name, value string }

// parseStartup takes apart a StartupMessage, or says why it is none.
func parseStartup(p packet) (*startup, error) {
	if major := p.code >> 16; major != protocolMajor {
		return nil, refuse(codeUnsupported, "unsupported frontend protocol %d.%d: server supports 3.0 to 3.2", major, p.code&0xffff)
	}
	s := &startup{raw: p.raw}
	body := p.raw[packetHead:]
	for {
		name, rest, ok := cutString(body)
		if !ok {
			return nil, badLayout()
		}
		if name == "" {
			if len(rest) != 0 {
				return nil, badLayout()
			}
			return s, nil
		}
		value, rest, ok := cutString(rest)
		if !ok {
			return nil, badLayout()
		}
		s.params = append(s.params, param{name, value})
		body = rest
	}
}

// cutString cuts a string that ends with a NUL off the front.
func cutString(b []byte) (s string, rest []byte, ok bool) {
	before, after, ok := bytes.Cut(b, []byte{0})
	return string(before), after, ok
}

func badLayout() *Refusal {
	return refuse(codeProtocolViolation, "invalid startup packet layout: expected terminator as last byte")
}

// get is the value that PostgreSQL would use: of a parameter that is there twice
// the last.
func (s *startup) get(name string) string {
	for _, p := range slices.Backward(s.params) {
		if p.name == name {
			return p.value
		}
	}
	return ""
}

// replication says whether the client asks for a walsender. Anything but a clear
// no counts as yes: "database", and whatever the server takes for true.
func (s *startup) replication() bool {
	return slices.ContainsFunc(s.params, func(p param) bool {
		return p.name == "replication" && !slices.Contains([]string{"false", "off", "no", "0"}, strings.ToLower(p.value))
	})
}

// minor is the protocol's minor version.
func (s *startup) minor() uint32 { return binary.BigEndian.Uint32(s.raw[4:]) & 0xffff }

// protocolOptions are the names of the protocol extensions asked for.
func (s *startup) protocolOptions() []string {
	var names []string
	for _, p := range s.params {
		if isProtocolOption(p.name) {
			names = append(names, p.name)
		}
	}
	return names
}

func isProtocolOption(name string) bool { return strings.HasPrefix(name, "_pq_.") }
