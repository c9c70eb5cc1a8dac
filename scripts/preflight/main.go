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

// check runs in the clone. For `make up` it checks ports, too. But then the remains
// of an earlier stack may still occupy ports, memory and disk, or the stack may still
// run: devstack finds out, and checks again.
func check(up bool) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	cache := preflight.Resolve(root, ".berth")
	if err := preflight.This.Check(cache, preflight.Resolve(root, "bin")); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(cache, "run")); err == nil && up {
		return nil
	}
	if err := preflight.This.CheckRoom(cache); err != nil || !up {
		return err
	}
	base, err := preflight.PortBase()
	if err != nil {
		return err
	}
	return preflight.CheckPorts(preflight.Ports(base, 3, 2))
}
