// Command extract is what scripts/fetch-kernel runs: it takes a guest's kernel
// and modules out of an unpacked kernel package.
package main

import (
	"fmt"
	"os"

	"github.com/berth-cloud/berth/hostd/image/kernel"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: extract PACKAGE-ROOT DIR")
		os.Exit(2)
	}
	release, err := kernel.Extract(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "extract:", err)
		os.Exit(1)
	}
	fmt.Println(release)
}
