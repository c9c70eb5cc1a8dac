// Command guestd is Berth's program in every guest. It is one static binary with
// three modes: the initramfs's /init, process 1 (`guestd init`), and the agent
// that the host talks to (`guestd agent`).
package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/agent"
	"github.com/berth-cloud/berth/guest/boot"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/identity"
	"github.com/berth-cloud/berth/guest/initd"
	"github.com/berth-cloud/berth/guest/netcfg"
	"github.com/berth-cloud/berth/guest/proc"
)

var (
	version = "dev"
	commit  = "unknown"
)

const usage = `guestd is Berth's program in every guest.

  guestd init     run as process 1 of a guest
  guestd agent    serve the host on the guest's private address
  guestd scrub    fill free memory with zeros, and release it
  guestd version  print the version

When it is process 1 and named /init, it is the initramfs's first program.
`

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	mode := ""
	switch {
	case os.Getpid() == 1 && os.Args[0] == "/init":
		mode = "boot"
	case len(os.Args) == 2:
		mode = os.Args[1]
	}
	var err error
	switch mode {
	case "boot":
		err = boot.Run()
	case "init":
		err = initd.Run(log)
	case "agent":
		err = runAgent(log)
	case "scrub":
		err = scrub()
	case "version", "--version":
		fmt.Printf("guestd %s (%s)\n", version, commit)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err == nil {
		return
	}
	log.Error("guestd ends", "mode", mode, "error", err)
	if os.Getpid() == 1 {
		// If process 1 ends, the kernel panics, and its trace hides the line above on
		// the console. Powering off tells the host the same.
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	os.Exit(1)
}

// agentHeap is the heap size, in bytes, at which the agent collects garbage. Below
// it there is no collection: an idle agent must not wake its guest every two
// minutes, nor release memory that the next request faults in again.
const agentHeap = 24 << 20

func runAgent(log *slog.Logger) error {
	debug.SetMemoryLimit(agentHeap)
	debug.SetGCPercent(-1)
	unix.CloseOnExec(boot.DiskFD)
	if err := netcfg.Up(); err != nil {
		return err
	}
	groups, err := proc.OpenGroups()
	if err != nil {
		log.Error("commands run without limits", "error", err)
	}
	spec, err := guestapi.ReadBootSpec()
	if err != nil {
		log.Error("template's environment not read", "error", err)
	}
	freezer := proc.NewFreezer(groups, agent.FreezeHold, identity.Reseed)
	guest, err := identity.NewGuest(groups, freezer.Thaw)
	if err != nil {
		return err
	}
	server, err := agent.New(agent.Config{
		Version:  version,
		Listen:   netip.AddrPortFrom(netip.MustParseAddr(guestapi.GuestAddr), guestapi.Port),
		Guest:    guest,
		Peer:     netip.MustParseAddr(guestapi.GatewayAddr),
		Spec:     spec,
		StartLog: guestapi.StartLogPath,
		Groups:   groups,
		Freezer:  freezer,
		PowerOff: func() error { return syscall.Kill(1, initd.PowerOffSignal) },
		Log:      log,
	})
	if err != nil {
		return err
	}
	return server.Serve()
}

// scrubLeave is the minimum of free memory, in bytes, that scrub does not use:
// others' needs must not be met from the page cache. In a larger guest the kernel
// and the page tables need more.
const (
	scrubLeave     = 24 << 20
	scrubLeavePart = 24 // fraction of all memory
)

// scrub makes the kernel clear the free memory before a guest's state is stored:
// pages of zeros are not stored.
func scrub() error {
	// As a command it may have less than what is free, which in a small guest is the
	// end of it. Where there are no groups there is no limit.
	_ = proc.LeaveWorkload()
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return err
	}
	unit := int(info.Unit)
	size := int(info.Freeram)*unit - max(scrubLeave, int(info.Totalram)*unit/scrubLeavePart)
	if size <= 0 {
		return nil
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("take free memory: %w", err)
	}
	return unix.Munmap(mem)
}
