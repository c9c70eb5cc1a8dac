package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
)

const (
	fileBytes   = 64 << 20
	streamBytes = 16 << 20
	dataRounds  = 3
	eventRounds = 10
)

// measureData measures files, streams and events of one sandbox.
func measureData(ctx context.Context, b *bench) error {
	sandbox, err := b.create(ctx, plainHost)
	if err != nil {
		return err
	}
	progress("%d uploads and downloads of 64 MiB", dataRounds)
	if err := measureFiles(ctx, b, sandbox.ID); err != nil {
		return fmt.Errorf("files: %w", err)
	}
	progress("%d streams of 16 MiB, %d events", dataRounds, 2*eventRounds)
	if err := measureStream(ctx, b, sandbox); err != nil {
		return fmt.Errorf("exec stream: %w", err)
	}
	if err := measureEvents(ctx, b, sandbox.ID); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	return b.c.DeleteSandbox(ctx, sandbox.ID)
}

// rate is in MB (a million bytes) a second.
func rate(size int64, took time.Duration) float64 { return float64(size) / 1e6 / took.Seconds() }

func measureFiles(ctx context.Context, b *bench, id string) error {
	const path = "/root/file"
	content := make([]byte, fileBytes)
	for i := range content {
		content[i] = byte(i>>16 ^ i>>8 ^ i)
	}
	var all samples
	for range dataRounds {
		err := all.timed("upload", func() error {
			_, err := b.c.WriteFile(ctx, id, path, "", bytes.NewReader(content), fileBytes)
			return err
		})
		if err != nil {
			return err
		}
		err = all.timed("download", func() error {
			body, err := b.c.ReadFile(ctx, id, path)
			if err != nil {
				return err
			}
			defer body.Close()
			n, err := io.Copy(io.Discard, body)
			if err == nil && n != fileBytes {
				err = fmt.Errorf("%d of %d bytes", n, fileBytes)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	b.r.add("upload_64_mib", rate(fileBytes, all.p50("upload")), "MB/s")
	b.r.add("download_64_mib", rate(fileBytes, all.p50("download")), "MB/s")
	return b.c.RemoveFile(ctx, id, path, false)
}

// measureStream has a command write lines of text as fast as they are taken,
// by the API and, in turns, by the guest's agent directly.
func measureStream(ctx context.Context, b *bench, sandbox *api.Sandbox) error {
	box, err := b.box(ctx, sandbox)
	if err != nil {
		return err
	}
	fabric, err := slotsOf(sandbox.AgentID)
	if err != nil {
		return err
	}
	defer fabric.Close()
	guest := guestclient.New(func(ctx context.Context) (net.Conn, error) { return fabric.Dial(ctx, box.Slot, guestapi.Port) })
	command := fmt.Sprintf("yes 0123456789012345678901234567890123456789012345678901234567890 | head -c %d", streamBytes)
	ways := []struct {
		name string
		run  func(out io.Writer) (int, error)
	}{
		{"exec_stream", func(out io.Writer) (int, error) {
			exit, err := b.c.ExecStream(ctx, sandbox.ID, api.Exec{Cmd: api.Shell(command)}, out, nil)
			if err != nil {
				return 0, err
			}
			return exit.ExitCode, nil
		}},
		{"exec_stream_direct", func(out io.Writer) (int, error) {
			exit, err := guest.Exec(ctx, guestapi.ExecRequest{Argv: []string{"sh", "-c", command}}, guestclient.Streams{Stdout: out})
			return exit.ExitCode, err
		}},
	}
	var all samples
	for range dataRounds {
		for _, way := range ways {
			err := all.timed(way.name, func() error {
				var n counter
				code, err := way.run(&n)
				if err == nil && (code != 0 || n != streamBytes) {
					err = fmt.Errorf("exit code %d, %d of %d bytes", code, n, streamBytes)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	for _, way := range ways {
		b.r.add(way.name, rate(streamBytes, all.p50(way.name)), "MB/s")
	}
	return nil
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// measureEvents follows a sandbox that is paused and resumed. An event's own
// time is that of the transition; it has milliseconds, and both clocks are one.
func measureEvents(ctx context.Context, b *bench, id string) error {
	ctx, cancel := context.WithCancel(ctx)
	type sighting struct {
		event api.Event
		at    time.Time
	}
	seen := make(chan sighting, 4*eventRounds)
	followed := make(chan error, 1)
	go func() {
		for e, err := range b.c.FollowEvents(ctx, id, api.EventQuery{}) {
			if err != nil {
				followed <- err
				return
			}
			seen <- sighting{e, time.Now()}
		}
		followed <- errors.New("the stream of events ended")
	}()
	defer func() { <-followed }() //nolint:errcheck // it is the cancellation
	defer cancel()
	await := func(kind string) (sighting, error) {
		for {
			select {
			case s := <-seen:
				if s.event.Type == kind {
					return s, nil
				}
			case err := <-followed:
				followed <- err
				return sighting{}, err
			case <-time.After(20 * time.Second):
				return sighting{}, fmt.Errorf("no event %s was seen", kind)
			}
		}
	}
	if _, err := await("sandbox.running"); err != nil {
		return err
	}
	var latency, fromCall []time.Duration
	for range eventRounds {
		for _, m := range []struct {
			kind string
			do   func(context.Context, string) (*api.Sandbox, error)
		}{{"sandbox.paused", b.c.PauseSandbox}, {"sandbox.resumed", b.c.ResumeSandbox}} {
			began := time.Now()
			if _, err := m.do(ctx, id); err != nil {
				return err
			}
			s, err := await(m.kind)
			if err != nil {
				return err
			}
			latency = append(latency, s.at.Sub(s.event.TS.Time))
			fromCall = append(fromCall, s.at.Sub(began))
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	b.r.addLatency("event_latency", latency)
	b.r.addLatency("transition_call_to_event", fromCall)
	return nil
}
