package timescale

import (
	"testing"
	"time"
)

func TestSetting(t *testing.T) {
	for _, c := range []struct {
		set  string
		want float64
		ok   bool
	}{
		{"", 1, true}, {"1", 1, true}, {"10", 10, true}, {"2.5", 2.5, true},
		{"0.5", 1, false}, {"0", 1, false}, {"-3", 1, false}, {"1001", 1, false},
		{"NaN", 1, false}, {"Inf", 1, false}, {"ten", 1, false}, {"10s", 1, false},
	} {
		got, err := parse(c.set)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %v, %v; want %v, accepted: %t", c.set, got, err, c.want, c.ok)
		}
	}
}

func TestASettingThatWasGivenStaysAsItIs(t *testing.T) {
	t.Setenv("BERTH_TEST_LIMIT", "3s")
	given := 3 * time.Second
	if Default(&given, "BERTH_TEST_LIMIT"); given != 3*time.Second {
		t.Errorf("a setting of 3s became %s", given)
	}
}
