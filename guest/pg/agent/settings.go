package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/guest/pg/tune"
	"github.com/berth-cloud/berth/guest/pgapi"
)

const settingsFile = "settings.json"

func (a *Agent) readSettings() (pgapi.Settings, error) {
	s := a.cfg.Settings
	raw, err := os.ReadFile(filepath.Join(a.stateDir(), settingsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, tune.Check(s)
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("%s: %w", settingsFile, err)
	}
	return s, tune.Check(s)
}

// set puts settings into force, with a restart where PostgreSQL needs one.
func (a *Agent) set(ctx context.Context, s pgapi.Settings) (pgapi.SettingsApplied, error) {
	if err := tune.Check(s); err != nil {
		return pgapi.SettingsApplied{}, fmt.Errorf("%w: %w", errInvalid, err)
	}
	// A server that is being started has no handler for the signal of a reload yet.
	if v, _ := a.server.View(); v.Settings == s {
		return pgapi.SettingsApplied{}, nil
	}
	if !a.op.TryLock() {
		return pgapi.SettingsApplied{}, errBusy
	}
	defer a.op.Unlock()
	v, _ := a.server.View()
	applied := pgapi.SettingsApplied{Changed: true}
	raw, err := json.Marshal(s)
	if err != nil {
		return applied, err
	}
	if err := atomicfile.Write(filepath.Join(a.stateDir(), settingsFile), raw, 0o600); err != nil {
		return applied, err
	}
	restart, err := a.server.Reload(s, v.Mode)
	if err != nil || !restart || a.restoring() { // a recovery goes on as it began
		return applied, err
	}
	applied.Restarted = true
	return applied, a.server.Restart(context.WithoutCancel(ctx), v.Mode)
}
