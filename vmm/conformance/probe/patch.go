package main

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call runs the code at an address and returns what it leaves in AX.
//
//go:noescape
func call(code unsafe.Pointer) uint32

// Commands of membarrier(2), in include/uapi/linux/membarrier.h.
const (
	membarrierSyncCore         = 1 << 5
	membarrierRegisterSyncCore = 1 << 6
)

// The code is changed so often, or as often as there is time for.
const (
	patches    = 1000
	patchesFor = 30 * time.Second
)

// stale has one CPU change code that another runs, as a kernel does that patches
// itself, and returns after how many of the changes the other CPU ran on with what
// had been there before.
func stale() (int, error) {
	code, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Munmap(code) }()
	copy(code, []byte{0xb8, 0, 0, 0, 0, 0xc3}) // MOVL $0, AX; RET
	if err := membarrier(membarrierRegisterSyncCore); err != nil {
		return 0, err
	}
	var calls atomic.Int64
	var got atomic.Uint32
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
				got.Store(call(unsafe.Pointer(&code[0])))
				calls.Add(1)
			}
		}
	}()
	defer func() {
		close(end)
		<-ended
	}()
	n := 0
	late := time.Now().Add(patchesFor)
	for i := 0; i < patches && time.Now().Before(late); i++ {
		want := byte(i + 1)
		code[1] = want
		if err := membarrier(membarrierSyncCore); err != nil {
			return n, err
		}
		// A call that was under way may have begun with the old code; the next has not.
		for began := calls.Load(); calls.Load() < began+2; {
			time.Sleep(50 * time.Microsecond)
		}
		if got.Load() != uint32(want) {
			n++
		}
	}
	return n, nil
}

func membarrier(cmd uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, cmd, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
