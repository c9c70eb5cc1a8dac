package slot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// isNetNS says whether a namespace is mounted at path. An empty file there is
// what a crash between creating the file and mounting leaves.
func isNetNS(path string) (bool, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", path, err)
	}
	return st.Type == unix.NSFS_MAGIC, nil
}

// ShareNetNSDir makes dir a shared mount point, as ip-netns(8) does, and reports whether
// it had to be mounted on itself. Later mounts then stay visible in every mount namespace
// of the machine. Whoever makes a namespace in dir calls it first: a mount of dir that
// came later would cover the namespace, which could not be removed any more.
func ShareNetNSDir(dir string) (mounted bool, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("make directory of namespaces: %w", err)
	}
	share := func() error {
		if err := unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("share %s: %w", dir, err)
		}
		return nil
	}
	if err := share(); !errors.Is(err, unix.EINVAL) { // which says that it is no mount point
		return false, err
	}
	if err := unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return false, fmt.Errorf("mount %s on itself: %w", dir, err)
	}
	return true, share()
}

// makeNetNS creates an empty namespace and mounts it at path.
func makeNetNS(path string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o444)
	if err != nil {
		return fmt.Errorf("create mount point of a namespace: %w", err)
	}
	file.Close()
	done := make(chan error)
	go func() {
		// A thread that could not be brought back into the host's namespace
		// stays locked, and the runtime ends it together with this goroutine.
		runtime.LockOSThread()
		back, err := os.Open(threadNetNS())
		if err != nil {
			done <- err
			return
		}
		defer back.Close()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("create a network namespace: %w", err)
			return
		}
		err = unix.Mount(threadNetNS(), path, "none", unix.MS_BIND, "")
		if unix.Setns(int(back.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		if err != nil {
			err = fmt.Errorf("mount namespace at %s: %w", path, err)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return errors.Join(err, dropNetNS(path))
	}
	return nil
}

// threadNetNS names the namespace of the calling thread; /proc/self would
// name the main thread's.
func threadNetNS() string {
	return "/proc/" + strconv.Itoa(os.Getpid()) + "/task/" + strconv.Itoa(unix.Gettid()) + "/ns/net"
}

// dropNetNS unmounts what is at path, however often it was mounted, and
// removes the file. The kernel ends the namespace once no process is in it.
func dropNetNS(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not, or no longer, a mount point
		}
		if err != nil {
			return fmt.Errorf("unmount namespace %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove mount point of a namespace: %w", err)
	}
	return nil
}
