package guestclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/berth-cloud/berth/guest/guestapi"
)

const (
	maxPorts = 8 << 20 // of an answer, in bytes
	// maxLogLine is the longest LogLine as JSON: each byte may become six.
	maxLogLine = 6*guestapi.MaxLine + 256
)

// Ports lists what in the guest listens, guestd itself left out.
func (c *Client) Ports(ctx context.Context) ([]guestapi.ListeningPort, error) {
	var ports []guestapi.ListeningPort
	return ports, c.get(ctx, guestapi.PathPorts, maxPorts, &ports)
}

// Mount mounts a disk, for which guestd waits a while.
func (c *Client) Mount(ctx context.Context, m guestapi.Mount) error {
	return c.call(ctx, http.MethodPost, guestapi.PathMounts, func() ([]byte, error) { return json.Marshal(&m) }, nil)
}

// LogQuery says which lines of the start command's output are asked for.
type LogQuery struct {
	Stream string // guestapi.StreamStdout …; empty: both
	Tail   int    // at most so many of the lines that are there
	Follow bool   // then go on with new ones
}

// Logs passes lines to each, in their order, until there are no more or, with
// Follow, until ctx ends or each fails, which is then the error.
func (c *Client) Logs(ctx context.Context, q LogQuery, each func(guestapi.LogLine) error) error {
	query := url.Values{"tail": {strconv.Itoa(q.Tail)}, "follow": {strconv.FormatBool(q.Follow)}}
	if q.Stream != "" {
		query.Set("stream", q.Stream)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest"+target(guestapi.PathLogs, query), nil)
	if err != nil {
		return err
	}
	resp, err := c.stream(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 4<<10), maxLogLine)
	for lines.Scan() {
		var line guestapi.LogLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("guest logs: decode a line: %w", err)
		}
		if err := each(line); err != nil {
			return err
		}
	}
	if err := errors.Join(context.Cause(ctx), lines.Err()); err != nil {
		return fmt.Errorf("guest logs: %w", err)
	}
	return nil
}
