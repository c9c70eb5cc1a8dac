package controlplane

import (
	"fmt"

	"github.com/berth-cloud/berth/controlplane/audit"
)

// Audit contains the bounds of the audit log; docs/operations.md explains them.
type Audit struct {
	AuditMaxPerWorkspace int `env:"BERTH_AUDIT_MAX_PER_WORKSPACE" envDefault:"5000"` // entries of one workspace, and of the operators
	AuditMax             int `env:"BERTH_AUDIT_MAX" envDefault:"50000"`              // entries in all; each takes about 1 KB of memory on every replica
}

// leastAudit is the least that the log may be bounded to.
const leastAudit = 100

// validate checks the values that are set.
func (c *Audit) validate() error {
	if n := c.AuditMaxPerWorkspace; n != 0 && n < leastAudit {
		return fmt.Errorf("BERTH_AUDIT_MAX_PER_WORKSPACE is %d, want %d or more", n, leastAudit)
	}
	if n := c.AuditMax; n != 0 && n < leastAudit {
		return fmt.Errorf("BERTH_AUDIT_MAX is %d, want %d or more", n, leastAudit)
	}
	return nil
}

func (c *Audit) audit() audit.Config {
	return audit.Config{MaxPerWorkspace: c.AuditMaxPerWorkspace, Max: c.AuditMax}
}
