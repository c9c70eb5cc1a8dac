package fakehost

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// commands replaces the detached commands of guests. A command writes its arguments, and
// then what it is sent, until the end of its input or a signal.
type commands struct {
	mu    sync.Mutex
	of    map[string][]*command // by box, oldest first
	count int
}

type command struct {
	hostapi.Command
	key, digest string
	output      []byte
	changed     chan struct{} // closed at the next change
}

func (c *command) change() {
	c.OutputBytes = int64(len(c.output))
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *command) end(code int) {
	c.Exited, c.ExitCode, c.EndedAt = true, code, time.Now()
	c.change()
}

func (h *Host) serveCommands(w http.ResponseWriter, r *http.Request, c Call) {
	g := &h.commands
	g.mu.Lock()
	defer g.mu.Unlock()
	parts := strings.Split(c.Op, "/")[1:] // after "commands"
	if len(parts) == 0 {
		g.all(w, r, c.ID)
		return
	}
	at := slices.IndexFunc(g.of[c.ID], func(k *command) bool { return k.ID == parts[0] })
	if at < 0 {
		says(w, http.StatusNotFound, "not found", "no such command")
		return
	}
	one := g.of[c.ID][at]
	switch verb := strings.Join(parts[1:], "/"); {
	case verb == "output":
		h.guest.mu.Lock()
		ended := h.guest.ended
		h.guest.mu.Unlock()
		g.follow(w, r, one, ended)
	case r.Method == http.MethodGet:
		reply(w, one.Command, nil)
	case r.Method == http.MethodDelete:
		g.of[c.ID] = slices.Delete(g.of[c.ID], at, at+1)
		one.end(128 + int(syscall.SIGKILL))
		reply(w, nil, nil)
	case one.Exited:
		says(w, http.StatusConflict, "command has ended", "")
	case verb == "signal":
		one.end(128 + int(syscall.SIGTERM))
		reply(w, nil, nil)
	default:
		var in hostapi.CommandInput
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			reply(w, nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()})
			return
		}
		one.output = append(one.output, in.Data...)
		if one.change(); in.EOF {
			one.end(0)
		}
		reply(w, nil, nil)
	}
}

// all serves the list, and starts commands.
func (g *commands) all(w http.ResponseWriter, r *http.Request, box string) {
	if r.Method == http.MethodGet {
		list := []hostapi.Command{}
		for _, c := range slices.Backward(g.of[box]) {
			list = append(list, c.Command)
		}
		reply(w, list, nil)
		return
	}
	var req hostapi.StartCommand
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		reply(w, nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()})
		return
	}
	for _, c := range g.of[box] {
		if req.Key != "" && c.key == req.Key {
			if c.digest != req.Digest {
				says(w, http.StatusConflict, "idempotency key reused", "this Idempotency-Key was sent with another body, or by somebody else")
				return
			}
			reply(w, hostapi.Command{ID: c.ID, Text: c.Text, StartedAt: c.StartedAt}, nil)
			return
		}
	}
	g.count++
	c := &command{key: req.Key, digest: req.Digest, changed: make(chan struct{})}
	c.Command = hostapi.Command{ID: "cmd-" + strconv.Itoa(g.count), Text: req.Text, StartedAt: time.Now()}
	first := c.Command
	c.output = []byte(strings.Join(req.Argv, " ") + "\n" + string(req.Stdin))
	if c.change(); !req.OpenStdin {
		c.end(0)
	}
	if g.of == nil {
		g.of = map[string][]*command{}
	}
	g.of[box] = append(g.of[box], c)
	reply(w, first, nil)
}

// follow sends a command's output. It is called with the lock held.
func (g *commands) follow(w http.ResponseWriter, r *http.Request, c *command, ended <-chan struct{}) {
	at, _ := strconv.Atoi(r.URL.Query().Get("since"))
	if at > len(c.output) {
		says(w, http.StatusBadRequest, "invalid since", fmt.Sprintf("the command has written %d bytes", len(c.output)))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(o hostapi.CommandOutput) {
		raw, _ := json.Marshal(o)
		fmt.Fprintf(w, "data: %s\n\n", raw)
	}
	for {
		if at < len(c.output) {
			send(hostapi.CommandOutput{Stream: "stdout", Offset: int64(at), Data: c.output[at:]})
			at = len(c.output)
		}
		if c.Exited {
			send(hostapi.CommandOutput{Stream: "exit", Offset: int64(at), Exit: &hostapi.CommandExit{ExitCode: c.ExitCode, DurationMS: 1}})
		}
		if http.NewResponseController(w).Flush() != nil || c.Exited || r.URL.Query().Get("follow") != "true" {
			return
		}
		changed := c.changed
		g.mu.Unlock()
		select {
		case <-changed:
			g.mu.Lock()
			continue
		case <-ended:
		case <-r.Context().Done():
		}
		g.mu.Lock()
		return
	}
}

// says refuses a call in the guest's name.
func says(w http.ResponseWriter, status int, message, detail string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(hostapi.Error{Code: hostapi.CodeGuestSays, Message: message, Detail: detail})
}
