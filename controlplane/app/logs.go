package app

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Streams of log lines.
const (
	streamOut = "stdout"
	streamErr = "stderr"
)

// maxLogLine is the length beyond which a line is returned in parts, in bytes.
const maxLogLine = 16 << 10

// openLog opens a log of a guest. The log ends when the guest's host is lost.
func (s *Apps) openLog(ctx context.Context, requestID string, box *record.Sandbox, open func(ctx context.Context, g *appapi.Client) (io.ReadCloser, error)) (io.ReadCloser, error) {
	client, err := s.core.Hosts.Reach(ctx, box.HostID)
	if err != nil {
		return nil, core.HostError(err)
	}
	ctx, release := s.core.Hosts.WhileHeard(hosts.WithRequestID(ctx, requestID), box.HostID)
	body, err := open(ctx, dialled(ctx, client, box.ID))
	if err != nil {
		release()
		return nil, guestError(err)
	}
	return &core.Body{ReadCloser: body, Release: release}, nil
}

// guestError converts an error of a call to guestapp for the client that waits for the call.
func guestError(err error) error {
	var said *appapi.Refusal
	if errors.As(err, &said) {
		return apierror.Unreachable("its sandbox refuses", err)
	}
	if own := apierror.As(core.HostError(err)); own.Code != apierror.EInternal {
		return own
	}
	return apierror.Unreachable("its sandbox does not answer", err)
}

// lines reads a log line by line. The text comes from a guest, so invalid UTF-8 is replaced.
type lines struct {
	r    *bufio.Reader
	body io.ReadCloser
	read int64 // bytes
}

