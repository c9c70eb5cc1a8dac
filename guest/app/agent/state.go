package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/guest/app/build"
	"github.com/berth-cloud/berth/guest/app/source"
	"github.com/berth-cloud/berth/guest/appapi"
)

const (
	stateFile  = "state.json"
	uploadFile = "source.tar.gz"
	cacheFile  = "caches.tar"
	imageFile  = "run.json" // what an app with an image is started with
	// stateFormat changes with what an older guestapp would misread.
	stateFormat = 1
)

// state is what outlives the program. Only root may read it: it has the app's variables.
type state struct {
	Format  int                `json:"format"`
	Build   appapi.Build       `json:"build"`
	Status  appapi.BuildStatus `json:"status"`
	Made    build.Made         `json:"made"`
	Run     appapi.Run         `json:"run"`
	Running bool               `json:"running"` // the app is to run
}

func readState(file string) (state, error) {
	var s state
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err == nil && s.Format != stateFormat {
		err = fmt.Errorf("format %d is not known", s.Format)
	}
	if err != nil {
		return s, fmt.Errorf("state of the app: %w", err)
	}
	return s, nil
}

// save writes the state; the caller has mu.
func (a *Agent) save() error {
	a.state.Format = stateFormat
	raw, err := json.Marshal(a.state)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := atomicfile.Write(a.path(stateFile), raw, 0o600); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// secrets are the values that the app's log does not show.
func (s *state) secrets() []string {
	out := build.Secrets(s.Build)
	for _, names := range [][]string{s.Build.Secrets, s.Run.Secrets} {
		for _, name := range names {
			out = append(out, s.Run.Env[name])
		}
	}
	return out
}

// Bounds of a request.
const (
	maxCommand = 64 << 10
	maxVars    = 1000
	maxTimeout = 24 * 3600 // seconds
)

func checkBuild(in appapi.Build) error {
	switch {
	case in.ID == "":
		return fmt.Errorf("%w: id is missing", errInvalid)
	case (in.Git == nil) == !in.Upload:
		return fmt.Errorf("%w: exactly one of git and upload says where the source is", errInvalid)
	case in.Port < 0 || in.Port > 65535:
		return fmt.Errorf("%w: port is %d", errInvalid, in.Port)
	case in.TimeoutSeconds < 0 || in.TimeoutSeconds > maxTimeout:
		return fmt.Errorf("%w: timeout_seconds is %d", errInvalid, in.TimeoutSeconds)
	case in.RootDirectory != "" && !fs.ValidPath(path.Clean(strings.Trim(in.RootDirectory, "/"))):
		return fmt.Errorf("%w: root_directory is %.100q: want a relative path without \"..\"", errInvalid, in.RootDirectory)
	}
	for _, line := range []string{in.InstallCommand, in.BuildCommand, in.StartCommand, in.RootDirectory} {
		if strings.ContainsRune(line, 0) || len(line) > maxCommand {
			return fmt.Errorf("%w: a command is too long, or contains a NUL byte", errInvalid)
		}
	}
	if in.Git != nil {
		if err := source.CheckGit(*in.Git); err != nil {
			return fmt.Errorf("%w: %w", errInvalid, err)
		}
	}
	return checkEnv(in.Env)
}

func checkEnv(env map[string]string) error {
	if len(env) > maxVars {
		return fmt.Errorf("%w: more than %d variables", errInvalid, maxVars)
	}
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fmt.Errorf("%w: variable %.100q", errInvalid, k)
		}
	}
	return nil
}
