package agent

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// decodeIdentity decodes an identity as encoding/json does. The quick way knows
// what json.Marshal makes of one; all else, and whatever is wrong, is
// encoding/json's to decode and to name.
//
// The identity's strings, except those of Env, lie in raw and in room.
func decodeIdentity(raw []byte, r *room, id *guestapi.Identity) error {
	*id = guestapi.Identity{}
	p := plain{raw: raw, room: r, scratch: r.scratch[:0]}
	if p.identity(id) {
		return nil
	}
	*id = guestapi.Identity{}
	return json.Unmarshal(raw, id)
}

// room is what most identities need no fresh memory beside: that is page faults,
// and those are slow in a guest restored a moment ago.
type room struct {
	scratch     [8 << 10]byte
	nameservers [4]string
	keys        [3]guestapi.SSHHostKey
}

// plain reads an identity as json.Marshal writes it: fields in their order, no
// space, no escapes but \n and a few more. Each method returns false at the
// first byte it does not expect.
type plain struct {
	raw     []byte
	at      int
	room    *room
	scratch []byte
}

// next reads exactly that.
func (p *plain) next(s string) bool {
	if len(p.raw)-p.at < len(s) || string(p.raw[p.at:p.at+len(s)]) != s {
		return false
	}
	p.at += len(s)
	return true
}

// str reads a string.
func (p *plain) str() ([]byte, bool) {
	if !p.next(`"`) {
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
	start := p.at
	var n uint64
	for p.at < len(p.raw) && p.raw[p.at] >= '0' && p.raw[p.at] <= '9' {
		n = 10*n + uint64(p.raw[p.at]-'0')
		p.at++
	}
	digits := p.at - start
	return n, digits > 0 && digits <= 18+1 && n <= 1<<63-1 && (digits == 1 || p.raw[start] != '0')
}

// base64 reads bytes. (That of the standard library is several times as long.)
func (p *plain) base64() ([]byte, bool) {
	text, ok := p.str()
	if !ok || len(text)%4 != 0 || len(text)/4*3 > cap(p.scratch)-len(p.scratch) {
		return nil, false
	}
	out := p.scratch[len(p.scratch):]
	var bits uint32
	for i, c := range text {
		v := digits64[c]
		if v < 0 {
			return p.padded(out, text[i:], bits, i%4)
		}
		bits = bits<<6 | uint32(v)
		if i%4 == 3 {
			out = append(out, byte(bits>>16), byte(bits>>8), byte(bits))
		}
	}
	p.scratch = p.scratch[:len(p.scratch)+len(out)]
	return out, true
}

// padded reads the end of it, from the first byte on that is no digit. The digits
// before hold bits that count for nothing; they may be anything.
func (p *plain) padded(out, rest []byte, bits uint32, digits int) ([]byte, bool) {
	switch {
	case digits == 2 && string(rest) == "==":
		out = append(out, byte(bits>>4))
	case digits == 3 && string(rest) == "=":
		out = append(out, byte(bits>>10), byte(bits>>2))
	default:
		return nil, false
	}
	p.scratch = p.scratch[:len(p.scratch)+len(out)]
	return out, true
}

// digits64 are the values of base64's digits; all other bytes are negative.
var digits64 = func() (values [256]int8) {
	for i := range values {
		values[i] = -1
	}
	for i, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") {
		values[c] = int8(i)
	}
	return values
}()

func (p *plain) string(to *string) bool {
	b, ok := p.str()
	*to = unsafe.String(unsafe.SliceData(b), len(b))
	return ok
}

func (p *plain) identity(id *guestapi.Identity) bool {
	var ok bool
	if !p.next(`{"generation":`) {
		return false
	}
	if id.Generation, ok = p.num(); !ok || !p.next(`,"unix_nanos":`) {
		return false
	}
	nanos, ok := p.num()
	if id.UnixNanos = int64(nanos); !ok || !p.next(`,"entropy":`) {
		return false
	}
	if id.Entropy, ok = p.base64(); !ok {
		return false
	}
	if !p.next(`,"hostname":`) || !p.string(&id.Hostname) || !p.next(`,"machine_id":`) || !p.string(&id.MachineID) {
		return false
	}
	if p.next(`,"env":{`) && !p.env(id) || p.next(`,"nameservers":[`) && !p.nameservers(id) || p.next(`,"ssh_host_keys":[`) && !p.hostKeys(id) {
		return false
	}
	id.ResetTCP = p.next(`,"reset_tcp":true`)
	id.Resumed = p.next(`,"resumed":true`)
	if p.next(`,"gateway_mac":`) && !p.string(&id.GatewayMAC) {
		return false
	}
	id.StayAwake = p.next(`,"stay_awake":true`)
	return p.next("}") && p.at == len(p.raw)
}

// env reads the variables, of which there is one at least.
func (p *plain) env(id *guestapi.Identity) bool {
	id.Env = map[string]string{}
	for {
		key, ok := p.str()
		name := string(key)
		var value string
		if _, twice := id.Env[name]; !ok || twice || !p.next(":") || !p.string(&value) {
			return false
		}
		id.Env[name] = strings.Clone(value)
		if p.next("}") {
			return true
		}
		if !p.next(",") {
			return false
		}
	}
}

// nameservers reads the addresses, of which there is one at least.
func (p *plain) nameservers(id *guestapi.Identity) bool {
	id.Nameservers = p.room.nameservers[:0]
	for {
		var s string
		if !p.string(&s) {
			return false
		}
		id.Nameservers = append(id.Nameservers, s)
		if p.next("]") {
			return true
		}
		if !p.next(",") {
			return false
		}
	}
}

// hostKeys reads the keys, of which there is one at least.
func (p *plain) hostKeys(id *guestapi.Identity) bool {
	id.SSHHostKeys = p.room.keys[:0]
	for {
		var k guestapi.SSHHostKey
		if !p.next(`{"type":`) || !p.string(&k.Type) || !p.next(`,"private":`) || !p.string(&k.Private) ||
			!p.next(`,"public":`) || !p.string(&k.Public) || !p.next("}") {
			return false
		}
		id.SSHHostKeys = append(id.SSHHostKeys, k)
		if p.next("]") {
			return true
		}
		if !p.next(",") {
			return false
		}
	}
}
