// Package cpio writes archives in the format of Linux's initramfs ("newc",
// Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's
// source). cavaliergopher/cpio, which the tests read them with, writes no device
// numbers, and an initramfs needs /dev/console.
package cpio

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

const trailer = "TRAILER!!!"

// maxSize is the largest size that eight hexadecimal digits can hold, in bytes.
const maxSize = 1<<32 - 1

// Writer writes an archive. Equal entries give equal bytes: there are no times, the
// owner is root, and entries are numbered in order. The kernel makes them in that
// order, so a directory comes before its files.
type Writer struct {
	out   io.Writer
	inode uint32
}

// NewWriter begins an archive.
func NewWriter(w io.Writer) *Writer { return &Writer{out: w} }

// Directory writes a directory.
func (w *Writer) Directory(name string, perm uint32) error {
	return w.entry(name, unix.S_IFDIR|perm, 0, 0, nil)
}

// File writes a regular file.
func (w *Writer) File(name string, perm uint32, content []byte) error {
	return w.entry(name, unix.S_IFREG|perm, 0, 0, content)
}

// CharDevice writes the node of a character device.
func (w *Writer) CharDevice(name string, perm, major, minor uint32) error {
	return w.entry(name, unix.S_IFCHR|perm, major, minor, nil)
}

// Close ends the archive.
func (w *Writer) Close() error {
	w.inode = 0
	return w.header(trailer, 0, 0, 0, 0, 0)
}

func (w *Writer) entry(name string, mode, major, minor uint32, content []byte) error {
	if int64(len(content)) > maxSize {
		return fmt.Errorf("cpio: %s: %d bytes are too many", name, len(content))
	}
	w.inode++
	if err := w.header(name, w.inode, mode, major, minor, len(content)); err != nil {
		return err
	}
	return w.padded(content)
}

// header writes the head of an entry: the magic number, and in hexadecimal inode,
// mode, owner, group, links, time, size, the file system's device, the node's own
// device, the length of the name with its NUL, and a checksum that is not used.
func (w *Writer) header(name string, inode, mode, major, minor uint32, size int) error {
	head := fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, len(name)+1, 0, name)
	return w.padded(head)
}

// padded writes b and zeros up to a multiple of four bytes.
func (w *Writer) padded(b []byte) error {
	if _, err := w.out.Write(b); err != nil {
		return fmt.Errorf("cpio: %w", err)
	}
	if _, err := w.out.Write(make([]byte, -len(b)&3)); err != nil {
		return fmt.Errorf("cpio: %w", err)
	}
	return nil
}
