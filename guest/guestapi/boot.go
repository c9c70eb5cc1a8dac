package guestapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// BootSpecPath is where the initramfs holds the guest's BootSpec, and
// RunBootSpecPath where guestd keeps it after it left the initramfs.
const (
	BootSpecPath    = "/berth.json"
	RunBootSpecPath = RunDir + "/boot.json"
)

// RunDir is guestd's own directory in the guest, on a tmpfs; ProgramPath is
// guestd itself. `guestd scrub` clears the guest's free memory.
const (
	RunDir      = "/run/berth"
	ProgramPath = RunDir + "/guestd"
)

// GenerationPath holds a number that is higher after each restore, wake and fork
// than it was before, in decimal with a newline, overwritten in one write before
// the Identity is confirmed. A program that must reseed watches this file. (It is
// not Identity.Generation: a fork's may be that of its parent.)
const GenerationPath = RunDir + "/generation"

// StartStatePath holds the StartState of the template's start command.
const StartStatePath = RunDir + "/start.json"

// StartLogPath is where both streams of the start command are kept, a line each:
// time, stream, F (or P for a piece of a longer line), text. It is rotated to
// StartLogPath + ".1".
const StartLogPath = "/var/log/berth/start.log"

// LSPDir holds a template's language servers: LSPDir/<lang> is an executable that
// speaks the Language Server Protocol on its standard input and output.
const LSPDir = "/etc/berth/lsp"

// HookDir holds a template's own programs that run at each new Identity, before
// it is confirmed.
const HookDir = "/etc/berth/identity.d"

// BootSpec is what a guest must know of its template before anything can reach
// it over the network.
type BootSpec struct {
	Template string            `json:"template,omitempty"`
	Env      map[string]string `json:"env,omitempty"`   // of every exec and of Start
	Start    string            `json:"start,omitempty"` // shell command, supervised while the guest runs
}

// StartState is how the template's start command stands.
type StartState struct {
	Running  bool `json:"running"`
	ExitCode int  `json:"exit_code"` // of its last end; 128+n when signal n ended it
	Restarts int  `json:"restarts"`
}

// ReadBootSpec reads the guest's BootSpec; a guest without one has the zero value.
func ReadBootSpec() (BootSpec, error) {
	var spec BootSpec
	raw, err := os.ReadFile(RunBootSpecPath)
	if errors.Is(err, os.ErrNotExist) {
		return spec, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &spec)
	}
	if err != nil {
		return spec, fmt.Errorf("read the boot specification: %w", err)
	}
	return spec, nil
}
