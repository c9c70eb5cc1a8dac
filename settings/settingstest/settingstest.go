// Package settingstest tests that a daemon's settings are documented.
package settingstest

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/timescale"
)

var setting = regexp.MustCompile(`\bBERTH_[A-Z0-9_]+`)

// Documented fails the test if a help text lacks a setting of the configuration, or
// if it or a file of settings names one that does not exist.
func Documented[Config any](t *testing.T, help, file string) {
	t.Helper()
	there := []string{timescale.Env}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if name := setting.FindString(f.Tag.Get("env")); name != "" {
			there = append(there, name)
		}
	}
	slices.Sort(there)
	documented := setting.FindAllString(help, -1)
	slices.Sort(documented)
	if diff := cmp.Diff(there, slices.Compact(documented)); diff != "" {
		t.Errorf("settings that there are, and those of the help: %s", diff)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range setting.FindAllString(string(raw), -1) {
		if !slices.Contains(there, name) {
			t.Errorf("%s has %s, which is no setting", file, name)
		}
	}
}
