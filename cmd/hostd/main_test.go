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

// The help lists every setting and no others; the package's file has no others.
func TestDocumentedSettingsAreTheSettings(t *testing.T) {
	settingstest.Documented[hostd.Config](t, command().Long, "../../scripts/packaging/hostd.env")
}

// An empty setting keeps the host's authorities out of guests.
func TestNoAuthoritiesForGuests(t *testing.T) {
	t.Setenv("BERTH_AGENT_ID", "h1")
	for dir, want := range map[string]string{"": "", "/etc/ours": "/etc/ours"} {
		t.Setenv("BERTH_GUEST_CAS", dir)
		if cfg, err := config(); err != nil || cfg.GuestCAs != want {
			t.Errorf("BERTH_GUEST_CAS=%q: %q, %v", dir, cfg.GuestCAs, err)
		}
	}
}
