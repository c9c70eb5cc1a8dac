package hostapi

import "time"

// ExecStream starts one process whose streams are frames on the upgraded
// connection. The frames are guestd's (guest/guestapi, frame.go): a type byte,
// the payload's length as a big-endian uint32, the payload. A connection that
// ends kills the process group; a reader that is slow slows the process.
type ExecStream struct {
	Argv      []string          `json:"argv"` // empty with TTY: the login shell
	Cwd       string            `json:"cwd,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	User      string            `json:"user,omitempty"`
	Stdin     []byte            `json:"stdin,omitempty"`
	OpenStdin bool              `json:"open_stdin,omitempty"` // more stdin follows as frames; else EOF after Stdin
	TTY       *TTY              `json:"tty,omitempty"`
	Timeout   time.Duration     `json:"timeout_ns,omitempty"` // 0: none
	// MustStart has a program that is missing answered by FrameError with
	// guestapi.CodeNoProgram instead of by exit code 127: a language server.
	MustStart bool `json:"must_start,omitempty"`
}

// TTY asks for a pseudo-terminal; output then comes as stdout alone.
type TTY struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
	Term string `json:"term,omitempty"`
}
