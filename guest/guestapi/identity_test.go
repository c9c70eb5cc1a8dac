package guestapi

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testIdentity() Identity {
	return Identity{
		Generation: 9, UnixNanos: 1795182929123456789, ResetTCP: true, Resumed: true,
		Entropy: bytes.Repeat([]byte{0, 1, 0x7f, 0xff}, 16), Hostname: "box-1", MachineID: strings.Repeat("ab", 16),
		GatewayMAC: "52:54:00:be:47:01", Nameservers: []string{"198.18.0.1", "2001:db8::1"},
		SSHHostKeys: []SSHHostKey{{Type: "ed25519", Private: "A\nB\n", Public: "ssh-ed25519 é"}},
		Env:         map[string]string{"PATH": "/bin", "EMPTY": "", "LINES": "a\nb\x01"},
	}
}

func TestIdentityComesBack(t *testing.T) {
	large := testIdentity()
	large.Env["LARGE"] = strings.Repeat("x", MaxIdentity-1000)
	for name, id := range map[string]Identity{"full": testIdentity(), "large": large, "smallest": {Entropy: []byte{}}} {
		raw, err := id.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var got Identity
		if err := got.UnmarshalBinary(raw); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(id, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A guest that was stored yesterday reads what the host writes today.
func TestIdentityVersion1(t *testing.T) {
	golden, err := os.ReadFile("testdata/identity-1")
	if err != nil {
		t.Fatal(err)
	}
	want := testIdentity()
	var got Identity
	if err := got.UnmarshalBinary(golden); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if raw, err := want.MarshalBinary(); err != nil || !bytes.Equal(raw, golden) {
		t.Errorf("written as\n%q, %v, want\n%q", raw, err, golden)
	}
}

func TestIdentityThatIsTooLarge(t *testing.T) {
	id := testIdentity()
	id.Env["LARGE"] = strings.Repeat("x", MaxIdentity)
	if _, err := id.MarshalBinary(); !errors.Is(err, ErrIdentityFormat) {
		t.Errorf("written: %v", err)
	}
	id = Identity{Nameservers: make([]string, 1<<16)}
	if _, err := id.MarshalBinary(); !errors.Is(err, ErrIdentityFormat) {
		t.Errorf("a list of 65,536: %v", err)
	}
	if err := id.UnmarshalBinary(make([]byte, MaxIdentity+1)); !errors.Is(err, ErrIdentityFormat) {
		t.Errorf("read: %v", err)
	}
}

func TestBadIdentityMessages(t *testing.T) {
	id := testIdentity()
	raw, err := id.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	for n := range raw {
		var got Identity
		if err := got.UnmarshalBinary(raw[:n]); !errors.Is(err, ErrIdentityFormat) {
			t.Errorf("%d bytes of %d: %v", n, len(raw), err)
		}
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"of another version": {"\x01\x03\x00", "\x02\x03\x00", "version 2"},
		"of JSON":            {"\x01\x03\x00", "{\"g", "version 123"},
		"unknown flag":       {"\x01\x03\x00", "\x01\x07\x00", "unknown flags"},
		"huge length":        {"\x00\x00\x00\x05box-1", "\xff\xff\xff\xffbox-1", "cut short"},
		"many entries":       {"\x00\x02\x00\x00\x00\x0a198.", "\xff\xff\x00\x00\x00\x0a198.", "cut short"},
		"variable twice":     {"\x00\x00\x00\x05EMPTY", "\x00\x00\x00\x05LINES", "sorted"},
		"a byte at its end":  {"/bin", "/bin\x00", "follows"},
	} {
		bad := bytes.Replace(raw, []byte(c.old), []byte(c.new), 1)
		var got Identity
		if err := got.UnmarshalBinary(bad); bytes.Equal(bad, raw) || !errors.Is(err, ErrIdentityFormat) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// FuzzIdentity has each identity read from one message alone.
func FuzzIdentity(f *testing.F) {
	id := testIdentity()
	raw, err := id.MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var id Identity
		err := id.UnmarshalBinary(raw)
		if err != nil {
			if !errors.Is(err, ErrIdentityFormat) {
				t.Errorf("%v", err)
			}
			return
		}
		if again, err := id.MarshalBinary(); err != nil || !bytes.Equal(again, raw) {
			t.Errorf("%q is written as %q, %v", raw, again, err)
		}
	})
}
