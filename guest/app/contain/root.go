package contain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// devices are what a program finds in /dev.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// identity is where the guest keeps what each identity of it has of its own. Its files
// are replaced when a copy of the guest gets another, so it is the directory that an
// image is given.
const identity = "/run/berth/etc"

// names are the files of /etc that say who and where the guest is.
var names = []string{"resolv.conf", "hosts", "hostname"}

// authorities are where images of the usual systems have the certificates that they
// trust; of the guest it is the first.
var authorities = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// enter makes a directory the root, with what programs expect in it: /proc, /dev, /sys,
// and how names are looked up. Everything happens with the rights of the tenant's user,
// in mounts that end with these processes.
func enter(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("take the mounts: %w", err)
	}
	if root == "" {
		return mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if err := mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	linked := bindIdentity(root)
	own := map[string][]byte{}
	for _, name := range names {
		own[name], _ = os.ReadFile("/etc/" + name) // none is no failure: it is not in the image either
	}
	trusted, _ := os.ReadFile(authorities[0])
	if err := mountSystem(root); err != nil {
		return err
	}
	if err := pivot(root); err != nil {
		return err
	}
	if err := os.MkdirAll("/etc", 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := write("/etc/"+name, filepath.Join(identity, name), linked, own[name]); err != nil {
			return err
		}
	}
	return trust(trusted)
}

func mount(source, target, kind string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// place has a directory there, and no link to one.
func place(root, name string) (string, error) {
	path := filepath.Join(root, name)
	if st, err := os.Lstat(path); err == nil && !st.IsDir() {
		if err := os.Remove(path); err != nil {
			return "", err
		}
	}
	return path, os.MkdirAll(path, 0o755)
}

// bindIdentity reports whether the guest's files are in the image.
func bindIdentity(root string) bool {
	if _, err := os.Stat(identity); err != nil {
		return false
	}
	target := root
	for _, part := range []string{"run", "berth", "etc"} {
		var err error
		if target, err = place(target, part); err != nil {
			return false
		}
	}
	return mount(identity, target, "", unix.MS_BIND|unix.MS_REC, "") == nil
}

func mountSystem(root string) error {
	for _, m := range []struct {
		source, name, kind string
		flags              uintptr
		options            string
	}{
		{"proc", "proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"/sys", "sys", "", unix.MS_BIND | unix.MS_REC, ""},
		{"tmpfs", "dev", "tmpfs", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=755,size=64k"},
		{"devpts", "dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"},
		{"tmpfs", "dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777,size=64m"},
	} {
		target, err := place(root, m.name)
		if err != nil {
			return err
		}
		if err := mount(m.source, target, m.kind, m.flags, m.options); err != nil {
			return err
		}
	}
	dev := filepath.Join(root, "dev")
	for _, name := range devices {
		target := filepath.Join(dev, name)
		if err := os.WriteFile(target, nil, 0o600); err != nil {
			return err
		}
		if err := mount("/dev/"+name, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(to, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	return nil
}

// pivot makes a mounted directory the root, and takes the former one away.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The former root comes over the new one, and is then there to be taken away.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("enter %s: %w", root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the former root: %w", err)
	}
	return os.Chdir("/")
}

// write puts a file of the guest's into the image, or a link to it.
func write(path, to string, link bool, content []byte) error {
	if there, err := os.Readlink(path); err == nil && link && there == to {
		return nil
	}
	if content == nil && !link {
		return nil
	}
	if err := os.RemoveAll(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if link {
		return os.Symlink(to, path)
	}
	return os.WriteFile(path, content, 0o644) // others of the image read it, too
}

// trust gives certificates to an image that has none.
func trust(bundle []byte) error {
	if len(bundle) == 0 {
		return nil
	}
	for _, file := range authorities {
		if st, err := os.Stat(file); err == nil && st.Size() > 0 {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(authorities[0]), 0o755); err != nil {
		return err
	}
	return os.WriteFile(authorities[0], bundle, 0o644)
}
