package controlplane

import (
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/database"
)

// Databases contains the settings of managed databases. A nil one has its default; zero
// means zero.
type Databases struct {
	Idle            *time.Duration `env:"BERTH_DB_IDLE" envDefault:"15m"`            // without a client for this long, a database sleeps
	FirstBackup     *time.Duration `env:"BERTH_DB_FIRST_BACKUP" envDefault:"2m"`     // after it is first ready
	ArchiveInterval *time.Duration `env:"BERTH_DB_ARCHIVE_INTERVAL" envDefault:"1m"` // the most by which the archive may lag behind writes
	TargetTimeAge   *time.Duration `env:"BERTH_DB_TARGET_TIME_MIN_AGE" envDefault:"2m"`
	BackupInterval  *time.Duration `env:"BERTH_DB_BACKUP_INTERVAL" envDefault:"24h"`
	Retention       *time.Duration `env:"BERTH_DB_RETENTION" envDefault:"168h"`  // how far back a database can be restored
	FailoverETA     *time.Duration `env:"BERTH_DB_FAILOVER_ETA" envDefault:"3m"` // roughly how long a failover takes, as clients are told

	MaxPerWorkspace *int `env:"BERTH_DB_MAX_PER_WORKSPACE" envDefault:"100"`
}

// validate checks the values that are set.
func (c *Databases) validate() error {
	for _, t := range []struct {
		name string
		d    *time.Duration
		zero bool // it may be zero
	}{
		{"BERTH_DB_IDLE", c.Idle, false}, {"BERTH_DB_FIRST_BACKUP", c.FirstBackup, true}, {"BERTH_DB_ARCHIVE_INTERVAL", c.ArchiveInterval, false},
		{"BERTH_DB_TARGET_TIME_MIN_AGE", c.TargetTimeAge, true}, {"BERTH_DB_BACKUP_INTERVAL", c.BackupInterval, false},
		{"BERTH_DB_RETENTION", c.Retention, false}, {"BERTH_DB_FAILOVER_ETA", c.FailoverETA, false},
	} {
		switch {
		case t.d == nil || *t.d >= time.Second || *t.d == 0 && t.zero:
		case t.zero:
			return fmt.Errorf("%s is %s, want 0s, or at least 1s", t.name, *t.d)
		default:
			return fmt.Errorf("%s is %s, want at least 1s", t.name, *t.d)
		}
	}
	switch d := c.ArchiveInterval; {
	case d != nil && (*d < 3*time.Second || *d > time.Hour):
		return fmt.Errorf("BERTH_DB_ARCHIVE_INTERVAL is %s, want 3s to 1h", *d)
	case c.Retention != nil && *c.Retention < core.OrZero(c.TargetTimeAge):
		return fmt.Errorf("BERTH_DB_RETENTION is %s, less than BERTH_DB_TARGET_TIME_MIN_AGE: nothing could be cloned", *c.Retention)
	case core.OrZero(c.MaxPerWorkspace) < 0:
		return fmt.Errorf("BERTH_DB_MAX_PER_WORKSPACE is %d, want 0 or more", *c.MaxPerWorkspace)
	}
	return nil
}

// databases converts the settings for package database.
func (c *Config) databases() database.Config {
	d := c.Databases
	return database.Config{
		Domain: c.DBDomain, RouterPort: c.DBRouterPort, Idle: core.OrZero(d.Idle), FirstBackup: d.FirstBackup,
		ArchiveInterval: core.OrZero(d.ArchiveInterval), TargetTimeAge: d.TargetTimeAge, BackupInterval: core.OrZero(d.BackupInterval),
		Retention: core.OrZero(d.Retention), FailoverETA: core.OrZero(d.FailoverETA), MaxPerWorkspace: d.MaxPerWorkspace,
	}
}
