package chvemu

import (
	"fmt"
	"os"

	"github.com/berth-cloud/berth/vmm"
)

// Settings, by environment.
const (
	// EnvAccel chooses how QEMU runs the guest: "tcg", which is the default and
	// translates; "kvm"; or "auto", which is kvm where it works.
	EnvAccel = "BERTH_CHVEMU_ACCEL"
	// EnvQEMU names the QEMU to run.
	EnvQEMU = "BERTH_CHVEMU_QEMU"
)

const (
	accelTCG = "tcg"
	accelKVM = "kvm"
)

// accelerator decides which one to use. The device /dev/kvm may be there on
// machines where it does not work, so the processor's flags are asked first.
func accelerator(setting, cpuinfo string) (string, error) {
	switch setting {
	case "", accelTCG:
		return accelTCG, nil
	case accelKVM, "auto":
	default:
		return "", fmt.Errorf("%s is %q; it may be tcg, kvm or auto", EnvAccel, setting)
	}
	if !vmm.HardwareVirtualization(cpuinfo) {
		if setting == accelKVM {
			return "", fmt.Errorf("%s is kvm, but the processor has neither vmx nor svm", EnvAccel)
		}
		return accelTCG, nil
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		if setting == accelKVM {
			return "", fmt.Errorf("%s is kvm: %w", EnvAccel, err)
		}
		return accelTCG, nil
	}
	f.Close()
	return accelKVM, nil
}
