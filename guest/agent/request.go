package agent

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// decodeIdentity decodes an identity as encoding/json does. The quick way knows
// the plain JSON that Go's encoder writes; whatever it does not know, and
// whatever is wrong, is encoding/json's to decode and to name.
//
// The identity's strings, except those of Env, lie in raw and in scratch.
func decodeIdentity(raw, scratch []byte, id *guestapi.Identity) error {
	p := plain{raw: raw, scratch: scratch[:0]}
	if p.identity(id) {
		return nil
	}
	*id = guestapi.Identity{}
	return json.Unmarshal(raw, id)
}

// plain reads plain JSON: no escapes but \n and a few more, integers only, no
// null. Each method returns false at the first byte it does not expect. What it
// returns lies in raw or in scratch: it allocates next to nothing, because fresh
// memory is page faults, and those are slow in a guest restored a moment ago.
type plain struct {
	raw     []byte
	at      int
	scratch []byte
}

func (p *plain) next(c byte) bool {
	for p.at < len(p.raw) && (p.raw[p.at] == ' ' || p.raw[p.at] == '\n') {
		p.at++
	}
	if p.at < len(p.raw) && p.raw[p.at] == c {
		p.at++
		return true
	}
	return false
}

// str reads a string.
func (p *plain) str() ([]byte, bool) {
	if !p.next('"') {
		return nil, false
	}
	start := p.at
	for ; p.at < len(p.raw); p.at++ {
		switch c := p.raw[p.at]; {
		case c == '"':
			p.at++
			return p.raw[start : p.at-1], true
		case c == '\\':
			return p.escaped(start)
		case c < ' ' || c >= utf8.RuneSelf:
			return nil, false
		}
	}
	return nil, false
}

func (p *plain) escaped(start int) ([]byte, bool) {
	from := len(p.scratch)
	out := append(p.scratch, p.raw[start:p.at]...)
	for ; p.at < len(p.raw); p.at++ {
		c := p.raw[p.at]
		switch {
		case c == '"':
			p.at++
			p.scratch = out
			return out[from:], true
		case c < ' ' || c >= utf8.RuneSelf:
			return nil, false
		case c == '\\':
			p.at++
			if p.at == len(p.raw) {
				return nil, false
			}
			switch p.raw[p.at] {
			case 'n':
				c = '\n'
			case '"', '\\', '/':
				c = p.raw[p.at]
			default:
				return nil, false
			}
		}
		out = append(out, c)
	}
	return nil, false
}

// num reads an integer of up to 19 digits.
func (p *plain) num() (uint64, bool) {
	p.next(' ')
	start := p.at
	var n uint64
	for p.at < len(p.raw) && p.raw[p.at] >= '0' && p.raw[p.at] <= '9' {
		n = 10*n + uint64(p.raw[p.at]-'0')
		p.at++
	}
	digits := p.at - start
	if digits == 0 || digits > 18+1 || n > 1<<63-1 || (digits > 1 && p.raw[start] == '0') {
		return 0, false
	}
	return n, p.at == len(p.raw) || p.raw[p.at] == ',' || p.raw[p.at] == '}'
}

func (p *plain) boolean() (value, ok bool) {
	rest := p.raw[p.at:]
	switch {
	case bytes.HasPrefix(rest, []byte("true")):
		p.at += 4
		return true, true
	case bytes.HasPrefix(rest, []byte("false")):
		p.at += 5
		return false, true
	}
	return false, false
}

// object reads {"key":value,…}; field reads the value. A key that comes twice
// is not plain.
func (p *plain) object(field func(key []byte) bool) bool {
	if !p.next('{') {
		return false
	}
	if p.next('}') {
		return true
	}
	for {
		key, ok := p.str()
		if !ok || !p.next(':') || !field(key) {
			return false
		}
		if p.next('}') {
			return true
		}
		if !p.next(',') {
			return false
		}
	}
}

func (p *plain) array(element func() bool) bool {
	if !p.next('[') {
		return false
	}
	if p.next(']') {
		return true
	}
	for element() {
		if p.next(']') {
			return true
		}
		if !p.next(',') {
			return false
		}
	}
	return false
}

func (p *plain) string(to *string) bool {
	b, ok := p.str()
	*to = unsafe.String(unsafe.SliceData(b), len(b))
	return ok
}

func (p *plain) identity(id *guestapi.Identity) bool {
	seen := 0
	once := func(bit int) bool {
		first := seen&(1<<bit) == 0
		seen |= 1 << bit
		return first
	}
	whole := p.object(func(key []byte) bool {
		var n uint64
		var ok bool
		switch string(key) {
		case "generation":
			id.Generation, ok = p.num()
			return ok && once(0)
		case "unix_nanos":
			n, ok = p.num()
			id.UnixNanos = int64(n)
			return ok && once(1)
		case "entropy":
			b, ok := p.str()
			if !ok || !once(2) {
				return false
			}
			from := len(p.scratch)
			p.scratch = slices.Grow(p.scratch, base64.StdEncoding.DecodedLen(len(b)))
			size, err := base64.StdEncoding.Decode(p.scratch[from:cap(p.scratch)], b)
			p.scratch = p.scratch[:from+size]
			id.Entropy = p.scratch[from:]
			return err == nil
		case "hostname":
			return p.string(&id.Hostname) && once(3)
		case "machine_id":
			return p.string(&id.MachineID) && once(4)
		case "gateway_mac":
			return p.string(&id.GatewayMAC) && once(5)
		case "resumed":
			id.Resumed, ok = p.boolean()
			return ok && once(10)
		case "reset_tcp":
			id.ResetTCP, ok = p.boolean()
			return ok && once(6)
		case "env":
			id.Env = map[string]string{}
			return once(7) && p.object(func(key []byte) bool {
				name := string(key)
				var value string
				_, twice := id.Env[name]
				ok := !twice && p.string(&value)
				id.Env[name] = strings.Clone(value)
				return ok
			})
		case "nameservers":
			id.Nameservers = []string{}
			return once(8) && p.array(func() bool {
				var s string
				ok := p.string(&s)
				id.Nameservers = append(id.Nameservers, s)
				return ok
			})
		case "ssh_host_keys":
			id.SSHHostKeys = []guestapi.SSHHostKey{}
			return once(9) && p.array(func() bool {
				var k guestapi.SSHHostKey
				ok := p.hostKey(&k)
				id.SSHHostKeys = append(id.SSHHostKeys, k)
				return ok
			})
		}
		return false
	})
	return whole && p.end()
}

func (p *plain) hostKey(k *guestapi.SSHHostKey) bool {
	return p.object(func(key []byte) bool {
		switch string(key) {
		case "type":
			return k.Type == "" && p.string(&k.Type)
		case "private":
			return k.Private == "" && p.string(&k.Private)
		case "public":
			return k.Public == "" && p.string(&k.Public)
		}
		return false
	})
}

func (p *plain) end() bool {
	for _, c := range p.raw[p.at:] {
		if c != ' ' && c != '\n' {
			return false
		}
	}
	return true
}
