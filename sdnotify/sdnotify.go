// Package sdnotify tells systemd how a daemon is: that it serves, reads its settings
// again, or stops, and again and again that it makes progress. The protocol is that of
// sd_notify(3): datagrams of NAME=VALUE lines to the socket that NOTIFY_SOCKET names.
package sdnotify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/timescale"
)

// The variables by which systemd tells a daemon of the socket and of its watchdog.
const (
	envSocket      = "NOTIFY_SOCKET"
	envWatchdog    = "WATCHDOG_USEC"
	envWatchdogPID = "WATCHDOG_PID"
)

// Notifier is the way to systemd. A nil one tells nobody: the daemon was not started
// by systemd.
type Notifier struct {
	socket   string
	watchdog time.Duration // within which systemd wants to hear of progress; 0: never
}

// FromEnv reads the variables, and removes them, so that programs that the daemon
// starts do not speak for it. It returns nil without a socket.
func FromEnv() (*Notifier, error) {
	n, err := parse(os.Getenv, os.Getpid())
	for _, name := range []string{envSocket, envWatchdog, envWatchdogPID} {
		err = errors.Join(err, os.Unsetenv(name))
	}
	return n, err
}

func parse(env func(string) string, pid int) (*Notifier, error) {
	n := &Notifier{socket: env(envSocket)}
	if n.socket == "" {
		return nil, nil
	}
	if !strings.HasPrefix(n.socket, "/") && !strings.HasPrefix(n.socket, "@") {
		return nil, fmt.Errorf("%s is %q: want a path, or @ and an abstract name", envSocket, n.socket)
	}
	if of := env(envWatchdogPID); of != "" && of != strconv.Itoa(pid) {
		return n, nil // the watchdog is of a process that started this one
	}
	if text := env(envWatchdog); text != "" {
		usec, err := strconv.ParseInt(text, 10, 64)
		if err != nil || usec <= 0 {
			return nil, fmt.Errorf("%s is %q: want microseconds", envWatchdog, text)
		}
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n, nil
}

// New returns a Notifier for a socket, a path or @ and an abstract name. watchdog is the
// time within which systemd wants to hear of progress; 0: never.
func New(socket string, watchdog time.Duration) *Notifier {
	return &Notifier{socket: socket, watchdog: watchdog}
}

// Ready says that the daemon serves, or serves again after Reloading.
func (n *Notifier) Ready(status string) error { return n.send("READY=1", "STATUS="+status) }

// Reloading says that settings are being read again. Ready has to follow.
func (n *Notifier) Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read CLOCK_MONOTONIC: %w", err)
	}
	// The time tells this reload from an earlier one (systemd 253 and later).
	return n.send("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(now.Nano()/1000, 10))
}

// Stopping says that the daemon ends.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1", "STATUS=Stopping") }

// Status shows a line in systemctl status.
func (n *Notifier) Status(status string) error { return n.send("STATUS=" + status) }

// send sends one datagram. Values have one line each.
func (n *Notifier) send(lines ...string) error {
	if n == nil {
		return nil
	}
	for i, line := range lines {
		lines[i] = strings.ReplaceAll(line, "\n", " ")
	}
	// Go makes an abstract name of a leading @.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell systemd: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("tell systemd: %w", err)
	}
	return nil
}

// looksPerWatchdog is how often progress is looked at within the time that systemd
// waits. One look may then fail, or be late, without harm.
const looksPerWatchdog = 4

// Watch feeds systemd's watchdog until ctx ends: whenever progress returns nil. It has
// a quarter of the watchdog's time, and an error or its silence feeds nothing. If that
// goes on, systemd ends the daemon with SIGABRT, at which Go writes every goroutine's
// stack to the log, and starts it again.
//
// progress has to show work that the daemon exists for. It is called by one goroutine
// alone, and has to return when its context ends.
func (n *Notifier) Watch(ctx context.Context, log *slog.Logger, progress func(context.Context) error) {
	if n == nil || n.watchdog == 0 {
		return
	}
	limit := timescale.Limit(n.watchdog)
	if limit != n.watchdog {
		if err := n.send("WATCHDOG_USEC=" + strconv.FormatInt(limit.Microseconds(), 10)); err != nil {
			log.WarnContext(ctx, "systemd was not told of a longer watchdog", "error", err)
		}
	}
	look := limit / looksPerWatchdog
	tick := time.NewTicker(look)
	defer tick.Stop()
	stalled := false
	for {
		err := within(ctx, look, progress)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil && !stalled:
			log.WarnContext(ctx, "no progress: systemd restarts this daemon if that goes on", "error", err, "within", limit.String())
		case err == nil && stalled:
			log.InfoContext(ctx, "progress again")
		}
		stalled = err != nil
		if !stalled {
			if err := n.send("WATCHDOG=1"); err != nil {
				log.WarnContext(ctx, "systemd was not told of progress", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func within(ctx context.Context, d time.Duration, progress func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("no answer within %s", d))
	defer cancel()
	err := progress(ctx)
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return err
}
