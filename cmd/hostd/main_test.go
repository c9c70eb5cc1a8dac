package main

import (
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd"
	"github.com/berth-cloud/berth/settings/settingstest"
)

func TestASettingThatCannotBeReadIsNamed(t *testing.T) {
	t.Setenv("BERTH_AGENT_ID", "h1")
	for name, value := range map[string]string{"BERTH_SLOTS": "many", "BERTH_CREATE_TIMEOUT": "soon", "BERTH_LOG_LEVEL": "loud"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if _, err := config(); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%s: %v", name, value, err)
			}
		})
	}
}

// The help has every setting, and none that there is not; so has the package's file.
func TestSettingsThatAreToldAreThoseThereAre(t *testing.T) {
	settingstest.Documented[hostd.Config](t, command().Long, "../../scripts/packaging/hostd.env")
}

// Tenants' guests need not trust what the host trusts.
func TestNoAuthoritiesForGuests(t *testing.T) {
	t.Setenv("BERTH_AGENT_ID", "h1")
	for dir, want := range map[string]string{"": "", "/etc/ours": "/etc/ours"} {
		t.Setenv("BERTH_GUEST_CAS", dir)
		if cfg, err := config(); err != nil || cfg.GuestCAs != want {
			t.Errorf("BERTH_GUEST_CAS=%q: %q, %v", dir, cfg.GuestCAs, err)
		}
	}
}