// Next implements core.Follower.
func (l *lines) Next() (sandbox.LogLine, error) {
	raw, err := l.r.ReadSlice('\n')
	l.read += int64(len(raw))
	switch {
	case len(raw) == 0 && err != nil:
		return sandbox.LogLine{}, io.EOF // the guest, or the connection to it, has ended
	case err != nil && !errors.Is(err, io.EOF): // the line is too long, or the connection was cut
		return logLine(streamOut, string(raw), true), nil
	}
	return logLine(streamOut, strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r"), false), nil
}

// Close implements core.Follower.
func (l *lines) Close() error { return l.body.Close() }

func logLine(stream, text string, partial bool) sandbox.LogLine {
	return sandbox.LogLine{Stream: stream, LogLine: api.LogLine{Line: strings.ToValidUTF8(text, "\uFFFD"), Partial: partial}}
}

// DeploymentLogs returns a deployment's log from its beginning and follows it until the
// deployment has ended.
func (s *Apps) DeploymentLogs(ctx context.Context, c core.Caller, id, deploymentID string) (core.Follower[sandbox.LogLine], error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, _, err := s.deploymentOf(view, c, id, deploymentID); err != nil {
		return nil, err
	}
	leave, err := s.logs.Enter(c.WorkspaceID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return &deploymentLog{s: s, ctx: ctx, cancel: cancel, leave: leave, c: c, appID: id, id: deploymentID}, nil
}

// deploymentLog follows a deployment's log: from its guest, from the next guest if the
// deployment begins again, and at last from the kept blob.
type deploymentLog struct {
	s         *Apps
	ctx       context.Context
	cancel    context.CancelFunc
	leave     func()
	c         core.Caller
	appID, id string

	now    *lines
	box    string // the sandbox whose log is read, or was read last
	offset int64  // how much of that log was returned
	kept   bool   // the blob was returned
	said   bool   // what the log does not say of its end was returned
}

// Close implements core.Follower.
func (l *deploymentLog) Close() error {
	defer l.leave()
	defer l.cancel()
	if l.now != nil {
		return l.now.Close()
	}
	return nil
}

// logLook is the pause before a guest that gave no log is asked again.
var logLook = timescale.Limit(500 * time.Millisecond)

// Next implements core.Follower.
func (l *deploymentLog) Next() (sandbox.LogLine, error) {
	for {
		if l.now != nil {
			line, err := l.now.Next()
			if err == nil {
				return line, nil
			}
			l.offset += l.now.read
			_ = l.now.Close() // it was read to its end
			l.now = nil
		}
		view := l.s.core.Store.View()
		d, _, err := l.s.deploymentOf(view, l.c, l.appID, l.id)
		if err != nil {
			return sandbox.LogLine{}, io.EOF // it was deleted
		}
		_, under := flow.Live(view, DeploymentSubject(d.ID))
		if d.Status.Ended() && !under || d.LogBlob != "" && d.Status.Ended() {
			if line, more := l.last(d); more {
				return line, nil
			}
			if l.now == nil {
				return sandbox.LogLine{}, io.EOF
			}
			continue
		}
		if l.follow(view, d) {
			continue
		}
		if !l.s.core.Store.IsLeader() {
			return sandbox.LogLine{}, apierror.Unavailable("leadership has changed", nil)
		}
		select {
		case <-view.Changed(record.Deployments.Name, record.Sandboxes.Name):
		case <-time.After(logLook):
		case <-l.ctx.Done():
			return sandbox.LogLine{}, core.StoreError(l.ctx.Err())
		}
	}
}

// follow opens the log of the guest in which a deployment is built, from where reading
// stopped.
func (l *deploymentLog) follow(view *raftstore.Snapshot, d *record.Deployment) bool {
	box, ok := raftstore.Get(view, record.Sandboxes, d.SandboxID)
	if !ok || box.Status != record.SandboxRunning || d.Status.Ended() {
		return false
	}
	if l.box != box.ID {
		l.box, l.offset = box.ID, 0
	}
	var begins int64
	body, err := l.s.openLog(l.ctx, l.c.RequestID, box, func(ctx context.Context, g *appapi.Client) (io.ReadCloser, error) {
		st, err := g.Status(ctx)
		if err != nil || st.Build.ID != d.ID || st.Build.State != appapi.StateRunning && st.Build.LogBytes <= l.offset {
			return nil, cmp.Or[error](err, errAsleep)
		}
		body, from, err := g.BuildLog(ctx, appapi.LogQuery{From: l.offset, Follow: true})
		begins = from
		return body, err
	})
	if err != nil {
		return false
	}
	l.offset = max(l.offset, begins)
	l.now = &lines{r: bufio.NewReaderSize(body, maxLogLine), body: body}
	return true
}

// last returns what is left when a deployment has ended: the part of the blob that was not
// followed, and why the deployment failed.
func (l *deploymentLog) last(d *record.Deployment) (sandbox.LogLine, bool) {
	if !l.kept && d.LogBlob != "" {
		l.kept = true
		switch err := l.open(d); {
		case l.now != nil:
			return sandbox.LogLine{}, false
		case errors.Is(err, errBlobLost):
			return logLine(streamErr, "its log is gone: "+errBlobLost.Message, false), true
		case err != nil:
			return logLine(streamErr, "its log cannot be read now: no host that has it answers", false), true
		}
	}
	if l.said {
		return sandbox.LogLine{}, false
	}
	l.said = true
	switch {
	case d.Status == record.DeploymentFailed:
		return logLine(streamErr, "deployment failed: "+d.Error, false), true
	case d.RollbackTo != "" && d.LogBlob == "":
		return logLine(streamOut, "rolled back to "+d.RollbackTo+": its artifact was restored, nothing was built", false), true
	case d.Loopback:
		return logLine(streamErr, fmt.Sprintf("the app listens on 127.0.0.1:%d only: it is reached here, and would not be elsewhere; bind 0.0.0.0", d.Port), false), true
	}
	return sandbox.LogLine{}, false
}

// open opens the kept log after the part that its guest has already given, unless nothing is
// left.
func (l *deploymentLog) open(d *record.Deployment) error {
	told := l.offset
	if l.box != d.SandboxID { // the offset belongs to an earlier guest
		told = 0
	}
	body, size, err := l.s.flows.getBlob(l.ctx, logPlace(d), d.LogBlob)
	switch {
	case err != nil && told > 0: // usually all of it was returned
		return nil
	case err != nil:
		return err
	}
	told = max(0, told-d.LogFrom)
	if told < size {
		if _, err = io.CopyN(io.Discard, body, told); err == nil {
			l.now = &lines{r: bufio.NewReaderSize(body, maxLogLine), body: body}
			return nil
		}
	}
	_ = body.Close() // it was only read
	return err
}
