package settings

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestWrongValueIsNamedWithWhatItHasToBe(t *testing.T) {
	type Embedded struct {
		Idle *time.Duration `env:"BERTH_TEST_IDLE"`
	}
	type config struct {
		Embedded
		Lease  time.Duration   `env:"BERTH_TEST_LEASE"`
		Delays []time.Duration `env:"BERTH_TEST_DELAYS"`
		Slots  int             `env:"BERTH_TEST_SLOTS"`
		Open   bool            `env:"BERTH_TEST_OPEN"`
		Level  slog.Level      `env:"BERTH_TEST_LEVEL"`
	}
	for name, c := range map[string]struct{ value, want string }{
		"BERTH_TEST_IDLE":   {"1", "such as 30s"},
		"BERTH_TEST_LEASE":  {"30", "such as 30s"},
		"BERTH_TEST_DELAYS": {"1m,x", "separated by commas"},
		"BERTH_TEST_SLOTS":  {"many", "a whole number"},
		"BERTH_TEST_OPEN":   {"maybe", "true or false"},
		"BERTH_TEST_LEVEL":  {"loud", "debug, info, warn or error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, c.value)
			_, err := Read[config]()
			if err == nil || !strings.Contains(err.Error(), name+` is "`+c.value+`"`) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s and %s", err, name, c.want)
			}
		})
	}
}
