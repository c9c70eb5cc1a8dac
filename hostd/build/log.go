package build

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/image"
)

const (
	buildRecord  = "build.json"
	buildLogFile = "log"
	// maxBuildLog bounds what is kept of a build's output, in bytes. How the
	// build ended is kept beyond it.
	maxBuildLog  = 4 << 20
	maxBuildLine = 16 << 10
)

// save writes a build's record. The specification is not in it: it may hold
// secrets, and who asked has it.
func (q *Queue) save(j *job) error {
	dir := q.path(j.build.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("record of a template build: %w", err)
	}
	raw, err := json.Marshal(j.build)
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, buildRecord), append(raw, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("record of a template build: %w", err)
	}
	return nil
}

// load reads a build that an earlier daemon has made, or was making.
func (q *Queue) load(id string) (*job, error) {
	j := &job{done: make(chan struct{}), log: &buildLog{path: filepath.Join(q.path(id), buildLogFile), ended: true}}
	raw, err := os.ReadFile(filepath.Join(q.path(id), buildRecord))
	if err == nil {
		err = json.Unmarshal(raw, &j.build)
	}
	if err != nil {
		return nil, err
	}
	if j.build.ID != id || !validBuildID.MatchString(id) {
		return nil, errors.New("it is another build's")
	}
	close(j.done)
	if j.build.FinishedAt.IsZero() {
		j.build.Status, j.build.Error, j.build.Interrupted = hostapi.BuildFailed, errInterrupted.Error(), true
		j.build.FinishedAt = time.Now().UTC()
		return j, q.save(j)
	}
	return j, nil
}

// buildLog is the output of one build, as lines in a file.
type buildLog struct {
	path string

	mu      sync.Mutex
	file    *os.File
	size    int
	full    bool
	ended   bool
	changed chan struct{} // closed at the next line, or the end
}

// createBuildLog begins a log, over an older one of the same build.
func createBuildLog(dir string) (*buildLog, error) {
	l := &buildLog{path: filepath.Join(dir, buildLogFile), changed: make(chan struct{})}
	var err error
	if l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err != nil {
		return nil, fmt.Errorf("log of a template build: %w", err)
	}
	return l, nil
}

// progress returns a function that writes the steps of a build to the log, each
// once.
func (l *buildLog) progress() func(image.Progress) {
	step := ""
	return func(p image.Progress) {
		if p.Output {
			l.say(p.Detail)
			return
		}
		now := p.Step
		if p.Detail != "" && p.Step != image.StepBootstrap {
			now += ": " + p.Detail
		}
		if now != step {
			step = now
			l.say(fmt.Sprintf("==> %s (%d %%, %s)", now, p.Percent, p.Elapsed.Round(100*time.Millisecond)))
		}
	}
}

// say adds output, line by line, as long as there is room.
func (l *buildLog) say(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.SplitSeq(text, "\n") {
		if l.full {
			return
		}
		if l.size+len(line) > maxBuildLog {
			l.full = true
			line = fmt.Sprintf("==> further output is not kept: it has more than %d MB", maxBuildLog>>20)
		}
		l.write(line)
	}
}

// last adds how the build ended, whether or not there is room.
func (l *buildLog) last(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.SplitSeq(text, "\n") {
		l.write(line)
	}
}

func (l *buildLog) write(line string) {
	if l.file == nil {
		return
	}
	if len(line) > maxBuildLine {
		line = strings.ToValidUTF8(line[:maxBuildLine], "") + "…"
	}
	// A full disk fails the build itself.
	n, _ := io.WriteString(l.file, line+"\n")
	l.size += n
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *buildLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	l.file.Close()
	l.file = nil
	close(l.changed)
	l.changed = nil
}

// next returns what to wait for, nil when nothing more will come.
func (l *buildLog) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// read hands on the lines, and with follow those to come.
func (l *buildLog) read(ctx context.Context, follow bool, emit func(string) error) error {
	f, err := os.Open(l.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it was cut off before it said anything
	}
	if err != nil {
		return fmt.Errorf("log of a template build: %w", err)
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	part := ""
	for {
		more := l.next() // before the end is looked for: no line is missed
		for {
			text, err := lines.ReadString('\n')
			part += text
			if err != nil {
				break
			}
			if err := emit(strings.TrimSuffix(part, "\n")); err != nil {
				return err
			}
			part = ""
		}
		if !follow || more == nil {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
