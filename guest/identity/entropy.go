package identity

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const randomDevice = "/dev/urandom"

// addEntropy credits the bytes and reseeds the generator from its pool at once;
// otherwise it may use the captured key for minutes. The first two together are
// RNDADDENTROPY.
func addEntropy(b []byte) error {
	random, err := os.OpenFile(randomDevice, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer random.Close()
	if _, err := random.Write(b); err != nil {
		return fmt.Errorf("add entropy: %w", err)
	}
	if err := unix.IoctlSetPointerInt(int(random.Fd()), unix.RNDADDTOENTCNT, 8*len(b)); err != nil {
		return fmt.Errorf("credit entropy: %w", err)
	}
	if err := unix.IoctlSetInt(int(random.Fd()), unix.RNDRESEEDCRNG, 0); err != nil {
		return fmt.Errorf("reseed the random number generator: %w", err)
	}
	return nil
}

const (
	entropyDevice = "/dev/hwrng"
	entropyWait   = 2 * time.Second
)

// Reseed reseeds the kernel's generator from the entropy device, for a guest that is
// thawed without an identity.
func Reseed() error {
	device, err := os.OpenFile(entropyDevice, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	fresh := make([]byte, minEntropy)
	for got, deadline := 0, time.Now().Add(entropyWait); got < len(fresh); {
		n, err := unix.Read(int(device.Fd()), fresh[got:])
		switch {
		case err == nil && n > 0:
			got += n
		case err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("read %s: %w", entropyDevice, err)
		case time.Now().After(deadline):
			return fmt.Errorf("%s has nothing", entropyDevice)
		default:
			time.Sleep(time.Millisecond) // the device cannot be polled for readiness
		}
	}
	return addEntropy(fresh)
}
