package chvemu

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// options are the parts of Cloud Hypervisor's command line that are supported
// (get_cli_options_sorted in cloud-hypervisor/src/main.rs).
type options struct {
	apiSocket    string
	eventMonitor string
	logFile      string
	verbosity    int
	version      bool
	help         bool
}

const usage = `Serve Cloud Hypervisor's API and run the guest under QEMU.

Usage: chvemu --api-socket path=<socket> [OPTIONS]

Options:
      --api-socket <path>     HTTP API socket (UNIX domain socket): path=</path/to/a/file>
      --event-monitor <file>  File to report events on: path=</path/to/a/file>
      --log-file <file>       Log file. Standard error is used if not specified
      --seccomp <mode>        true, false, log or errno; QEMU is always sandboxed
  -v...                       Sets the level of debugging output
  -V, --version               Print version
  -h, --help                  Print help

Environment:
  BERTH_CHVEMU_ACCEL          tcg (default), kvm, or auto
  BERTH_CHVEMU_QEMU           the QEMU to run (default: qemu-system-x86_64)
`

// errUsage is a command line that cannot be understood. The program ends with
// code 2 then, as one built with clap does.
var errUsage = errors.New("usage")

func parseOptions(args []string) (options, error) {
	var o options
	if len(args) == 0 {
		o.help = true
		return o, errUsage // arg_required_else_help
	}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		name, value, inline := strings.Cut(arg, "=")
		if !strings.HasPrefix(arg, "--") {
			name, inline = arg, false
		}
		take := func() (string, error) {
			if inline {
				return value, nil
			}
			if len(args) == 0 {
				return "", fmt.Errorf("%w: a value is required for '%s' but none was supplied", errUsage, name)
			}
			v := args[0]
			args = args[1:]
			return v, nil
		}
		var err error
		switch {
		case name == "--version" || name == "-V":
			o.version = true
		case name == "--help" || name == "-h":
			o.help = true
		case len(arg) > 1 && strings.Trim(arg, "v") == "-":
			o.verbosity += len(arg) - 1
		case name == "--api-socket":
			o.apiSocket, err = pathOption(take, true)
		case name == "--event-monitor":
			o.eventMonitor, err = pathOption(take, false)
		case name == "--log-file":
			o.logFile, err = take()
		case name == "--seccomp":
			var mode string
			mode, err = take()
			if err == nil && !slices.Contains([]string{"true", "false", "log", "errno"}, mode) {
				err = fmt.Errorf("%w: invalid value '%s' for '--seccomp'", errUsage, mode)
			}
		default:
			err = fmt.Errorf("%w: unexpected argument '%s' found", errUsage, arg)
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

// pathOption reads "path=<path>", or a bare path where that is allowed too.
func pathOption(take func() (string, error), bare bool) (string, error) {
	v, err := take()
	if err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(v, "path=")
	switch {
	case ok && path != "":
		return path, nil
	case strings.HasPrefix(v, "fd="):
		return "", fmt.Errorf("%w: chvemu takes a path, not a descriptor: '%s'", errUsage, v)
	case bare && v != "" && !strings.Contains(v, "="):
		return v, nil
	default:
		return "", fmt.Errorf("%w: no path in '%s'", errUsage, v)
	}
}
