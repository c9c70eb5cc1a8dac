package identity

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/proc"
)

// hookTime is how long one hook may take; the create of the sandbox waits for it.
const hookTime = 20 * time.Second

// hookOutput is how much of a failed hook's output is reported, in bytes.
const hookOutput = 4 << 10

// runHooks runs the executables of HookDir by name, one after the other. A hook that
// fails, fails the identity: it may be what keeps a template's program from
// repeating its random numbers.
func (g *Guest) runHooks(id *guestapi.Identity, number uint64) error {
	dir := g.root + guestapi.HookDir
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		st, err := os.Stat(path)
		if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			continue
		}
		// Hooks make the workload's programs reseed, so these must run. The kernel
		// has been reseeded.
		g.system.thaw()
		if err := g.runHook(path, id, number); err != nil {
			return fmt.Errorf("hook %s: %w", path, err)
		}
	}
	return nil
}

func (g *Guest) runHook(path string, id *guestapi.Identity, number uint64) error {
	var output bytes.Buffer
	command, err := proc.Start(g.groups, proc.Spec{
		Argv:    []string{path},
		Cwd:     "/",
		Timeout: hookTime,
		Env: []map[string]string{id.Env, {
			"BERTH_GENERATION": fmt.Sprint(number),
			"BERTH_HOSTNAME":   id.Hostname,
		}},
		OutputLimit: hookOutput / 2,
	})
	if err != nil {
		return err
	}
	exit := command.Run(proc.Collect(&output, &output))
	switch {
	case exit.TimedOut:
		return fmt.Errorf("still running after %s; output: %q", hookTime, output.String())
	case exit.ExitCode != 0:
		return fmt.Errorf("exit code %d; output: %q", exit.ExitCode, output.String())
	}
	return nil
}
