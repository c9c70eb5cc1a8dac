// Package tune says how PostgreSQL is set for a guest of a size: a pure function.
package tune

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// Bounds of Settings.
const (
	MinMemoryMB = 256
	MaxMemoryMB = 256 << 10
	MaxCPUs     = 256
	MaxInterval = time.Hour
)

// Default is the smallest tier.
var Default = pgapi.Settings{MemoryMB: 1024, CPUs: 8, ArchiveIntervalSeconds: 60}

// Check says what is wrong with settings.
func Check(s pgapi.Settings) error {
	switch {
	case s.MemoryMB < MinMemoryMB || s.MemoryMB > MaxMemoryMB:
		return fmt.Errorf("memory_mb is %d: want %d to %d", s.MemoryMB, MinMemoryMB, MaxMemoryMB)
	case s.CPUs < 1 || s.CPUs > MaxCPUs:
		return fmt.Errorf("cpus is %d: want 1 to %d", s.CPUs, MaxCPUs)
	case s.ArchiveIntervalSeconds < 1 || time.Duration(s.ArchiveIntervalSeconds)*time.Second > MaxInterval:
		return fmt.Errorf("archive_interval_seconds is %d: want 1 to %d", s.ArchiveIntervalSeconds, int(MaxInterval.Seconds()))
	}
	return nil
}

// Param is a line of PostgreSQL's configuration.
type Param struct{ Name, Value string }

// Params are the settings that follow from a size: those that PostgreSQL takes at its
// start alone, and those that a reload changes.
func Params(s pgapi.Settings) (start, reload []Param) {
	connections := maxConnections(s.MemoryMB)
	shared := s.MemoryMB / 4
	start = []Param{
		{"max_connections", strconv.Itoa(connections)},
		{"shared_buffers", mb(shared)},
		{"max_worker_processes", strconv.Itoa(max(8, s.CPUs))},
	}
	reload = []Param{
		// What the guest's kernel, guestpg and the sessions leave to the page cache.
		{"effective_cache_size", mb(s.MemoryMB * 5 / 8)},
		// If half of all sessions sorted at once, what shared_buffers leave would do.
		{"work_mem", kb(max(4<<10, (s.MemoryMB-shared)<<10/(2*connections)))},
		{"maintenance_work_mem", mb(min(s.MemoryMB/16, 2<<10))},
		{"max_parallel_workers", strconv.Itoa(s.CPUs)},
		{"max_parallel_workers_per_gather", strconv.Itoa(min(2, s.CPUs))},
		{"max_parallel_maintenance_workers", strconv.Itoa(min(2, s.CPUs))},
		{"max_wal_size", mb(MaxWAL(s))},
		{"min_wal_size", mb(max(80, min(s.MemoryMB/8, 1<<10)))},
		// Of one session: what it spills must not be the whole volume.
		{"temp_file_limit", mb(4 * s.MemoryMB)},
		{"archive_timeout", strconv.Itoa(ArchiveTimeout(s.ArchiveIntervalSeconds)) + "s"},
	}
	return start, reload
}

// MaxWAL is PostgreSQL's max_wal_size, in MB.
func MaxWAL(s pgapi.Settings) int { return min(s.MemoryMB, 8<<10) }

// ArchiveTimeout is after how many seconds PostgreSQL switches a WAL segment that is
// not full, so that it is in the archive before interval is over: the checkpointer
// looks once a second or less, and a host takes its time.
func ArchiveTimeout(interval int) int {
	return max(1, interval-max(1, interval/3))
}

// maxConnections grows with the root of the memory: 100 for 1 GB, 400 for 16.
func maxConnections(memoryMB int) int {
	return int(math.Round(100 * math.Sqrt(float64(memoryMB)/1024)))
}

func mb(n int) string { return strconv.Itoa(n) + "MB" }
func kb(n int) string { return strconv.Itoa(n) + "kB" }
