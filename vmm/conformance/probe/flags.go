package main

import (
	"strings"
	"unsafe"
)

// flagsAfterExchange returns the processor's flags after a CMPXCHG16B on memory
// that begins at a multiple of 16.
//
//go:noescape
func flagsAfterExchange(m *[2]uint64) uint64

// flags are what a report tells of them.
func flags() uint64 {
	if !strings.Contains(readAll("/proc/cpuinfo"), " cx16 ") {
		return 0
	}
	var room [4]uint64
	i := uintptr(unsafe.Pointer(&room)) / 8 % 2
	return flagsAfterExchange((*[2]uint64)(room[i:]))
}
