package conformance_test

import (
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/vmm"
	"github.com/berth-cloud/berth/vmm/conformance"
)

const (
	cmdline = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr"
	zoneID  = "ram"
	// fillSize is the guest's buffer that tags fill.
	fillSize = 8 << 20
	diskSize = 4 << 20
)

// checksum is what the guest computes over its buffer.
func checksum(tag string) uint32 {
	buf := []byte(strings.Repeat(tag, fillSize/len(tag)+1)[:fillSize])
	return crc32.ChecksumIEEE(buf)
}

// files are what is behind one VM.
type files struct {
	dir, ram, orders, data, serial string
}

// newFiles makes empty ones.
func newFiles(t *testing.T) files {
	t.Helper()
	dir := shortDir(t)
	f := files{
		dir:    dir,
		ram:    newFile(t, filepath.Join(dir, "ram"), ramSize, ""),
		orders: newFile(t, filepath.Join(dir, "orders"), diskSize, ""),
		data:   newFile(t, filepath.Join(dir, "data"), diskSize, "data disk\n"),
		serial: filepath.Join(dir, "serial"),
	}
	return f
}

func (f files) guest(t *testing.T) *guest {
	return &guest{t: t, serial: f.serial, orders: f.orders}
}

// config is the VM most tests use: RAM in a shared file, a read-only disk for
// orders, a disk to write to, the serial port in a file.
func (f files) config() vmm.VMConfig {
	return vmm.VMConfig{
		CPUs: vmm.CPUsConfig{BootVCPUs: 1, MaxVCPUs: 1},
		Memory: vmm.MemoryConfig{
			Zones: []vmm.MemoryZone{{ID: zoneID, Size: ramSize, File: f.ram, Shared: true}},
		},
		Payload: &vmm.PayloadConfig{Kernel: shared.kernel, Initramfs: shared.initramfs, Cmdline: cmdline},
		Disks: []vmm.DiskConfig{
			{ID: "orders", Path: f.orders, ReadOnly: true, ImageType: vmm.ImageRaw},
			{ID: "data", Path: f.data, ImageType: vmm.ImageRaw},
		},
		RNG:     &vmm.RNGConfig{Src: "/dev/urandom"},
		Serial:  &vmm.ConsoleConfig{Mode: vmm.ConsoleFile, File: f.serial},
		Console: &vmm.ConsoleConfig{Mode: vmm.ConsoleOff},
	}
}

// boot starts a VM and waits for its guest.
func boot(t *testing.T, h *host, f files, cfg vmm.VMConfig) (*guest, conformance.Report) {
	t.Helper()
	must(t, h.c.Create(h.ctx(), cfg))
	must(t, h.c.Boot(h.ctx()))
	g := f.guest(t)
	return g, g.up()
}

// golden is a snapshot of a guest that has just come up, made once: restoring it
// takes a fraction of the time that a boot takes.
type golden struct {
	files
	snapshot string
	report   conformance.Report
}

var (
	goldenOnce sync.Once
	goldenVM   golden
)

// theGolden returns the snapshot that the tests share. None of them may change
// its files.
func theGolden(t *testing.T) *golden {
	t.Helper()
	g := &goldenVM
	goldenOnce.Do(func() {
		dir, err := os.MkdirTemp(shared.dir, "golden")
		must(t, err)
		g.files = files{
			dir:    dir,
			ram:    newFile(t, filepath.Join(dir, "ram"), ramSize, ""),
			orders: newFile(t, filepath.Join(dir, "orders"), diskSize, ""),
			data:   newFile(t, filepath.Join(dir, "data"), diskSize, "data disk\n"),
			serial: filepath.Join(dir, "serial"),
		}
		snapshot := filepath.Join(dir, "snapshot")
		must(t, os.Mkdir(snapshot, 0o700))
		h := startHost(t)
		guest, _ := boot(t, h, g.files, g.config())
		must(t, h.c.Pause(h.ctx()))
		must(t, h.c.Snapshot(h.ctx(), vmm.SnapshotConfig{DestinationURL: vmm.FileURL(snapshot)}))
		r, ok := guest.last()
		if !ok {
			t.Fatal("no report of the golden guest")
		}
		g.report = r
		h.kill()
		g.snapshot = snapshot
	})
	if g.snapshot == "" {
		t.Fatal("the snapshot that the tests share could not be made")
	}
	return g
}

// child prepares a restore of a snapshot with disks and a console of its own:
// the snapshot's files are copied into a directory of the child's, where
// config.json is edited. The RAM is mapped privately unless ram names a file of
// the child's own.
func child(t *testing.T, g *golden, edit func(*vmm.ConfigEdit, files)) (files, string) {
	t.Helper()
	f := newFiles(t)
	must(t, os.Remove(f.ram))
	return f, editSnapshot(t, g.snapshot, f, func(e *vmm.ConfigEdit) {
		must(t, e.SetZone(zoneID, g.ram, false))
		if edit != nil {
			edit(e, f)
		}
	})
}

// editSnapshot makes a snapshot directory that shares the state of another and
// has a config.json of its own, with the disks and the console of f.
func editSnapshot(t *testing.T, from string, f files, edit func(*vmm.ConfigEdit)) string {
	t.Helper()
	dir := filepath.Join(f.dir, "snapshot")
	must(t, os.Mkdir(dir, 0o700))
	entries, err := os.ReadDir(from)
	must(t, err)
	for _, e := range entries {
		must(t, os.Link(filepath.Join(from, e.Name()), filepath.Join(dir, e.Name())))
	}
	config := filepath.Join(dir, "config.json")
	e, err := vmm.OpenConfig(config)
	must(t, err)
	must(t, e.SetDiskPath("orders", f.orders))
	must(t, e.SetDiskPath("data", f.data))
	e.SetSerialFile(f.serial)
	edit(e)
	must(t, writeConfig(config, e))
	return dir
}

// restore restores a snapshot directory and resumes it.
func restore(t *testing.T, h *host, f files, dir string) *guest {
	t.Helper()
	must(t, h.c.Restore(h.ctx(), vmm.RestoreConfig{SourceURL: vmm.FileURL(dir), Resume: true}))
	return f.guest(t)
}

// restoreGolden restores the shared snapshot with private RAM in a new VMM.
func restoreGolden(t *testing.T) (*host, files, *guest) {
	t.Helper()
	g := theGolden(t)
	f, dir := child(t, g, nil)
	h := startHost(t)
	return h, f, restore(t, h, f, dir)
}

// copySparse copies a file with its holes.
func copySparse(t *testing.T, dst, src string) {
	t.Helper()
	in, err := os.Open(src)
	must(t, err)
	defer in.Close()
	st, err := in.Stat()
	must(t, err)
	out, err := os.Create(dst)
	must(t, err)
	defer out.Close()
	must(t, out.Truncate(st.Size()))
	for off := int64(0); off < st.Size(); {
		data, err := unix.Seek(int(in.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return
		}
		must(t, err)
		hole, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		must(t, err)
		_, err = io.Copy(io.NewOffsetWriter(out, data), io.NewSectionReader(in, data, hole-data))
		must(t, err)
		off = hole
	}
}

// mkdir makes a directory for a snapshot.
func mkdir(t *testing.T, parent, name string) string {
	t.Helper()
	dir := filepath.Join(parent, name)
	must(t, os.Mkdir(dir, 0o700))
	return dir
}

func snapshotTo(h *host, dir string) error {
	return h.c.Snapshot(h.ctx(), vmm.SnapshotConfig{DestinationURL: vmm.FileURL(dir)})
}
