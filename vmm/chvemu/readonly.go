package chvemu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// QEMU 7.2 opens the file behind the guest's RAM for writing even where it maps
// it privately, and has no option that makes a private, writable mapping from a
// read-only descriptor. No machine may be able to write to a capture that many
// machines map: one guest that breaks out of its QEMU would control them all. So
// the kernel asks this process about each open for writing by QEMU (seccomp user
// notification), and this process answers the open of that one file with a
// read-only descriptor. Cloud Hypervisor opens such files read-only by itself
// (open_backing_file in vmm/src/memory_manager.rs).

// openGate answers for the opens of one child.
type openGate struct {
	listener *os.File
	path     string
	file     *os.File // what an open of path gets
	done     chan struct{}
}

// notification is struct seccomp_notif.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// addfd is struct seccomp_notif_addfd.
type addfd struct {
	id                          uint64
	flags, src, new, newfdFlags uint32
}

// installGate puts the filter on the calling thread and on what it forks. The thread
// must be locked, and cannot be used for anything else afterwards.
func installGate(path string) (*openGate, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("no system call filter for %s", runtime.GOARCH)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	fd, err := installFilter()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("install system call filter: %w", err)
	}
	g := &openGate{listener: os.NewFile(uintptr(fd), "seccomp"), path: path, file: file, done: make(chan struct{})}
	go g.serve()
	return g, nil
}

// installFilter asks about openat with O_RDWR and lets all else pass.
func installFilter() (int, error) {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		and  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K
		// Offsets in struct seccomp_data.
		offNr, offArch, offFlags = 0, 4, 16 + 2*8
	)
	prog := []unix.SockFilter{
		{Code: load, K: offArch},
		{Code: jeq, K: unix.AUDIT_ARCH_X86_64, Jf: 5},
		{Code: load, K: offNr},
		{Code: jeq, K: unix.SYS_OPENAT, Jf: 3},
		{Code: load, K: offFlags},
		{Code: and, K: unix.O_ACCMODE},
		{Code: jeq, K: unix.O_RDWR, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
		{Code: ret, K: unix.SECCOMP_RET_USER_NOTIF},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return -1, errno
	}
	unix.CloseOnExec(int(fd))
	// The runtime's poller is to wait on it, not a thread.
	return int(fd), unix.SetNonblock(int(fd), true)
}

func (g *openGate) close() {
	g.listener.Close()
	<-g.done
	g.file.Close()
}

func (g *openGate) serve() {
	defer close(g.done)
	rc, err := g.listener.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		for {
			pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(pfd, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || pfd[0].Revents&unix.POLLHUP != 0 {
				return true // no process with the filter is left
			}
			if n == 0 {
				return false
			}
			g.answer(fd)
		}
	})
}

// answer handles one notification. It fails only when the process has died.
func (g *openGate) answer(fd uintptr) {
	var n notification
	if ioctlPtr(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) != nil {
		return
	}
	if g.pathOf(&n) == g.path {
		a := addfd{id: n.id, flags: unix.SECCOMP_ADDFD_FLAG_SEND, src: uint32(g.file.Fd()), newfdFlags: unix.O_CLOEXEC}
		if ioctlPtr(fd, unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&a)) == nil {
			return
		}
	}
	r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	_ = ioctlPtr(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
}

// pathOf reads the path that is to be opened from the child's memory.
func (g *openGate) pathOf(n *notification) string {
	buf := make([]byte, len(g.path)+1)
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	remote := []unix.RemoteIovec{{Base: uintptr(n.args[1]), Len: len(buf)}}
	got, err := unix.ProcessVMReadv(int(n.pid), local, remote, 0)
	if err != nil {
		return ""
	}
	path, _, ok := bytes.Cut(buf[:got], []byte{0})
	if !ok {
		return "" // longer than ours
	}
	return string(path)
}

func ioctlPtr(fd uintptr, req uint, p unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uintptr(req), uintptr(p))
	if errno != 0 {
		return errno
	}
	return nil
}
