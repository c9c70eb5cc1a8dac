package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/berth-cloud/berth/controlplane"
	"github.com/berth-cloud/berth/timescale"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"controlplane": func() {
		if err := command().ExecuteContext(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "controlplane:", err)
			os.Exit(1)
		}
	}})
}

var setting = regexp.MustCompile(`\bBERTH_[A-Z0-9_]+`)

// The help has every setting, and none that there is not; so has the package's file.
func TestSettingsThatAreToldAreThoseThereAre(t *testing.T) {
	there := []string{timescale.Env}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[controlplane.Config]()) {
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
	file, err := os.ReadFile("../../scripts/packaging/controlplane.env")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range setting.FindAllString(string(file), -1) {
		if !slices.Contains(there, name) {
			t.Errorf("the package's file has %s, which is no setting", name)
		}
	}
}

func TestCommand(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata"})
}
