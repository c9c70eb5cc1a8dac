package main

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/berth-cloud/berth/controlplane"
	"github.com/berth-cloud/berth/controlplane/pgrouter"
	"github.com/berth-cloud/berth/settings/settingstest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"controlplane": func() {
		if err := command().ExecuteContext(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "controlplane:", err)
			os.Exit(1)
		}
	}})
}

// The help lists every setting and no others; the package's file has no others.
func TestDocumentedSettingsAreTheSettings(t *testing.T) {
	settingstest.Documented[controlplane.Config](t, command().Long, "../../scripts/packaging/controlplane.env")
	settingstest.Documented[pgrouter.Config](t, routerCommand().Long, "../../scripts/packaging/router.env")
}

func TestCommand(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata"})
}
