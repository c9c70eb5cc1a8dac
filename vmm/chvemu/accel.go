package chvemu

import "fmt"

// EnvAccel is the environment variable that chooses how QEMU runs the guest:
// "tcg", which is the default and translates, or "kvm".
const EnvAccel = "BERTH_CHVEMU_ACCEL"

const (
	accelTCG = "tcg"
	accelKVM = "kvm"
)

func accelerator(setting string) (string, error) {
	switch setting {
	case "":
		return accelTCG, nil
	case accelTCG, accelKVM:
		return setting, nil
	default:
		return "", fmt.Errorf("%s is %q; it may be tcg or kvm", EnvAccel, setting)
	}
}
