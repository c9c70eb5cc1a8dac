package chvemu

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// options are the parts of Cloud Hypervisor's command line that package vmm uses
// (get_cli_options_sorted in cloud-hypervisor/src/main.rs).
type options struct {
	apiSocket    string
	eventMonitor string
	verbose      bool
	version      bool
}

const usage = `Serve Cloud Hypervisor's API and run the guest under QEMU.

Usage: chvemu --api-socket path=<socket> [OPTIONS]

Options:
  --api-socket path=<socket>   HTTP API socket (UNIX domain socket)
  --event-monitor path=<file>  file to report events on
  -v                           tell of calls and events too
  --version                    print version

Environment:
  BERTH_CHVEMU_ACCEL           tcg (default) or kvm
  BERTH_CHVEMU_QEMU            the QEMU to run (default: qemu-system-x86_64)
`

// parseOptions reads a command line. It is flag.ErrHelp where help is asked for.
func parseOptions(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("chvemu", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Func("api-socket", "", pathOption(&o.apiSocket))
	f.Func("event-monitor", "", pathOption(&o.eventMonitor))
	f.BoolVar(&o.verbose, "v", false, "")
	f.BoolVar(&o.version, "version", false, "")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.apiSocket == "" && !o.version:
		return o, errors.New("chvemu takes its VM over the API alone: --api-socket is required")
	}
	return o, nil
}

// pathOption reads "path=<path>".
func pathOption(to *string) func(string) error {
	return func(value string) error {
		path, ok := strings.CutPrefix(value, "path=")
		if !ok || path == "" {
			return errors.New("it is not path=<path>")
		}
		*to = path
		return nil
	}
}
