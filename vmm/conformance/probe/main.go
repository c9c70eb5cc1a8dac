// Command probe is /init of the conformance suite's guests. It reports what it
// sees, ten times a second, as one JSON object a line on the serial console, and
// takes its orders from the first sector of a disk, which the test writes: so it
// needs nothing of a VMM but a serial port that writes to a file, and raw disks.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/vmm/conformance"
)

const interval = 100 * time.Millisecond

func main() {
	debug.SetGCPercent(400)
	console, err := os.OpenFile("/dev/console", os.O_WRONLY, 0)
	if err != nil {
		// devtmpfs is not there yet; the node of the initramfs is.
		halt()
	}
	g := &guest{console: console, fill: make([]byte, 8<<20)}
	for dir, fs := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs"} {
		if err := unix.Mount(fs, dir, fs, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			g.note("mount %s: %v", dir, err)
		}
	}
	// The kernel's chatter would tear the reports apart.
	_ = os.WriteFile("/proc/sys/kernel/printk", []byte("1"), 0)
	loadModules(g)
	g.report.Boot = random()
	g.report.CPUs = runtime.NumCPU()
	_, err = os.Stat("/sys/bus/acpi/drivers/button")
	g.report.Button = err == nil
	presses := make(chan struct{}, 16)
	notes := make(chan string, 1)
	go watchButton(presses, notes)

	tick := time.NewTicker(interval)
	for {
		g.observe()
		g.obey()
		g.print()
		select {
		case <-tick.C:
		case n := <-notes:
			g.note("%s", n)
		case <-presses:
			g.report.Pressed++
			g.print()
			poweroff()
		}
	}
}

type guest struct {
	console *os.File
	report  conformance.Report
	fill    []byte
	done    map[string]bool // orders carried out, and those found at boot
}

func (g *guest) note(format string, args ...any) {
	if len(g.report.Notes) < 20 {
		g.report.Notes = append(g.report.Notes, fmt.Sprintf(format, args...))
	}
}

func (g *guest) print() {
	g.report.Tick++
	raw, err := json.Marshal(g.report)
	if err != nil {
		return
	}
	// A line break first: a restored guest may have been caught in mid-line.
	_, _ = fmt.Fprintf(g.console, "\n%s%s\n", conformance.Prefix, raw)
}

// observe looks at everything anew: disks come and go, and change under a
// restored guest.
func (g *guest) observe() {
	r := &g.report
	r.Flags = flags()
	r.Disks, r.Links = nil, map[string]string{}
	names, _ := filepath.Glob("/sys/block/vd*")
	sort.Strings(names)
	for _, path := range names {
		name := filepath.Base(path)
		sectors, _ := strconv.ParseUint(readLine(path+"/size"), 10, 64)
		r.Disks = append(r.Disks, conformance.Disk{
			Name:     name,
			Serial:   readLine(path + "/serial"),
			Size:     sectors * 512,
			ReadOnly: readLine(path+"/ro") == "1",
			Head:     head("/dev/" + name),
		})
	}
	links, _ := filepath.Glob("/sys/class/net/*")
	for _, path := range links {
		if name := filepath.Base(path); name != "lo" {
			r.Links[name] = readLine(path + "/address")
		}
	}
	for line := range strings.Lines(readAll("/proc/meminfo")) {
		if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			r.MemKB, _ = strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
		}
	}
	sum := crc32.NewIEEE()
	_, _ = sum.Write(g.fill)
	r.Sum = sum.Sum32()
}

// obey carries out the orders on disks: "order <n> <verb> [argument]". Each is
// done once: a restored guest remembers what it did, and one that boots leaves
// alone what was there before it, or it would reboot for ever.
func (g *guest) obey() {
	booting := g.done == nil
	if booting {
		g.done = map[string]bool{}
	}
	for _, d := range g.report.Disks {
		f := strings.Fields(d.Head)
		if len(f) < 3 || f[0] != "order" || g.done[d.Head] {
			continue
		}
		g.done[d.Head] = true
		if booting {
			continue
		}
		switch f[2] {
		case "tag":
			g.report.Tag = f[3]
			for i := range g.fill {
				g.fill[i] = f[3][i%len(f[3])]
			}
		case "write":
			g.write("/dev/"+f[3], f[4])
		case "patch":
			n, err := stale()
			if err != nil {
				g.note("patch: %v", err)
			}
			g.report.Patched, g.report.Stale = true, n
		case "poweroff":
			poweroff()
		case "reboot":
			_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
		default:
			g.note("unknown order %q", d.Head)
		}
	}
}

func (g *guest) write(dev, text string) {
	f, err := os.OpenFile(dev, os.O_WRONLY|unix.O_SYNC, 0)
	if err != nil {
		g.note("write: %v", err)
		return
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text+"\n"), conformance.WriteOffset); err != nil {
		g.note("write: %v", err)
	}
}

// head returns the first line of a disk, past the guest's page cache.
func head(dev string) string {
	f, err := os.OpenFile(dev, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	raw := make([]byte, 8192)
	// Direct reads need an aligned buffer.
	off := 4096 - int(uintptr(unsafe.Pointer(&raw[0]))%4096)
	buf := raw[off : off+4096]
	n, _ := f.Read(buf)
	line, _, _ := bytes.Cut(buf[:n], []byte{'\n'})
	line, _, _ = bytes.Cut(line, []byte{0})
	return string(bytes.ToValidUTF8(line, []byte("?")))
}

func readAll(path string) string {
	raw, _ := os.ReadFile(path)
	return string(raw)
}

func readLine(path string) string { return strings.TrimSpace(readAll(path)) }

func random() string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// loadModules loads what the test put into the initramfs, over and over until
// nothing more goes in, so that their order does not matter.
func loadModules(g *guest) {
	left, _ := filepath.Glob("/modules/*.ko")
	sort.Strings(left)
	for progress := true; progress && len(left) > 0; {
		progress = false
		var again []string
		for _, path := range left {
			f, err := os.Open(path)
			if err != nil {
				continue
			}
			err = unix.FinitModule(int(f.Fd()), "", 0)
			f.Close()
			switch {
			case err == nil || errors.Is(err, unix.EEXIST):
				progress = true
			default:
				again = append(again, path)
			}
		}
		left = again
	}
	for _, path := range left {
		g.note("module %s does not load", filepath.Base(path))
	}
}

func poweroff() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	halt()
}

func halt() { select {} }
