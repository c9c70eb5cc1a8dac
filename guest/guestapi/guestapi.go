// Package guestapi is the wire contract between hostd and guestd, the agent in
// every guest: plain HTTP/1.1 over the slot's private link. guestd answers the
// gateway's address only, so that no process of the guest, and no other guest, can
// drive it.
package guestapi

import "time"

// Port is where guestd listens on the guest's address. It is privileged, and no
// common service uses it, so it is free in a workload.
const Port = 999

// Addresses on the slot's link, the same in every slot. The link is a /30.
const (
	GuestAddr   = "198.18.0.2"
	GatewayAddr = "198.18.0.1"
)

// Routes of guestd.
const (
	PathHealth   = "/v1/health"   // GET → Health
	PathIdentity = "/v1/identity" // POST Identity, as its message (identity.go) → IdentityConfirmation; the same one again sets the clock alone
	PathExec     = "/v1/exec"     // POST ExecRequest → 101 and frames (see frame.go)
	PathShutdown = "/v1/shutdown" // POST {} → 202, then sync and power off
	PathSync     = "/v1/sync"     // POST {} → 204 once every file system is flushed
	PathFS       = "/v1/fs"       // ?path=: GET → the bytes; PUT, the body is the bytes, &mode= → 201 new, 204 replaced; DELETE, &recursive= → 204
	PathFSStat   = "/v1/fs/stat"  // ?path=: GET → FileStat
	PathFSDir    = "/v1/fs/dir"   // ?path=: GET → Directory; POST → 201, with parents
	PathPorts    = "/v1/ports"    // GET → []ListeningPort
	PathLogs     = "/v1/logs"     // GET ?stream=&tail=&follow= → the start command's output, one LogLine a line
	PathFreeze   = "/v1/freeze"   // POST Freeze → Frozen: stops the workload's processes until the next identity
	PathMounts   = "/v1/mounts"   // POST Mount → 204 once it is mounted
	PathConnect  = "/v1/connect"  // POST ?port= → 101 and the bytes of a connection to that port of one of Loopback
	PathCommands = "/v1/commands" // the guest's own commands; see command.go
)

// Upgrade is the value of the Upgrade header on PathExec.
const Upgrade = "berth-frames/1"

// UpgradeBytes is the value of the Upgrade header on PathConnect.
const UpgradeBytes = "berth-bytes/1"

// Loopback are the addresses that PathConnect tries, in this order. The last is what
// the guest's own name means in its /etc/hosts.
var Loopback = [...]string{"127.0.0.1", "::1", "127.0.1.1"}

// Health says that guestd serves, and which identity it last confirmed.
type Health struct {
	Version    string `json:"version"`    // of guestd
	Generation uint64 `json:"generation"` // of the last Identity; 0 before the first
	UptimeMS   int64  `json:"uptime_ms"`  // since the guest's kernel booted
	// Connections counts the open TCP connections to other machines, but for
	// those to guestd: those that Identity.ResetTCP aborts.
	Connections int `json:"connections"`
	// Start is absent in a template without a start command.
	Start *StartState `json:"start,omitempty"`
}

// Freeze stops the workload's processes before the guest is captured. They run
// again when the guest has taken an identity, and so draw random numbers that no
// other copy of the guest has.
type Freeze struct {
	// NotAfter is when the caller gives up, in Unix nanoseconds: a copy of the
	// guest that reads the request late must not freeze.
	NotAfter int64 `json:"not_after"`
	// HoldMS is how long, in the guest's own time, they stay stopped where no
	// identity comes. Then the guest reseeds from its entropy device and resumes them.
	HoldMS int64 `json:"hold_ms"`
	WaitMS int64 `json:"wait_ms"` // how long to wait until they stand still
}

// Frozen is the result of a Freeze. Moving names processes in a system call that
// cannot be interrupted; they stop when it returns.
type Frozen struct {
	Moving []string `json:"moving,omitempty"` // "pid name (state)"
}

