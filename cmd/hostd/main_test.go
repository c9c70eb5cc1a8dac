package main

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// VMMs open the files that hostd writes as users of their own, and directories of
// images become those of guests.
func TestUmaskOfTheCallerIsNotOurs(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	cmd := command()
	cmd.SetArgs([]string{"kernel", "extract", t.TempDir(), t.TempDir()})
	if err := cmd.Execute(); err == nil {
		t.Error("a kernel was found in an empty directory")
	}
	if got := unix.Umask(0o077); got != 0o022 {
		t.Errorf("it ran with umask %03o, want 022", got)
	}
}
