package vmm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const kvmDevice = "/dev/kvm"

// Of Linux's include/uapi/linux/kvm.h.
const (
	kvmCheckExtension    = 0xae03     // _IO(KVMIO, 0x03)
	kvmGetSupportedCPUID = 0xc008ae05 // _IOWR(KVMIO, 0x05, struct kvm_cpuid2)
	kvmCapAdjustClock    = 39
	kvmClockRealtime     = 4

	kvmMaxCPUIDEntries = 256 // KVM_MAX_CPUID_ENTRIES of its arch/x86/include/asm/kvm_host.h
	kvmCPUIDHeader     = 8   // struct kvm_cpuid2: the number of entries
	kvmCPUIDEntry      = 40  // struct kvm_cpuid_entry2
)

// kvmSupportedCPUID returns the registers that KVM offers to guests of this host.
func kvmSupportedCPUID() ([]cpuidEntry, error) {
	f, err := os.OpenFile(kvmDevice, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := make([]byte, kvmCPUIDHeader+kvmMaxCPUIDEntries*kvmCPUIDEntry)
	binary.NativeEndian.PutUint32(buf, kvmMaxCPUIDEntries)
	if _, err := kvmCall(f, func(fd uintptr) (uintptr, uintptr, syscall.Errno) {
		return unix.Syscall(unix.SYS_IOCTL, fd, kvmGetSupportedCPUID, uintptr(unsafe.Pointer(&buf[0])))
	}); err != nil {
		return nil, fmt.Errorf("ask KVM for the features of its guests' processors: %w", err)
	}
	return cpuidEntries(buf)
}

// cpuidEntries reads a struct kvm_cpuid2.
func cpuidEntries(buf []byte) ([]cpuidEntry, error) {
	n := int(binary.NativeEndian.Uint32(buf))
	if n > (len(buf)-kvmCPUIDHeader)/kvmCPUIDEntry {
		return nil, fmt.Errorf("KVM tells of %d entries", n)
	}
	out := make([]cpuidEntry, n)
	for i := range out {
		raw := buf[kvmCPUIDHeader+i*kvmCPUIDEntry:]
		word := func(i int) uint32 { return binary.NativeEndian.Uint32(raw[4*i:]) }
		// The third word is flags.
		out[i] = cpuidEntry{function: word(0), index: word(1), regs: [4]uint32{word(3), word(4), word(5), word(6)}}
	}
	return out, nil
}

// errOldKVM refuses a host on which no guest of Cloud Hypervisor's would run.
var errOldKVM = errors.New("the kernel's KVM cannot set a guest's clock by the time of day, which Cloud Hypervisor does whenever a guest runs on: it needs Linux 5.16 or later")

// CheckHost returns why no guest would run under the engine on this host.
func (e Engine) CheckHost() error {
	if e.Kind != KindCloudHypervisor {
		return nil
	}
	f, err := os.OpenFile(kvmDevice, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s does not work: %w", kvmDevice, err)
	}
	defer f.Close()
	flags, err := kvmCall(f, func(fd uintptr) (uintptr, uintptr, syscall.Errno) {
		return unix.Syscall(unix.SYS_IOCTL, fd, kvmCheckExtension, kvmCapAdjustClock)
	})
	if err != nil {
		return fmt.Errorf("ask KVM what it can do: %w", err)
	}
	return checkClock(flags)
}

// checkClock looks at the flags of KVM_CAP_ADJUST_CLOCK. Cloud Hypervisor sets
// KVM_CLOCK_REALTIME without asking (set_clock in its hypervisor/src/kvm/mod.rs).
func checkClock(flags uintptr) error {
	if flags&kvmClockRealtime == 0 {
		return errOldKVM
	}
	return nil
}

func kvmCall(f *os.File, call func(fd uintptr) (uintptr, uintptr, syscall.Errno)) (out uintptr, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var errno syscall.Errno
	err = rc.Control(func(fd uintptr) { out, _, errno = call(fd) })
	switch {
	case err != nil:
		return 0, err
	case errno != 0:
		return 0, errno
	}
	return out, nil
}
