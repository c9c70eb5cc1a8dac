package stack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

// Follow prints what the stack's processes log from now on, merged, one line per
// event, until ctx ends. It omits events below the level. A line that is not JSON
// (a panic's trace) is printed unchanged.
func (s *Stack) Follow(ctx context.Context, w io.Writer, level slog.Level) error {
	var out sync.Mutex
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for _, p := range append(append([]*Process(nil), s.Replicas...), s.HostProc...) {
		f, err := os.Open(p.logFile)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Seek(0, io.SeekEnd); err != nil {
			return err
		}
		all.Go(func() {
			err := followFile(ctx, f, func(line string) {
				text, ok := renderEvent(p.ID, line, level)
				if !ok {
					return
				}
				out.Lock()
				defer out.Unlock()
				fmt.Fprintln(w, text)
			})
			mu.Lock()
			failed = errors.Join(failed, err)
			mu.Unlock()
		})
	}
	all.Wait()
	return failed
}

// followFile calls line for each complete line that is appended, until ctx ends.
func followFile(ctx context.Context, f *os.File, line func(string)) error {
	const every = 100 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	r := bufio.NewReader(f)
	var part strings.Builder
	for {
		chunk, err := r.ReadString('\n')
		part.WriteString(chunk)
		if err == nil {
			line(strings.TrimRight(part.String(), "\n"))
			part.Reset()
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

var levelNames = map[slog.Level]string{
	slog.LevelDebug: "DBG",
	slog.LevelInfo:  "INF",
	slog.LevelWarn:  "WRN",
	slog.LevelError: "ERR",
}

// renderEvent turns a line of slog's JSON into "15:04:05.000 WRN h1  message  key=value".
func renderEvent(id, line string, level slog.Level) (string, bool) {
	if line == "" {
		return "", false
	}
	var event map[string]any
	decoder := json.NewDecoder(strings.NewReader(line))
	decoder.UseNumber() // a pid is not 1.234e+06
	if line[0] != '{' || decoder.Decode(&event) != nil {
		return fmt.Sprintf("%-12s     %-3s %s", "", id, strings.Map(printable, line)), true
	}
	var at slog.Level
	if text, ok := event["level"].(string); ok && at.UnmarshalText([]byte(text)) == nil && at < level {
		return "", false
	}
	clock := strings.Repeat(" ", 12)
	if text, ok := event["time"].(string); ok {
		if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
			clock = t.Local().Format("15:04:05.000")
		}
	}
	name, ok := levelNames[at]
	if !ok {
		name = at.String()
	}
	message, _ := event["msg"].(string)
	for _, key := range []string{"time", "level", "msg"} {
		delete(event, key)
	}
	keys := make([]string, 0, len(event))
	for k := range event {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %-3s %s", clock, name, id, message)
	for _, k := range keys {
		fmt.Fprintf(&b, "  %s=%s", k, renderValue(event[k]))
	}
	return strings.Map(printable, b.String()), true
}

// printable removes characters that could move a terminal's cursor.
func printable(r rune) rune {
	if r == '\t' || r >= ' ' && r != 0x7f && (r < 0x80 || r >= 0xa0) {
		return r
	}
	return -1
}

// renderValue prints plain words unchanged and everything else as JSON, so that
// no control characters from a guest reach the terminal.
func renderValue(v any) string {
	if s, ok := v.(string); ok && s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r == '"' || r == '=' || r >= 0x7f
	}) {
		return s
	}
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return "?"
	}
	return strings.TrimRight(b.String(), "\n")
}
