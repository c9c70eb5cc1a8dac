package api

// CommandStatus says whether a detached command has ended.
type CommandStatus string

// The states of a detached command.
const (
	CommandRunning CommandStatus = "running"
	CommandExited  CommandStatus = "exited"
)

// SandboxCommand is a detached command: it belongs to the sandbox and not to the request
// that started it.
type SandboxCommand struct {
	ID          string        `json:"id"`
	Cmd         Command       `json:"cmd"` // of a long one, its beginning
	Status      CommandStatus `json:"status" enum:"running,exited"`
	ExitCode    *int          `json:"exit_code"` // null while it runs; 128+n when signal n ended it
	TimedOut    bool          `json:"timed_out"` // timeout_seconds passed and the process group was killed
	StartedAt   Time          `json:"started_at"`
	EndedAt     *Time         `json:"ended_at"`     // null while it runs
	OutputBytes int64         `json:"output_bytes"` // that it has written: the offset of what it writes next
}

// CommandInput is the body of POST /v1/sandboxes/{id}/commands/{cid}/input.
type CommandInput struct {
	Data     string `json:"data,omitempty"`
	Encoding string `json:"encoding,omitempty"` // "base64" if data is base64
	EOF      bool   `json:"eof,omitempty"`      // nothing follows: the command reads the end of its input
}

// CommandSignal is the body of POST /v1/sandboxes/{id}/commands/{cid}/signal.
type CommandSignal struct {
	Signal string `json:"signal"` // a name such as INT, with or without SIG
}

// CommandOutput is a piece of a detached command's output: the data of the server-sent
// events stdout and stderr.
type CommandOutput struct {
	Data     string `json:"data"`
	Encoding string `json:"encoding,omitempty"` // "base64" if the bytes are not UTF-8
	Offset   int64  `json:"offset"`             // of its first byte, in the bytes of both streams
}

// CommandGap says that output which was asked for is not kept: the data of the
// server-sent event gap.
type CommandGap struct {
	Offset int64 `json:"offset"` // where the output goes on
}

// CommandExit is how a detached command ended: the data of the server-sent event exit.
type CommandExit struct {
	ExitCode   int   `json:"exit_code"` // 128+n when signal n ended it
	DurationMS int64 `json:"duration_ms"`
	TimedOut   bool  `json:"timed_out"`
	Offset     int64 `json:"offset"` // of the end of the output
}
