package tune

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/guest/pgapi"
)

func TestTiers(t *testing.T) {
	for name, c := range map[string]struct {
		memoryMB int
		want     map[string]string
	}{
		"1g": {1024, map[string]string{
			"max_connections": "100", "shared_buffers": "256MB", "effective_cache_size": "640MB", "work_mem": "4096kB",
			"maintenance_work_mem": "64MB", "max_wal_size": "1024MB", "min_wal_size": "128MB", "temp_file_limit": "4096MB",
		}},
		"4g": {4096, map[string]string{
			"max_connections": "200", "shared_buffers": "1024MB", "effective_cache_size": "2560MB", "work_mem": "7864kB",
			"maintenance_work_mem": "256MB", "max_wal_size": "4096MB", "min_wal_size": "512MB", "temp_file_limit": "16384MB",
		}},
		"16g": {16384, map[string]string{
			"max_connections": "400", "shared_buffers": "4096MB", "effective_cache_size": "10240MB", "work_mem": "15728kB",
			"maintenance_work_mem": "1024MB", "max_wal_size": "8192MB", "min_wal_size": "1024MB", "temp_file_limit": "65536MB",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c.want["max_worker_processes"], c.want["max_parallel_workers"] = "8", "8"
			c.want["max_parallel_workers_per_gather"], c.want["max_parallel_maintenance_workers"] = "2", "2"
			c.want["archive_timeout"] = "40s"
			start, reload := Params(pgapi.Settings{MemoryMB: c.memoryMB, CPUs: 8, ArchiveIntervalSeconds: 60})
			got := map[string]string{}
			for _, p := range append(start, reload...) {
				got[p.Name] = p.Value
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheArchiveTimeoutLeavesTimeToStore(t *testing.T) {
	for interval, want := range map[int]int{1: 1, 2: 1, 3: 2, 5: 4, 15: 10, 60: 40, 3600: 2400} {
		if got := ArchiveTimeout(interval); got != want {
			t.Errorf("%d s: %d s, want %d s", interval, got, want)
		}
	}
}

func TestSettingsOutOfBounds(t *testing.T) {
	if err := Check(Default); err != nil {
		t.Error(err)
	}
	for name, s := range map[string]pgapi.Settings{
		"no memory":       {MemoryMB: 0, CPUs: 8, ArchiveIntervalSeconds: 60},
		"too much memory": {MemoryMB: 1 << 20, CPUs: 8, ArchiveIntervalSeconds: 60},
		"no CPU":          {MemoryMB: 1024, CPUs: 0, ArchiveIntervalSeconds: 60},
		"no interval":     {MemoryMB: 1024, CPUs: 8},
		"a long interval": {MemoryMB: 1024, CPUs: 8, ArchiveIntervalSeconds: 3601},
	} {
		if Check(s) == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
