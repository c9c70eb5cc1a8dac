package controlplane

import (
	"strings"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
)

// databasesFrom reads the settings as a replica does.
func databasesFrom(t *testing.T, vars map[string]string) Databases {
	t.Helper()
	out, err := env.ParseAsWithOptions[Databases](env.Options{Environment: vars})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSettingsOfDatabasesThatAreRefused(t *testing.T) {
	for name, values := range map[string][]string{
		"BERTH_DB_IDLE":                {"1ms", "0s", "-1s"},
		"BERTH_DB_FIRST_BACKUP":        {"-1s", "1ms"},
		"BERTH_DB_ARCHIVE_INTERVAL":    {"2s", "0s", "61m"},
		"BERTH_DB_TARGET_TIME_MIN_AGE": {"500ms", "-1m"},
		"BERTH_DB_BACKUP_INTERVAL":     {"1ns", "0s"},
		"BERTH_DB_RETENTION":           {"1m", "0s"}, // the youngest moment is 2m old
		"BERTH_DB_FAILOVER_ETA":        {"0s", "1ms"},
		"BERTH_DB_MAX_PER_WORKSPACE":   {"-1"},
	} {
		for _, value := range values {
			c := databasesFrom(t, map[string]string{name: value})
			if err := c.validate(); err == nil || !strings.HasPrefix(err.Error(), name+" is ") {
				t.Errorf("%s=%s: %v", name, value, err)
			}
		}
	}
	if err := (&Databases{}).validate(); err != nil {
		t.Error(err)
	}
}

// A setting that is zero is zero, and not the default.
func TestSettingsOfDatabasesThatAreZero(t *testing.T) {
	c := databasesFrom(t, map[string]string{
		"BERTH_DB_TARGET_TIME_MIN_AGE": "0s", "BERTH_DB_FIRST_BACKUP": "0s", "BERTH_DB_MAX_PER_WORKSPACE": "0", "BERTH_DB_IDLE": "1h", "BERTH_DB_FAILOVER_ETA": "90s",
	})
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	all := Config{DBDomain: "db.test", DBRouterPort: 6432, Databases: c}
	of := all.databases()
	if *of.TargetTimeAge != 0 || *of.FirstBackup != 0 || *of.MaxPerWorkspace != 0 {
		t.Errorf("%s, %s, %d", *of.TargetTimeAge, *of.FirstBackup, *of.MaxPerWorkspace)
	}
	if of.Domain != "db.test" || of.RouterPort != 6432 || of.Idle != time.Hour || of.FailoverETA != 90*time.Second || of.Retention != 7*24*time.Hour {
		t.Errorf("%+v", of)
	}
}
