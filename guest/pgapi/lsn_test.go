package pgapi

import "testing"

func TestPositionsAreReadAsPostgreSQLWritesThem(t *testing.T) {
	for s, want := range map[string]uint64{"0/3000060": 0x3000060, "16/B374D848": 0x16B374D848, "A/1B000028": 0xA_1B000028} {
		if got, err := ParseLSN(s); err != nil || got != want {
			t.Errorf("%q is %X, %v, want %X", s, got, err, want)
		}
	}
	for _, s := range []string{"", "x/1", "1", "16", "1/100000000", "1/000000001", "/", "1/", "-1/0", "1/2/3"} {
		if got, err := ParseLSN(s); err == nil || got != 0 {
			t.Errorf("%q is read as %X", s, got)
		}
	}
}
