package initd

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/proc"
	"github.com/berth-cloud/berth/guest/startlog"
)

const (
	startRetryMin = time.Second
	startRetryMax = 30 * time.Second
)

// keepStart runs the template's start command until it exits with code 0. After any
// other end it is restarted, with a pause that doubles and is reset once it ran for
// longer than the longest pause.
func keepStart(ctx context.Context, log *slog.Logger, reap *reaper, groups proc.Groups, spec guestapi.BootSpec) {
	output := startlog.NewWriter(guestapi.StartLogPath)
	retry := startRetryMin
	var state guestapi.StartState
	for {
		began := time.Now()
		ended, err := runStart(reap, groups, output, spec)
		if err != nil {
			log.Error("start command not started", "error", err)
			state.ExitCode = 127
		} else {
			state.Running = true
			writeStartState(log, state)
			select {
			case status := <-ended:
				state.ExitCode, _ = proc.ExitCode(status)
			case <-ctx.Done():
				return
			}
		}
		state.Running = false
		writeStartState(log, state)
		if state.ExitCode == 0 {
			return
		}
		log.Error("start command failed", "exit_code", state.ExitCode, "restarts", state.Restarts)
		if time.Since(began) > startRetryMax {
			retry = startRetryMin
		}
		select {
		case <-time.After(retry):
			retry = min(2*retry, startRetryMax)
			state.Restarts++
		case <-ctx.Done():
			return
		}
	}
}

func runStart(reap *reaper, groups proc.Groups, output *startlog.Writer, spec guestapi.BootSpec) (<-chan syscall.WaitStatus, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	stdout, err := output.Pipe(guestapi.StreamStdout)
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	stderr, err := output.Pipe(guestapi.StreamStderr)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	user, err := proc.LookUpUser("")
	if err != nil {
		return nil, err
	}
	attr := &syscall.ProcAttr{
		Dir:   user.Dir(),
		Env:   proc.Environ(user, false, spec.Env),
		Files: []uintptr{null.Fd(), stdout.Fd(), stderr.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	group, err := groups.New("start")
	if err != nil {
		return nil, err
	}
	defer group.Close()
	group.Join(attr.Sys)
	_, ended, err := reap.start("/bin/sh", []string{"sh", "-c", spec.Start}, attr)
	return ended, err
}

func writeStartState(log *slog.Logger, state guestapi.StartState) {
	raw, err := json.Marshal(state)
	if err == nil {
		temp := guestapi.StartStatePath + ".new"
		if err = os.WriteFile(temp, raw, 0o644); err == nil {
			err = os.Rename(temp, guestapi.StartStatePath)
		}
	}
	if err != nil {
		log.Error("state of the start command not written", "error", err)
	}
}
