// Command preflight refuses, before anything is built, a machine that cannot run
// a stack.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cloud/berth/scripts/devstack/preflight"
)

func main() {
	if err := check(len(os.Args) > 1 && os.Args[1] == "--ports"); err != nil {
		fmt.Fprintln(os.Stderr, "preflight: "+err.Error())
		os.Exit(1)
	}
}

// check runs in the clone. It checks ports only for `make up`, and not if the
// remains of an earlier stack may still occupy them.
func check(ports bool) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	cache := preflight.Resolve(root, ".berth")
	if err := preflight.This.Check(cache, preflight.Resolve(root, "bin")); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(cache, "run")); err == nil || !ports {
		return nil
	}
	base, err := preflight.PortBase()
	if err != nil {
		return err
	}
	return preflight.CheckPorts(preflight.Ports(base, 3, 2))
}
