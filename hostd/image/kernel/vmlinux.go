// Package kernel converts a distribution's kernel to what a VM boots: an
// uncompressed vmlinux with a PVH entry, the few modules that the initramfs loads,
// and their order.
package kernel

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// maxVmlinux limits a decompressed kernel, in bytes.
const maxVmlinux = 512 << 20

// Offsets in a bzImage's setup header (Documentation/arch/x86/boot.rst).
const (
	setupSectsOffset    = 0x1f1
	headerMagicOffset   = 0x202
	payloadOffsetOffset = 0x248
	payloadLengthOffset = 0x24c
	headerEnd           = 0x250
	sectorSize          = 512
)

// ErrNotKernel is wrapped by errors about files that are not usable kernels.
var ErrNotKernel = errors.New("not a bootable kernel")

// Vmlinux returns the ELF image in a bzImage. It returns an ELF image unchanged.
func Vmlinux(image []byte) ([]byte, error) {
	if bytes.HasPrefix(image, []byte(elf.ELFMAG)) {
		return image, CheckPVH(bytes.NewReader(image))
	}
	if len(image) < headerEnd || string(image[headerMagicOffset:headerMagicOffset+4]) != "HdrS" {
		return nil, fmt.Errorf("%w: neither an ELF image nor a bzImage", ErrNotKernel)
	}
	setup := int(image[setupSectsOffset])
	if setup == 0 {
		setup = 4 // 0 means 4
	}
	from := uint64(setup+1)*sectorSize + uint64(binary.LittleEndian.Uint32(image[payloadOffsetOffset:]))
	size := uint64(binary.LittleEndian.Uint32(image[payloadLengthOffset:]))
	// The last four bytes are the payload's size when decompressed.
	if size < 4 || from+size > uint64(len(image)) {
		return nil, fmt.Errorf("%w: its payload reaches past its end", ErrNotKernel)
	}
	payload := image[from : from+size-4]
	want := binary.LittleEndian.Uint32(image[from+size-4:])
	raw, err := decompress(payload, int64(want))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotKernel, err)
	}
	return raw, CheckPVH(bytes.NewReader(raw))
}

func decompress(payload []byte, want int64) ([]byte, error) {
	if want > maxVmlinux {
		return nil, fmt.Errorf("payload of %d bytes", want)
	}
	var r io.Reader
	var err error
	switch {
	case bytes.HasPrefix(payload, []byte("\x28\xb5\x2f\xfd")):
		var d *zstd.Decoder
		if d, err = zstd.NewReader(bytes.NewReader(payload), zstd.WithDecoderMaxMemory(maxVmlinux)); err == nil {
			defer d.Close()
			r = d
		}
	case bytes.HasPrefix(payload, []byte("\x1f\x8b")):
		r, err = gzip.NewReader(bytes.NewReader(payload))
	case bytes.HasPrefix(payload, []byte("\xfd7zXZ\x00")):
		r, err = xz.NewReader(bytes.NewReader(payload))
	default:
		err = fmt.Errorf("payload compressed in an unknown way (% x)", payload[:min(6, len(payload))])
	}
	if err != nil {
		return nil, err
	}
	raw := make([]byte, want)
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return raw, nil
}

// pvhNote is XEN_ELFNOTE_PHYS32_ENTRY, the address of the PVH entry.
const pvhNote = 18

// CheckPVH checks whether an ELF image can be booted by PVH.
func CheckPVH(r io.ReaderAt) error {
	f, err := elf.NewFile(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotKernel, err)
	}
	if f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("%w: it is for %v", ErrNotKernel, f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		notes, err := io.ReadAll(io.LimitReader(p.Open(), 1<<20))
		if err == nil && hasNote(notes, "Xen", pvhNote) {
			return nil
		}
	}
	return fmt.Errorf("%w: it has no PVH entry (CONFIG_PVH)", ErrNotKernel)
}

// hasNote searches ELF notes: name size, descriptor size, type, name, descriptor,
// each padded to four bytes.
func hasNote(notes []byte, name string, kind uint32) bool {
	for len(notes) >= 12 {
		nameSize := uint64(binary.LittleEndian.Uint32(notes))
		descSize := uint64(binary.LittleEndian.Uint32(notes[4:]))
		nameEnd := 12 + (nameSize+3)&^3
		end := nameEnd + (descSize+3)&^3
		if 12+nameSize > uint64(len(notes)) || end > uint64(len(notes)) {
			return false
		}
		if binary.LittleEndian.Uint32(notes[8:]) == kind && string(bytes.TrimRight(notes[12:12+nameSize], "\x00")) == name {
			return true
		}
		notes = notes[end:]
	}
	return false
}

// versionMark is the beginning of the kernel's banner, which is in its read-only
// data.
var versionMark = []byte("Linux version ")

// Release returns the release (uname -r) of a vmlinux.
func Release(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for rest := raw; ; {
		i := bytes.Index(rest, versionMark)
		if i < 0 {
			return "", fmt.Errorf("%w: %s does not say its version", ErrNotKernel, path)
		}
		rest = rest[i+len(versionMark):]
		word, _, _ := bytes.Cut(rest[:min(len(rest), 128)], []byte(" "))
		if len(word) > 0 && word[0] >= '0' && word[0] <= '9' {
			return string(word), nil
		}
	}
}
