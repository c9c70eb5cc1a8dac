package guestapi

import (
	"encoding/json"
	"time"
)

// A command of PathCommands belongs to the guest and not to a request: it goes on
// when its caller has gone, when the guest is saved and restored, and in each copy.
//
//	POST PathCommands                 StartCommand → 201 Command
//	GET PathCommands                  → []Command, newest first
//	GET PathCommands/{id}             → Command
//	DELETE PathCommands/{id}          → 204, once it is killed; it is forgotten
//	GET PathCommands/{id}/output      ?since=&follow= → CommandOutput, one a line
//	POST PathCommands/{id}/input      CommandInput → 204, once it is queued
//	POST PathCommands/{id}/signal     CommandSignal → 204
//
// Their errors are texts for the user, as those of files are.

// Bounds on what commands make the agent keep.
const (
	MaxCommands     = 64       // that run at once
	KeptCommands    = 100      // that have ended; the first to end is forgotten first
	KeptOutput      = 8 << 20  // of each command, in bytes: the last of both streams together
	MaxInput        = 1 << 20  // that one command has not read yet, in bytes
	MaxHeldInput    = 8 << 20  // that all of them have not read yet, in bytes
	MaxCommandText  = 16 << 10 // of StartCommand.Text, in bytes
	MaxCommandPiece = 32 << 10 // of CommandOutput.Data, in bytes
)

// StartCommand starts a command. OutputLimitBytes and TTY are not used. With OpenStdin
// more input may follow as CommandInput.
type StartCommand struct {
	ExecRequest
	// Text is the command as its caller wrote it, which Command.Text repeats.
	Text json.RawMessage `json:"text,omitempty"`
	// Key, if not empty, makes the request repeatable: while the guest knows the
	// command that it made, the same Key and Digest get the first answer again, and
	// the same Key with another Digest 409.
	Key    string `json:"key,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// CommandStatus says whether a command has ended.
type CommandStatus string

// The states of a command.
const (
	CommandRunning CommandStatus = "running"
	CommandExited  CommandStatus = "exited"
)

// Command is one command of the guest.
type Command struct {
	ID          string          `json:"id"`
	Text        json.RawMessage `json:"text,omitempty"`
	Status      CommandStatus   `json:"status"`
	ExitCode    *int            `json:"exit_code,omitempty"` // once it has ended
	TimedOut    bool            `json:"timed_out,omitempty"`
	StartedAt   time.Time       `json:"started_at"`
	EndedAt     *time.Time      `json:"ended_at,omitempty"`
	OutputBytes int64           `json:"output_bytes"` // that it has written: the offset of what it writes next
}

// CommandInput is input of a command. What does not fit is refused as a whole.
type CommandInput struct {
	Data []byte `json:"data,omitempty"`
	EOF  bool   `json:"eof,omitempty"` // nothing follows
}

// CommandSignal goes to the command's process group.
type CommandSignal struct {
	Signal string `json:"signal"` // a name without SIG
}

// The values of CommandOutput.Stream beside StreamStdout and StreamStderr.
const (
	StreamGap  = "gap"  // what was asked for is not kept: the output goes on at Offset
	StreamExit = "exit" // the command has ended; the last line
)

// CommandOutput is a piece of a command's output. Offsets count the bytes of both
// streams, in the order in which guestd read them.
type CommandOutput struct {
	Stream string    `json:"stream"`
	Offset int64     `json:"offset"` // of the piece's first byte
	Data   []byte    `json:"data,omitempty"`
	Exit   *ExecExit `json:"exit,omitempty"` // with StreamExit
}
