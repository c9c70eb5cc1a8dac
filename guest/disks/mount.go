// Package disks mounts the disks that a host plugs into a running guest, and
// flushes and unmounts all of them.
package disks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/files"
	"github.com/berth-cloud/berth/guest/guestapi"
)

const (
	// deviceWait bounds the wait for a disk that is being plugged in.
	deviceWait = 10 * time.Second
	devicePoll = 20 * time.Millisecond
	// rescanEvery is how often the bus is searched meanwhile: a kernel that
	// missed the announcement of a disk, or cannot take one, finds it so.
	rescanEvery = time.Second
	// maxSerial is all that virtio has room for, in bytes.
	maxSerial = 20
	fsType    = "ext4"
	// As for the guest's own disk: the file behind it grows only with its content.
	mountOptions = "discard,noinit_itable"
)

// Paths at which nothing may be mounted, because guestd or the guest needs them;
// in trees, all paths below them too.
var (
	keptTrees = []string{"/proc", "/sys", "/dev", "/run", "/etc/berth", "/var/log/berth"}
	kept      = []string{
		"/", "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin",
		"/var", "/var/log",
	}
)

// Guest mounts disks, one at a time.
type Guest struct {
	mu       sync.Mutex
	sys, dev string
	mount    func(device, target string) error
}

// NewGuest returns the guest that this process runs in.
func NewGuest() *Guest {
	return &Guest{sys: "/sys", dev: "/dev", mount: func(device, target string) error {
		return unix.Mount(device, target, fsType, unix.MS_NOATIME, mountOptions)
	}}
}

func refusal(status int, text, detail string) error {
	return &files.Refusal{Status: status, Text: text, Detail: detail}
}

// Mount mounts a disk. It waits a while for the disk to be there; one that is
// mounted at that path already is no error.
func (g *Guest) Mount(ctx context.Context, m guestapi.Mount) error {
	path, err := check(m)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	name, number, err := g.await(ctx, m.Serial)
	if err != nil {
		return err
	}
	if err := files.MakeDir(path); err != nil {
		return err
	}
	// From here on the directory counts, and the path may change.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	target := "/proc/self/fd/" + strconv.Itoa(fd)
	found, err := os.Readlink(target)
	if err != nil {
		return err
	}
	if err := checkPath(found); err != nil {
		return err
	}
	points, err := mountPoints()
	if err != nil {
		return err
	}
	for _, p := range points {
		switch {
		case p.device == number && p.path == found:
			return nil
		case p.device == number:
			return refusal(http.StatusConflict, "already mounted", fmt.Sprintf("%s is mounted on %s", m.Serial, p.path))
		case p.path == found:
			return refusal(http.StatusConflict, "mount point in use", fmt.Sprintf("%s is mounted on %s", p.source, found))
		}
	}
	return g.attach(ctx, filepath.Join(g.dev, name), target)
}

// attach mounts a device as soon as it can be opened: the kernel lists a new disk
// a moment before.
func (g *Guest) attach(ctx context.Context, device, target string) error {
	deadline := time.Now().Add(deviceWait)
	for {
		err := g.mount(device, target)
		if err == nil {
			return nil
		}
		if !(errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT)) || time.Now().After(deadline) {
			return refusal(http.StatusUnprocessableEntity, "disk not mounted", err.Error())
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(devicePoll):
		return nil
	}
}

func check(m guestapi.Mount) (string, error) {
	path, err := files.Path(m.Path)
	if err != nil {
		return "", err
	}
	if err := checkPath(path); err != nil {
		return "", err
	}
	if m.Serial == "" || len(m.Serial) > maxSerial || strings.ContainsFunc(m.Serial, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", refusal(http.StatusBadRequest, "invalid serial", fmt.Sprintf("%.40q is not 1 to %d printable characters", m.Serial, maxSerial))
	}
	if m.FSType != "" && m.FSType != fsType {
		return "", refusal(http.StatusBadRequest, "invalid fstype", fmt.Sprintf("%.40q is not %s", m.FSType, fsType))
	}
	return path, nil
}

func checkPath(path string) error {
	bad := slices.Contains(kept, path)
	for _, tree := range keptTrees {
		bad = bad || path == tree || strings.HasPrefix(path, tree+"/")
	}
	if bad {
		return refusal(http.StatusBadRequest, files.TextInvalidPath, path+" is the guest's own")
	}
	return nil
}

// await waits for the disk of that serial number. It returns its name and its
// device number, "major:minor".
func (g *Guest) await(ctx context.Context, serial string) (name, number string, err error) {
	began := time.Now()
	rescanned := began
	for {
		if name, number = g.find(serial); name != "" {
			return name, number, nil
		}
		now := time.Now()
		if now.Sub(began) > deviceWait {
			return "", "", refusal(http.StatusNotFound, "no such disk", fmt.Sprintf("no disk has the serial number %s after %s", serial, deviceWait))
		}
		if now.Sub(rescanned) > rescanEvery {
			rescanned = now
			_ = os.WriteFile(filepath.Join(g.sys, "bus/pci/rescan"), []byte("1"), 0)
		}
		if err := pause(ctx); err != nil {
			return "", "", err
		}
	}
}

// find looks for the disk, whose node must be there as well.
func (g *Guest) find(serial string) (name, number string) {
	disks, err := os.ReadDir(filepath.Join(g.sys, "block"))
	if err != nil {
		return "", ""
	}
	for _, d := range disks {
		dir := filepath.Join(g.sys, "block", d.Name())
		raw, err := os.ReadFile(filepath.Join(dir, "serial"))
		if err != nil || strings.TrimRight(string(raw), "\x00\n ") != serial {
			continue
		}
		number, err := os.ReadFile(filepath.Join(dir, "dev"))
		if err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(g.dev, d.Name())); errors.Is(err, os.ErrNotExist) {
			continue
		}
		return d.Name(), strings.TrimSpace(string(number))
	}
	return "", ""
}
