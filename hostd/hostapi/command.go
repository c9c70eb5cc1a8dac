package hostapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// StartCommand starts a command that belongs to the guest of a box, and not to a request.
type StartCommand struct {
	Argv      []string          `json:"argv"`
	Cwd       string            `json:"cwd,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	User      string            `json:"user,omitempty"`
	Stdin     []byte            `json:"stdin,omitempty"`
	OpenStdin bool              `json:"open_stdin,omitempty"` // more stdin may follow as CommandInput; else EOF after Stdin
	Timeout   time.Duration     `json:"timeout_ns,omitempty"` // 0: none
	Text      json.RawMessage   `json:"text,omitempty"`       // Command repeats it
	// Key, if not empty, makes the request repeatable: the guest answers the same Key and
	// Digest as before, and the same Key with another Digest with 409.
	Key    string `json:"key,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// Command is a command of a guest. Who says so is the guest.
type Command struct {
	ID          string          `json:"id"`
	Text        json.RawMessage `json:"text,omitempty"`
	Exited      bool            `json:"exited,omitempty"`
	ExitCode    int             `json:"exit_code,omitempty"` // once it has exited
	TimedOut    bool            `json:"timed_out,omitempty"`
	StartedAt   time.Time       `json:"started_at"`
	EndedAt     time.Time       `json:"ended_at,omitzero"`
	OutputBytes int64           `json:"output_bytes,omitempty"`
}

// CommandInput is input of a command.
type CommandInput struct {
	Data []byte `json:"data,omitempty"`
	EOF  bool   `json:"eof,omitempty"`
}

// CommandSignal goes to a command's process group.
type CommandSignal struct {
	Signal string `json:"signal"` // without SIG
}

// CommandOutput is a piece of a command's output. Its Stream is stdout, stderr, gap (what
// is kept begins at Offset) or exit, which is the last.
type CommandOutput struct {
	Stream string       `json:"stream"`
	Offset int64        `json:"offset"` // of the first byte, in both streams together
	Data   []byte       `json:"data,omitempty"`
	Exit   *CommandExit `json:"exit,omitempty"`
}

// CommandExit is the end of a command.
type CommandExit struct {
	ExitCode   int   `json:"exit_code"`
	DurationMS int64 `json:"duration_ms"`
	TimedOut   bool  `json:"timed_out"`
}

// MaxCommandID is how long a command's id may be.
const MaxCommandID = 64

// ValidCommandID reports whether id can be a command's: it becomes part of a path.
func ValidCommandID(id string) bool {
	if id == "" || len(id) > MaxCommandID {
		return false
	}
	for i := range len(id) {
		if c := id[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

func commandPath(id, command string) string {
	path := PathBoxes + "/" + id + "/commands"
	if command != "" {
		path += "/" + url.PathEscape(command)
	}
	return path
}

// StartCommand starts a command in a guest.
func (c *Client) StartCommand(ctx context.Context, id string, req StartCommand) (Command, error) {
	var out Command
	return out, c.do(ctx, http.MethodPost, commandPath(id, ""), req, &out)
}

// Commands returns the commands of a guest, newest first.
func (c *Client) Commands(ctx context.Context, id string) ([]Command, error) {
	var out []Command
	return out, c.do(ctx, http.MethodGet, commandPath(id, ""), nil, &out)
}

// Command returns one command.
func (c *Client) Command(ctx context.Context, id, command string) (Command, error) {
	var out Command
	return out, c.do(ctx, http.MethodGet, commandPath(id, command), nil, &out)
}

// DeleteCommand kills a command and has the guest forget it.
func (c *Client) DeleteCommand(ctx context.Context, id, command string) error {
	return c.do(ctx, http.MethodDelete, commandPath(id, command), nil, nil)
}

// WriteCommand queues input for a command.
func (c *Client) WriteCommand(ctx context.Context, id, command string, in CommandInput) error {
	return c.do(ctx, http.MethodPost, commandPath(id, command)+"/input", in, nil)
}

// SignalCommand signals a command's process group.
func (c *Client) SignalCommand(ctx context.Context, id, command string, in CommandSignal) error {
	return c.do(ctx, http.MethodPost, commandPath(id, command)+"/signal", in, nil)
}

// CommandOutput returns what a command has written since an offset and, with following,
// what it writes until its end. The caller closes it.
func (c *Client) CommandOutput(ctx context.Context, id, command string, since int64, following bool) (*Follower[CommandOutput], error) {
	query := url.Values{"since": {strconv.FormatInt(since, 10)}, "follow": {strconv.FormatBool(following)}}
	return follow[CommandOutput](ctx, c, commandPath(id, command)+"/output?"+query.Encode())
}
