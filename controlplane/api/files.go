package api

// FileStat is one entry of a sandbox's file system. It describes a symbolic link
// itself, not its target.
type FileStat struct {
	Path       string   `json:"path"`
	Name       string   `json:"name"`
	Type       FileType `json:"type"`
	SizeBytes  int64    `json:"size_bytes"`
	Mode       string   `json:"mode"` // octal permissions: "0644"
	UID        int      `json:"uid"`
	GID        int      `json:"gid"`
	ModifiedAt Time     `json:"modified_at"`
	Target     string   `json:"target,omitempty"` // of a symlink
}

// FileType is the type of an entry.
type FileType string

// FileOther is a device, a socket or a pipe.
const (
	FileRegular FileType = "file"
	FileDir     FileType = "dir"
	FileSymlink FileType = "symlink"
	FileOther   FileType = "other"
)

// Directory is the content of a directory, sorted by name.
type Directory struct {
	Path    string     `json:"path"`
	Entries []FileStat `json:"entries"`
}

// Port is a port of a sandbox on which something listens, which was registered, or
// both.
type Port struct {
	Port     int    `json:"port"`
	Protocol string `json:"protocol"` // "tcp" or "udp"
	Process  string `json:"process"`  // that listens; empty if there is none or it is unknown
	URL      string `json:"url"`      // its preview; empty for udp
	Label    string `json:"label"`    // as registered
}

// AddPort is the body of POST /v1/sandboxes/{id}/ports.
type AddPort struct {
	Port  int    `json:"port" minimum:"1" maximum:"65535"`
	Label string `json:"label,omitempty" maxLength:"63"`
}

// Event is one thing that happened to a sandbox.
type Event struct {
	TS        Time      `json:"ts"`
	SandboxID string    `json:"sandbox_id"`
	AgentID   string    `json:"agent_id"`
	Type      string    `json:"type"`
	Code      EventCode `json:"code"`
	Message   string    `json:"message"`
	Metadata  Object    `json:"metadata"`
}

// EventCode is the severity of an event.
type EventCode string

// The severities of events.
const (
	EventOK    EventCode = "ok"
	EventError EventCode = "error"
	EventWarn  EventCode = "warn"
)

// LogLine is one line of a log: the data of the server-sent events stdout,
// stderr and console.
type LogLine struct {
	Line    string `json:"line"`
	TS      *Time  `json:"ts,omitempty"`      // when it was written, if known
	Partial bool   `json:"partial,omitempty"` // the line is very long and continues in the next event
	// Instance is the app's instance that wrote it: the beginning of its sandbox's id. It
	// is empty in other logs.
	Instance string `json:"instance,omitempty"`
}

// Output is a piece of a command's output: the data of the server-sent events stdout
// and stderr.
type Output struct {
	Data     string `json:"data"`
	Encoding string `json:"encoding,omitempty"` // "base64" if the bytes are not UTF-8
}

// Exit is how a command ended: the data of the server-sent event exit.
type Exit struct {
	ExitCode   int   `json:"exit_code"` // 128+n when signal n ended it
	DurationMS int64 `json:"duration_ms"`
	TimedOut   bool  `json:"timed_out"`
}

// Frame is a text frame of the WebSocket routes exec/pty and exec/ws.
type Frame struct {
	Type       string `json:"type"`               // in: stdin, eof, signal, resize; out: stdout, stderr, exit, error
	Data       string `json:"data,omitempty"`     // of stdin, stdout, stderr
	Encoding   string `json:"encoding,omitempty"` // "base64" if data is base64
	Signal     string `json:"signal,omitempty"`   // of signal, without SIG: "INT"
	Cols       uint16 `json:"cols,omitempty"`     // of resize
	Rows       uint16 `json:"rows,omitempty"`
	ExitCode   *int   `json:"exit_code,omitempty"` // of exit
	DurationMS *int64 `json:"duration_ms,omitempty"`
	TimedOut   *bool  `json:"timed_out,omitempty"`
	Error      string `json:"error,omitempty"` // of error
	Detail     string `json:"detail,omitempty"`
}

// exit converts a frame of type exit, and returns nil for any other. Older services
// omit fields that are zero.
func (f *Frame) exit() *Exit {
	if f.Type != "exit" || f.ExitCode == nil {
		return nil
	}
	out := &Exit{ExitCode: *f.ExitCode}
	if f.DurationMS != nil {
		out.DurationMS = *f.DurationMS
	}
	if f.TimedOut != nil {
		out.TimedOut = *f.TimedOut
	}
	return out
}
