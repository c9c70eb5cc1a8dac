package slot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
)

// machine is what the hosts of one machine together changed on it. The last
// host to leave puts it back. It lies under /run, like the changes themselves
// gone after a boot.
type machine struct {
	// Hosts that have not been purged.
	Hosts []string `json:"hosts"`
	// Forwarding holds, by link, the value of its forwarding parameter before
	// the first host changed it.
	Forwarding map[string]string `json:"forwarding,omitempty"`
	// Connections holds, by host, what its guests may have open together.
	Connections map[string]int `json:"connections,omitempty"`
	// ConntrackMax is the kernel's bound on tracked connections before the first
	// host raised it, 0 if none did; ConntrackSet is what it was raised to.
	ConntrackMax int `json:"conntrack_max,omitempty"`
	ConntrackSet int `json:"conntrack_set,omitempty"`
	// Mounted are the namespace directories that were made mount points.
	Mounted []string `json:"mounted,omitempty"`
}

const (
	machineFile = "machine.json"
	machineLock = "lock"
)

// withMachine runs fn on the record while no other process does, and writes
// back what fn left. A record that no host is in any more is removed.
func (f *Fabric) withMachine(fn func(*machine) error) error {
	dir := f.cfg.StateDir
	unlock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer unlock()
	path := filepath.Join(dir, machineFile)
	m, err := readMachine(path)
	if err != nil {
		return err
	}
	if m.Forwarding == nil {
		m.Forwarding = make(map[string]string)
	}
	failed := fn(&m)
	if len(m.Hosts) == 0 && failed == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove record of changes: %w", err)
		}
		// The lock goes last. Whoever waits for it sees that it is gone.
		_ = os.Remove(filepath.Join(dir, machineLock))
		_ = os.Remove(dir)
		return nil
	}
	data, err := json.Marshal(m)
	if err != nil {
		return errors.Join(failed, err)
	}
	if err := atomicfile.Swap(path, data, 0o600); err != nil {
		return errors.Join(failed, fmt.Errorf("write record of changes: %w", err))
	}
	return failed
}

// readMachine reads the record, which is empty where there is no file.
func readMachine(path string) (m machine, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read record of changes: %w", err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("read record of changes %s: %w", path, err)
	}
	return m, nil
}

// lockDir takes the lock file in dir, making both as needed.
func lockDir(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, machineLock)
	for {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make state directory: %w", err)
		}
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the last host to leave has just removed the directory
		}
		if err != nil {
			return nil, fmt.Errorf("open lock: %w", err)
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// While we waited, the holder may have removed the file; a lock on it
		// would then keep nobody out.
		ours, err := file.Stat()
		if err == nil {
			var named os.FileInfo
			if named, err = os.Stat(path); err == nil && os.SameFile(ours, named) {
				return func() { file.Close() }, nil
			}
		}
		file.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look at lock: %w", err)
		}
	}
}

// claim records that this host is there and lets the links forward.
func (m *machine) claim(host string, uplinks []string) error {
	if !slices.Contains(m.Hosts, host) {
		m.Hosts = append(m.Hosts, host)
		slices.Sort(m.Hosts)
	}
	for _, link := range uplinks {
		before, err := forwarding(link)
		if err != nil {
			return err
		}
		if before == "1" {
			continue
		}
		if _, ok := m.Forwarding[link]; !ok {
			m.Forwarding[link] = before
		}
		if err := setForwarding(link); err != nil {
			return err
		}
	}
	return nil
}

// claimMount makes the directory of namespaces a shared mount point, and records it if
// it was none.
func (m *machine) claimMount(dir string) error {
	mounted, err := ShareNetNSDir(dir)
	if mounted {
		m.Mounted = append(m.Mounted, dir)
	}
	return err
}

// release takes the host off the record; the last one puts everything back.
func (m *machine) release(host string) error {
	m.Hosts = slices.DeleteFunc(m.Hosts, func(h string) bool { return h == host })
	delete(m.Connections, host)
	if len(m.Hosts) > 0 {
		return nil
	}
	errs := []error{m.releaseConnections()}
	for link, value := range m.Forwarding {
		err := os.WriteFile(forwardingPath(link), []byte(value), 0o644)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("restore forwarding of %s: %w", link, err))
		}
	}
	for _, dir := range m.Mounted {
		// Someone else's namespaces may be mounted in it by now: then it stays.
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			continue
		}
		if err := unix.Unmount(dir, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}
