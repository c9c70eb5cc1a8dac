package guestio

import (
	"strings"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

const (
	maxArgvBytes = 1 << 20 // half of what Linux passes to execve by default
	// MaxTimeout is the longest that an exec may run.
	MaxTimeout = time.Hour
	// MaxOutput is the most that is kept of each output stream, in bytes.
	MaxOutput = 8 << 20
)

func validateExec(r *hostapi.ExecRequest) error {
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return hosterr.Invalid("argv is empty")
	}
	total := 0
	for _, a := range r.Argv {
		if strings.ContainsRune(a, 0) {
			return hosterr.Invalid("argv holds NUL")
		}
		total += len(a) + 1
	}
	if total > maxArgvBytes {
		return hosterr.Invalid("argv is larger than %d bytes", maxArgvBytes)
	}
	if strings.ContainsRune(r.Cwd, 0) || strings.ContainsRune(r.User, 0) {
		return hosterr.Invalid("cwd or user holds NUL")
	}
	if r.Timeout <= 0 || r.Timeout > MaxTimeout {
		return hosterr.Invalid("timeout: want more than 0 and at most %s", MaxTimeout)
	}
	if r.OutputLimitBytes <= 0 || r.OutputLimitBytes > MaxOutput {
		r.OutputLimitBytes = MaxOutput
	}
	return ValidateEnv(r.Env, hostapi.MaxExecEnv)
}

// ValidateEnv checks the environment of a guest, or of a command in one, of at most limit
// bytes.
func ValidateEnv(env map[string]string, limit int) error {
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return hosterr.Invalid("environment: a name is empty or holds '=', or something holds NUL")
		}
	}
	if name, exceeded := hostapi.EnvExcess(env, limit); name != "" {
		return hosterr.Invalid("environment: with %.256s it is larger than %d bytes", name, exceeded)
	}
	return nil
}
