// Command chvemu serves Cloud Hypervisor's API and runs the guest under QEMU,
// for machines without hardware virtualization. See vmm/chvemu/DESIGN.md.
package main

import (
	"os"

	"github.com/berth-cloud/berth/vmm/chvemu"
)

func main() {
	os.Exit(chvemu.Main(os.Args[1:], os.Stdout, os.Stderr))
}
