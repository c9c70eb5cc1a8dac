package vmm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/telemetry"
)

const (
	// maxRequestBytes is the largest body the VMM's HTTP server reads
	// (MAX_PAYLOAD_SIZE in micro_http/src/server.rs).
	maxRequestBytes = 51200
	// maxResponseBytes bounds what is read of an answer. The largest, vm.info
	// with its device tree, is a few hundred kilobytes.
	maxResponseBytes = 8 << 20
)

// Client calls the REST API of one VMM.
//
// The VMM answers one request at a time, in order, and goes on with a request
// whose caller went away: when a context ends a call, its outcome is unknown and
// Info tells. It is safe for concurrent use.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns a client of the VMM that listens on the unix socket. It does
// not connect; the first call does.
func NewClient(socket string) *Client { return newClient(socket, 0) }

// newClient returns a client that, where pid is not zero, talks to that process
// alone. The directory of the socket belongs to the VMM, and one that was taken
// over by its guest could put another program's socket there.
func newClient(socket string, pid int) *Client {
	return &Client{
		socket: socket,
		http: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dial(ctx, socket, pid)
			},
			// The server keeps at most ten connections open and serves one
			// request at a time, so more than a few gain nothing.
			MaxConnsPerHost:     4,
			MaxIdleConnsPerHost: 1,
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true,
		}},
	}
}

// errImpostor is a socket of another process than the VMM's.
var errImpostor = errors.New("the socket is another process's")

func dial(ctx context.Context, socket string, pid int) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil || pid == 0 {
		return conn, err
	}
	cred, err := peerOf(conn)
	if err == nil && int(cred.Pid) != pid {
		err = fmt.Errorf("process %d listens there, not %d: %w", cred.Pid, pid, errImpostor)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// peerOf returns who listens at the other end of a unix connection, as the
// kernel noted it when the socket was made to listen.
func peerOf(conn net.Conn) (*unix.Ucred, error) {
	rc, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var serr error
	if err := rc.Control(func(fd uintptr) {
		cred, serr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, serr
}

// Socket returns the path of the socket.
func (c *Client) Socket() string { return c.socket }

// Close closes idle connections. The client stays usable.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Error is a refusal by the VMM.
type Error struct {
	// Op is the endpoint, such as "vm.restore".
	Op string
	// Status is the HTTP status code: 400 for a request that cannot be read,
	// 404 when there is no VM, 500 for all else.
	Status int
	// Messages is the VMM's own chain of errors, outermost first.
	Messages []string
}

func (e *Error) Error() string {
	if len(e.Messages) == 0 {
		return fmt.Sprintf("%s: status %d", e.Op, e.Status)
	}
	return fmt.Sprintf("%s: %s (status %d)", e.Op, strings.Join(e.Messages, ": "), e.Status)
}

// NoSpace reports whether the VMM found its disk full. Its API has no code for
// that, and passes on the words of the system call's error.
func (e *Error) NoSpace() bool {
	return slices.ContainsFunc(e.Messages, func(m string) bool {
		return strings.Contains(strings.ToLower(m), "no space left on device")
	})
}

// lacking are the errors of system calls that say what a host has too little of, by the
// words in which Rust writes them, and an image that another program has locked
// (LockError in block/src/io/fcntl.rs).
var lacking = func() (words []string) {
	words = append(words, "file is already locked")
	for _, e := range []syscall.Errno{
		syscall.EAGAIN, syscall.ENOMEM, syscall.EBUSY, syscall.ENFILE, syscall.EMFILE, syscall.ENOSPC, syscall.EDQUOT,
	} {
		words = append(words, fmt.Sprintf("(os error %d)", int(e)))
	}
	return words
}()

// Lacks reports whether the host lacked something that it may have at another time.
func (e *Error) Lacks() bool {
	return e.NoSpace() || slices.ContainsFunc(e.Messages, func(m string) bool {
		return slices.ContainsFunc(lacking, func(words string) bool { return strings.Contains(m, words) })
	})
}

// beforeStop is how Cloud Hypervisor refuses a pause before it has stopped anything
// (Vm::pause in its vmm/src/vm.rs).
var beforeStop = []string{"InvalidStateTransition", "Error activating pending virtio devices"}

// Halfway reports whether a VM whose pause was refused may stand still although it is
// said to run.
func (e *Error) Halfway() bool {
	return e.Status == http.StatusInternalServerError && !slices.ContainsFunc(e.Messages, func(m string) bool {
		return slices.ContainsFunc(beforeStop, func(words string) bool { return strings.Contains(m, words) })
	})
}

// BeforeRun reports whether a resume was refused before anything of the VM ran: Cloud
// Hypervisor sets the guest's clock first (Vm::resume in its vmm/src/vm.rs).
func (e *Error) BeforeRun() bool {
	return slices.ContainsFunc(e.Messages, func(m string) bool { return strings.Contains(m, "Could not restore guest clock") })
}

// call sends one request and decodes the answer into out, which may be nil.
func (c *Client) call(ctx context.Context, method, op string, in, out any) (err error) {
	ctx, span := telemetry.Call(ctx, "vmm ", op)
	defer func() { span.End(err) }()
	var body io.Reader = http.NoBody
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s: encode request: %w", op, err)
		}
		if len(raw) > maxRequestBytes {
			return fmt.Errorf("%s: request of %d bytes is larger than the %d that a VMM reads", op, len(raw), maxRequestBytes)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost/api/v1/"+op, body)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes+1))
	if err != nil {
		return fmt.Errorf("%s: read answer: %w", op, err)
	}
	if len(raw) > maxResponseBytes {
		return fmt.Errorf("%s: answer is larger than %d bytes", op, maxResponseBytes)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent {
		return &Error{Op: op, Status: resp.StatusCode, Messages: messages(raw)}
	}
	if out == nil || len(raw) == 0 {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s: decode answer: %w", op, err)
	}
	return nil
}

// messages reads the body of a refusal: a JSON array of strings from the API,
// or whatever the HTTP layer below it wrote ({ "error": "…" } with a raw line
// break inside, which is not JSON).
func messages(raw []byte) []string {
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	text := strings.TrimSpace(string(raw))
	if text == "" {
		return nil
	}
	text = strings.TrimPrefix(text, `{ "error": "`)
	text = strings.TrimSuffix(text, `" }`)
	return []string{text}
}
