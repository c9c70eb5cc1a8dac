package vmm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
)

// Names in a runtime directory. It belongs to the user that the VMM runs as, so
// whatever is read from it may have been put there by a guest that broke out.
const (
	recordName = "vmm.json"
	logName    = "vmm.log"
	socketName = "api.sock"
	eventsName = "event.json"
	serialName = "serial.log"
)

// SocketPath is where the VMM of a runtime directory listens.
func SocketPath(dir string) string { return filepath.Join(dir, socketName) }

// SerialPath is the place in a runtime directory for the guest's serial output.
func SerialPath(dir string) string { return filepath.Join(dir, serialName) }

// EventsPath is the event monitor's stream in a runtime directory.
func EventsPath(dir string) string { return filepath.Join(dir, eventsName) }

// LogPath is the VMM's own log in a runtime directory.
func LogPath(dir string) string { return filepath.Join(dir, logName) }

// record is vmm.json: which process the VMM of a runtime directory is.
type record struct {
	PID int `json:"pid"`
	// StartTime is in clock ticks since the host's boot (field 22 of
	// /proc/<pid>/stat). With the pid it names one process of one boot.
	StartTime uint64 `json:"start_time"`
	// BootID is /proc/sys/kernel/random/boot_id. Another one means that the
	// host was rebooted and the process is gone.
	BootID string `json:"boot_id"`
}

func readRecord(dir string) (record, error) {
	var r record
	path := filepath.Join(dir, recordName)
	f, err := openPlain(path, os.O_RDONLY, 0)
	if err != nil {
		return r, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("read %s: %w", path, err)
	}
	return r, nil
}

// writeRecord replaces vmm.json so that a reader sees the old one or the new. It
// is not synced: a crash of the host ends the process it describes.
func writeRecord(dir string, r record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Swap(filepath.Join(dir, recordName), raw, 0o600)
}

// openPlain opens a regular file in an untrusted directory: it follows no link, and
// does not block on a pipe.
func openPlain(path string, flags int, mode os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, mode)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file of its own", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// userOf returns the effective user of a process.
func userOf(pid int) (int, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "Uid:" {
			return strconv.Atoi(f[2])
		}
	}
	return 0, errors.New("no user in process status")
}

func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(raw)), nil
}

// procStat is the part of /proc/<pid>/stat that is used.
type procStat struct {
	State     byte
	StartTime uint64
}

func readStat(pid int) (procStat, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, err
	}
	return parseStat(raw)
}

// parseStat reads a /proc/<pid>/stat line. The command name in parentheses may
// itself hold spaces and parentheses, so fields are counted from the last one.
func parseStat(raw []byte) (procStat, error) {
	i := bytes.LastIndexByte(raw, ')')
	if i < 0 {
		return procStat{}, errors.New("no command name in stat line")
	}
	f := strings.Fields(string(raw[i+1:]))
	// f[0] is field 3 (state), so field n is f[n-3]; 22 is the start time.
	if len(f) < 20 || len(f[0]) != 1 {
		return procStat{}, errors.New("stat line is too short")
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return procStat{}, fmt.Errorf("start time in stat line: %w", err)
	}
	return procStat{State: f[0][0], StartTime: start}, nil
}
