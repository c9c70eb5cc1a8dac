// Package conformance checks that a VMM behaves as Cloud Hypervisor v53.0 does,
// in all that Berth uses of it. The tests run against the program that BERTH_VMM
// names, or chvemu when it names none, with the kernel that BERTH_KERNEL names.
//
// Each case says in a comment which file and function of v53.0 it was read from.
// Nothing is asserted that the source does not guarantee, and nothing is excused
// for one engine.
//
// The guest is a program of this package (see probe): it reports on the serial
// console what it sees and takes orders from the first sector of a disk.
package conformance

import "fmt"

// Prefix marks a report on the console among the kernel's messages.
const Prefix = "@conformance "

// Report is what the guest says of itself, ten times a second.
type Report struct {
	// Boot is drawn once a boot; a restored guest keeps it.
	Boot string `json:"boot"`
	Tick uint64 `json:"tick"`
	// Tag is the last one ordered, and Sum a checksum over a buffer filled with
	// it.
	Tag   string            `json:"tag"`
	Sum   uint32            `json:"sum"`
	CPUs  int               `json:"cpus"`
	MemKB uint64            `json:"mem_kb"`
	Disks []Disk            `json:"disks"`
	Links map[string]string `json:"links"`
	// Button says that the kernel drives the power button, and Pressed how
	// often it was pressed.
	Button  bool     `json:"button"`
	Pressed int      `json:"pressed"`
	Notes   []string `json:"notes,omitempty"`
	// Flags are those of the processor after a CMPXCHG16B that follows a subtraction;
	// 0 where the kernel does not use the instruction.
	Flags uint64 `json:"flags"`
	// Patched says that a CPU has changed code that another ran, as ordered, and
	// Stale after how many changes the other went on with the code of before.
	Patched bool `json:"patched,omitempty"`
	Stale   int  `json:"stale,omitempty"`
}

// Disk is a block device as the guest sees it.
type Disk struct {
	Name     string `json:"name"`
	Serial   string `json:"serial,omitempty"`
	Size     uint64 `json:"size"`
	ReadOnly bool   `json:"ro"`
	// Head is the first line on it.
	Head string `json:"head"`
}

// Orders for the guest, as written to the head of a disk. Each is carried out
// once; the number tells one from the next.
//
//	tag <text>          fill the buffer with the text
//	write <disk> <text> write the text to a disk, at offset WriteOffset
//	patch               change code that another CPU runs
//	poweroff, reboot
const orderFormat = "order %d %s\n"

// WriteOffset is where the order "write" writes.
const WriteOffset = 4096

// Order words an order.
func Order(n int, text string) []byte { return fmt.Appendf(nil, orderFormat, n, text) }
