package vmm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// An isolated VMM has a root directory of its own: a tmpfs in its own mount
// namespace. It holds the engine with its libraries, a few devices, the runtime
// directory, and the files that were handed over; no name in it is a sandbox's. The
// VMM is process 1 of its own PID namespace, and its /proc shows only its own
// processes.
const (
	viewBin = "/bin"
	// viewRun is the runtime directory.
	viewRun = "/run"
	// viewHanded has a directory for each handover.
	viewHanded = "/vm"
)

// viewDevices are opened by engines and their guests' devices. /dev/kvm may be
// missing: chvemu does without.
var viewDevices = []string{"/dev/null", "/dev/urandom", "/dev/net/tun", "/dev/kvm"}

// systemLibraries is what a program loads before it begins.
var systemLibraries = []string{"/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache"}

// Flags of the mounts in a view.
const (
	mountProgram = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	mountDevice  = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	mountRead    = mountProgram | unix.MOUNT_ATTR_NOEXEC
	mountWrite   = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
)

// mount is a detached mount of a file or directory of the host, to be attached in
// a view.
type mount struct {
	fd  int
	dir bool
	at  string // path in the view
}

// cloneMount makes a detached mount of a file or a directory of the host. In the
// view its own mode decides who may open it, and no directory above it does.
func cloneMount(host, at string, attrs uint64) (mount, error) {
	fail := func(err error) (mount, error) { return mount{}, fmt.Errorf("take %s into the view: %w", host, err) }
	fd, err := unix.OpenTree(unix.AT_FDCWD, host, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fail(err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil {
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attrs, Propagation: unix.MS_PRIVATE})
	}
	if err != nil {
		unix.Close(fd)
		return fail(err)
	}
	return mount{fd: fd, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR, at: at}, nil
}

// attach attaches the mount at a path below the calling thread's root.
func (m mount) attach() error {
	if err := makeTarget(m.at, m.dir); err != nil {
		return fmt.Errorf("make %s in the view: %w", m.at, err)
	}
	if err := unix.MoveMount(m.fd, "", unix.AT_FDCWD, m.at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s in the view: %w", m.at, err)
	}
	return nil
}

func makeTarget(path string, dir bool) error {
	if dir {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// mounts are closed together. An attached mount outlives its descriptor; a detached
// one ends with it.
type mounts []mount

func (ms *mounts) add(host, at string, attrs uint64) error {
	m, err := cloneMount(host, at, attrs)
	if err == nil {
		*ms = append(*ms, m)
	}
	return err
}

func (ms *mounts) attach() error {
	for _, m := range *ms {
		if err := m.attach(); err != nil {
			return err
		}
	}
	return nil
}

func (ms *mounts) close() {
	for _, m := range *ms {
		unix.Close(m.fd)
	}
}

// view is a root directory that is being made for a VMM.
type view struct {
	mounts mounts
	engine string // path of the engine in it
}

func (v *view) close() { v.mounts.close() }

// newView collects what an engine needs to start in a runtime directory. The
// caller closes it.
func newView(e Engine, dir string) (*view, error) {
	v := &view{engine: filepath.Join(viewBin, filepath.Base(e.Path))}
	if err := v.collect(e, dir); err != nil {
		v.mounts.close()
		return nil, err
	}
	return v, nil
}

func (v *view) collect(e Engine, dir string) error {
	if err := v.mounts.add(e.Path, v.engine, mountProgram); err != nil {
		return err
	}
	if err := v.mounts.add(dir, viewRun, mountWrite); err != nil {
		return err
	}
	for _, path := range viewDevices {
		if err := v.addIfThere(path, mountDevice); err != nil {
			return err
		}
	}
	for _, path := range systemLibraries {
		if err := v.addIfThere(path, mountProgram); err != nil {
			return err
		}
	}
	if e.Kind != KindChvemu {
		return nil
	}
	return v.addQEMU()
}

// addIfThere adds a path of the host to the view, under the same name.
func (v *view) addIfThere(path string, attrs uint64) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return v.mounts.add(path, path, attrs)
}

// addQEMU adds the program that chvemu starts and its firmware, and its libraries
// where it was installed with its own.
func (v *view) addQEMU() error {
	path, err := exec.LookPath(QEMU())
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil //nolint:nilerr // chvemu says so itself, when a VM is made
	}
	if err := v.mounts.add(path, path, mountProgram); err != nil {
		return err
	}
	prefix := filepath.Dir(filepath.Dir(path))
	dirs := []string{filepath.Join(prefix, "share/qemu"), filepath.Join(prefix, "share/seabios")}
	if prefix != "/usr" {
		dirs = append(dirs, filepath.Join(prefix, "lib"))
	}
	for _, dir := range dirs {
		if err := v.addIfThere(dir, mountProgram); err != nil {
			return err
		}
	}
	return nil
}

// enter makes the view the root of the calling thread, which must be locked and
// cannot be used for anything else afterwards. None of the host's mounts is left in
// its namespace.
func (v *view) enter(dir string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// The new namespace came with a file system context of this thread's own.
	unix.Umask(0o022)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts apart from the host's: %w", err)
	}
	root, err := newFilesystem("tmpfs", mountWrite, "mode=0755", "size=1m", "nr_inodes=1k")
	if err != nil {
		return err
	}
	defer unix.Close(root)
	// Whoever reads it sees processes that it could trace: those of its own user.
	proc, err := newFilesystem("proc", mountRead, "hidepid=ptraceable")
	if err != nil {
		return err
	}
	defer unix.Close(proc)
	if err := pivot(root, dir); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := (mount{fd: proc, dir: true, at: "/proc"}).attach(); err != nil {
		return err
	}
	return errors.Join(v.mounts.attach(), os.Mkdir(viewHanded, 0o755))
}

// newFilesystem makes a detached mount of a new file system. Options are key=value.
func newFilesystem(kind string, attrs int, options ...string) (int, error) {
	fail := func(err error) (int, error) { return -1, fmt.Errorf("make a %s: %w", kind, err) }
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return fail(fmt.Errorf("option %s: %w", o, err))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fail(err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return fail(err)
	}
	return fd, nil
}

// pivot makes the file system of root the thread's root, over a directory of the
// old one, and unmounts all that was mounted before.
func pivot(root int, over string) error {
	old, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(old)
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, over, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	if err := unix.Fchdir(root); err != nil {
		return err
	}
	// The old root comes to lie over the new one, from where it is taken off
	// (pivot_root(2), "pivot_root(".", ".")").
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Fchdir(old); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}
