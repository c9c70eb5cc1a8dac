package domain

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for in, want := range map[string]string{
		"shop.example.com": "shop.example.com", "Shop.Example.COM.": "shop.example.com", "example.co.uk": "example.co.uk",
		"bücher.example.com": "xn--bcher-kva.example.com", "xn--bcher-kva.example.com": "xn--bcher-kva.example.com", "BÜCHER.example.com": "xn--bcher-kva.example.com",
		"shop。example.com": "shop.example.com", "a.b.c.d.example.org": "a.b.c.d.example.org", "me.github.io": "me.github.io", "1.example.com": "1.example.com",
	} {
		if got, err := Name(in); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", in, got, err, want)
		}
	}
	long := strings.Repeat("a23456789.", 24) + "example.com"
	for in, why := range map[string]string{
		"": "required", "localhost": "one label", "com": "one label", "*.example.com": "wildcard", "192.0.2.1": "address", "2001:db8::1": "host name alone", "[::1]": "host name alone",
		"https://example.com": "host name alone", "example.com:443": "host name alone", "user@example.com": "host name alone", "example.com/": "host name alone",
		"co.uk": "public suffix", "github.io": "public suffix", "db.internal": "public internet", "printer.local": "public internet", "nas.home.arpa": "public internet",
		"shop.localhost": "public internet", "shop.corp": "public internet", "shop.test": "public internet", "a_b.example.com": "no host name", "-a.example.com": "no host name",
		"a..example.com": "no host name", ".example.com": "no host name", "a b.example.com": "no host name", "a\x00.example.com": "no host name", "xn--a.example.com": "no host name",
		long: "longer", strings.Repeat("a", 64) + ".example.com": "no host name", strings.Repeat("x", 5000): "longer", "example.com..": "no host name",
		"１９２.0.2.1": "address", "0x7f.1": "public internet", "127.1": "public internet",
	} {
		got, err := Name(in)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.60q: %q %v, want %q", in, got, err, why)
		}
	}
	if apex("shop.example.com") || !apex("example.com") || !apex("example.co.uk") || !apex("me.github.io") {
		t.Error("apexes")
	}
}

// Whatever is taken is a host name, of which there is one form.
func FuzzName(f *testing.F) {
	for _, s := range []string{"shop.example.com", "bücher.example.com", "xn--bcher-kva.de", "127.0.0.1", "a.b", "ß.example.com", "\u200d.example.com", "co.uk", "*.x.com"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		name, err := Name(in)
		if err != nil {
			return
		}
		again, err := Name(name)
		if err != nil || again != name || !hostName(name) || len(name) > maxName || !strings.Contains(name, ".") {
			t.Errorf("%q: %q, then %q %v", in, name, again, err)
		}
	})
}
