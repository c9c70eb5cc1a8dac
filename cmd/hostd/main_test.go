package main

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/hostd"
	"github.com/berth-cloud/berth/timescale"
)

var setting = regexp.MustCompile(`\bBERTH_[A-Z0-9_]+`)

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
	there := []string{timescale.Env}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[hostd.Config]()) {
		if name := setting.FindString(f.Tag.Get("env")); name != "" {
			there = append(there, name)
		}
	}
	slices.Sort(there)
	told := setting.FindAllString(command().Long, -1)
	slices.Sort(told)
	if diff := cmp.Diff(there, slices.Compact(told)); diff != "" {
		t.Errorf("settings that there are, and those of the help: %s", diff)
	}
	file, err := os.ReadFile("../../scripts/packaging/hostd.env")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range setting.FindAllString(string(file), -1) {
		if !slices.Contains(there, name) {
			t.Errorf("the package's file has %s, which is no setting", name)
		}
	}
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