// ExecRequest starts one process in its own session and process group.
type ExecRequest struct {
	Argv             []string          `json:"argv"`           // empty with TTY: the user's shell, as a login shell
	Cwd              string            `json:"cwd,omitempty"`  // default: the user's home
	Env              map[string]string `json:"env,omitempty"`  // over the identity's environment
	User             string            `json:"user,omitempty"` // name or uid[:gid]; default root
	Stdin            []byte            `json:"stdin,omitempty"`
	OpenStdin        bool              `json:"open_stdin,omitempty"` // more stdin follows as frames; else EOF after Stdin
	TTY              *TTY              `json:"tty,omitempty"`
	Timeout          time.Duration     `json:"timeout,omitempty"`            // nanoseconds; 0: none. Then the group is killed
	OutputLimitBytes int64             `json:"output_limit_bytes,omitempty"` // per stream; past it output is drained and dropped; 0: none
	// MustStart makes a missing or not executable program a FrameError with
	// CodeNoProgram, where otherwise it ends as in a shell.
	MustStart bool `json:"must_start,omitempty"`
}

// TTY asks for a pseudo-terminal; output then comes on FrameStdout alone.
type TTY struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
	Term string `json:"term,omitempty"`
}

// ExecExit is the payload of FrameExit, the last frame of an exec.
type ExecExit struct {
	ExitCode   int    `json:"exit_code"`        // 128+n when signal n ended it
	Signal     string `json:"signal,omitempty"` // "KILL", "TERM", … when a signal ended it
	DurationMS int64  `json:"duration_ms"`
	TimedOut   bool   `json:"timed_out"`
	Truncated  bool   `json:"truncated"` // output past OutputLimitBytes was dropped
}

// FileStat is one entry of a file system, its links not followed.
type FileStat struct {
	Path       string    `json:"path"`
	Name       string    `json:"name"`
	Type       string    `json:"type"` // "file", "dir", "symlink" or "other"
	SizeBytes  int64     `json:"size_bytes"`
	Mode       string    `json:"mode"` // octal permissions, four digits: "0644"
	UID        int       `json:"uid"`
	GID        int       `json:"gid"`
	ModifiedAt time.Time `json:"modified_at"`
	Target     string    `json:"target,omitempty"` // of a symlink
}

// Directory is a directory's entries, sorted by name.
type Directory struct {
	Path    string     `json:"path"`
	Entries []FileStat `json:"entries"`
}

// ListeningPort is a port that something in the guest listens on.
type ListeningPort struct {
	Port     int    `json:"port"`
	Protocol string `json:"protocol"` // "tcp" or "udp"
	Address  string `json:"address"`
	Process  string `json:"process,omitempty"`
	PID      int    `json:"pid,omitempty"`
}

// Mount asks for the file system of a disk. Mounting what is mounted already is
// no error.
type Mount struct {
	Serial string `json:"serial"` // of the block device
	Path   string `json:"path"`   // made with its parents where it is missing
	FSType string `json:"fstype"` // "ext4"
}

// The query of PathLogs: stream is one of these; tail is how many of the kept
// lines come first (default: all); follow=true goes on with new lines until the
// caller disconnects.
const (
	StreamStdout = "stdout"
	StreamStderr = "stderr"
	StreamBoth   = "both" // the default: in the order in which guestd read them
)

// LogLine is one line of the start command's output. A line longer than MaxLine
// bytes comes in pieces, of which all but the last are partial.
type LogLine struct {
	Stream  string    `json:"stream"` // "stdout" or "stderr"
	Time    time.Time `json:"ts"`     // when guestd read it
	Line    string    `json:"line"`   // without its end; bytes that are not UTF-8 become U+FFFD
	Partial bool      `json:"partial,omitempty"`
}

// MaxLine bounds LogLine.Line, in bytes of the command's.
const MaxLine = 16 << 10

// Codes of Error, where a caller must choose.
const (
	CodeNoProgram  = "no_such_program" // FrameError, with MustStart: argv[0] is not there or not executable
	CodeInvalidCwd = "invalid_cwd"     // FrameError: the directory is not there, or is none
	CodeNoUser     = "no_such_user"    // FrameError: the guest has no such user
	CodeLimit      = "limit_reached"   // the guest has no room for another command; the same may work later
	CodeFault      = "fault"           // FrameError: the guest is to blame, not the request
)

// Error is the body of every guestd response of status 400 and above, and of
// FrameError. For files, Error is one of the texts of guest/files.
type Error struct {
	Error  string `json:"error"`
	Detail string `json:"detail,omitempty"`
	Code   string `json:"code,omitempty"`
}
