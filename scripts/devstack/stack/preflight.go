package stack

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What a stack needs of its machine.
const (
	// Two hosts are of use from two sandboxes each: 512 MB a guest, some 100 MB
	// an emulator, and 500 MB for the replicas and daemons.
	needMemoryMB = 3 * 1024
	// The base template takes some 2 GB while it is made, and as much as the
	// root file system and RAM hold afterwards.
	needDiskMB       = 6 * 1024
	needDiskCachedMB = 2 * 1024
)

// Refusal is a sentence that tells a person why the stack does not start.
type Refusal struct{ Sentence string }

// Error implements error.
func (r *Refusal) Error() string { return r.Sentence }

func refusef(format string, args ...any) error {
	return &Refusal{Sentence: fmt.Sprintf(format, args...)}
}

// IsRefusal reports whether err is a Refusal: to be shown without more.
func IsRefusal(err error) bool {
	var r *Refusal
	return errors.As(err, &r)
}

// machine is what preflight looks at, so that tests can look elsewhere.
type machine struct {
	goarch       string
	uid          int
	memoryMB     func() (int, error)
	diskMB       func(dir string) (int, error)
	deviceExists func(path string) bool
}

var thisMachine = machine{
	goarch:   runtime.GOARCH,
	uid:      os.Geteuid(),
	memoryMB: availableMemoryMB,
	diskMB:   freeDiskMB,
	deviceExists: func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	},
}

// preflight refuses, with one sentence, what would fail later with many.
func (o Options) preflight(m machine) error {
	if m.uid != 0 {
		return refusef("make up needs root (network namespaces, taps, cgroups): run it with sudo")
	}
	if m.goarch != "amd64" {
		return refusef("Berth's guests are x86-64 and this machine is %s: nothing here would start", m.goarch)
	}
	if !m.deviceExists("/dev/net/tun") {
		return refusef("/dev/net/tun is missing, and guests have no network without it: modprobe tun, or give this container the device")
	}
	free, err := m.memoryMB()
	if err != nil {
		return err
	}
	if free < needMemoryMB {
		return refusef("too little memory: %d MB are available and %d MB are needed (two hosts with two 512 MB sandboxes each)", free, needMemoryMB)
	}
	need := needDiskMB
	if cached, _ := filepath.Glob(filepath.Join(o.templateDir(), "*")); len(cached) > 0 {
		need = needDiskCachedMB
	}
	disk, err := m.diskMB(o.Root)
	if err != nil {
		return err
	}
	if disk < need {
		return refusef("too little disk: %d MB are free below %s and %d MB are needed (kernel, base template, sandboxes' disks)", disk, o.Root, need)
	}
	return nil
}

// availableMemoryMB is MemAvailable: what can be had without swapping.
func availableMemoryMB() (int, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if kb, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(kb), " kB"))
			if err != nil {
				return 0, fmt.Errorf("/proc/meminfo: %w", err)
			}
			return n / 1024, nil
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}

func freeDiskMB(dir string) (int, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int(s.Bavail * uint64(s.Bsize) >> 20), nil
}
