package main

import "testing"

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
