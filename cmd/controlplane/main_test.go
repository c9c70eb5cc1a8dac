package main

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"controlplane": func() {
		if err := command().ExecuteContext(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "controlplane:", err)
			os.Exit(1)
		}
	}})
}

func TestCommand(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata"})
}
