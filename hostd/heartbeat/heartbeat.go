// Package heartbeat is a host's side of its session with the control plane: it joins
// once, and then tells the leader its whole picture, every interval and soon
// after something changes.
package heartbeat

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 2 * time.Second
	// settleTime is how long a change waits to be told. Most are the work of a
	// call that is being answered just then, which is what somebody waits for;
	// and of several changes at once one picture tells.
	settleTime = 50 * time.Millisecond
	// maxHops bounds how often one heartbeat follows a hint to another leader.
	maxHops   = 3
	maxAnswer = 64 << 10
)

var farewellTimeout = timescale.Limit(time.Second)

// sendTimeout bounds one heartbeat: a leader that takes longer is as good
// as none, and another replica may lead by now.
var sendTimeout = timescale.Limit(3 * time.Second)

// Config is what a Beat works with.
type Config struct {
	// Picture returns what is told; the sequence is filled in here.
	Picture func() hostapi.Heartbeat
	// Changed receives when the picture changed.
	Changed <-chan struct{}
	// Peers are the replicas' peer ports, host:port. A reply may change them.
	Peers []string
	// Interval is used until a reply says another.
	Interval time.Duration
	TLS      *tls.Config
	// Clock is when a heartbeat is sent, by whatever clock OnReply wants.
	Clock func() time.Duration
	// OnReply is told of every reply, before the next heartbeat, and when it was
	// sent for. An error says that it is no leader who replied.
	OnReply func(reply hostapi.HeartbeatReply, sent time.Duration) error
	Log     *slog.Logger
}

// Beat sends heartbeats.
type Beat struct {
	cfg      Config
	http     *http.Client
	peers    []string
	target   string // where the leader was last
	next     int    // peer to ask when the target fails
	interval time.Duration
	sequence uint64
	lost     bool // no leader answered the last time
}

// New returns a Beat that sends nothing yet.
func New(cfg Config) *Beat {
	return &Beat{
		cfg: cfg, peers: slices.Clone(cfg.Peers), interval: cfg.Interval,
		http: &http.Client{Transport: &http.Transport{
			TLSClientConfig: cfg.TLS, TLSHandshakeTimeout: sendTimeout,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
		}},
	}
}

// Run sends heartbeats until ctx ends. No failure ends it: a host without a
// control plane goes on serving what it has, and keeps looking.
func (b *Beat) Run(ctx context.Context) {
	defer b.http.CloseIdleConnections()
	defer b.farewell(ctx)
	backoff := firstBackoff
	for ctx.Err() == nil {
		err := b.beat(ctx)
		if err == nil {
			backoff = firstBackoff
			b.regained()
			if b.wait(ctx, b.interval, b.cfg.Changed) {
				b.wait(ctx, settleTime, nil)
				b.settled()
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		b.lose(err)
		// A random part, so that a fleet does not come back all at once.
		b.wait(ctx, backoff/2+rand.N(backoff), nil) //nolint:gosec // spreading load is no secret
		backoff = min(2*backoff, lastBackoff)
	}
}

// farewell tells a leader that listened until now how the host leaves.
func (b *Beat) farewell(ctx context.Context) {
	if b.lost || b.target == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	if err := b.beat(ctx); err != nil {
		b.cfg.Log.Debug("the leader was not told of the end", "error", err)
	}
}

// settled forgets a change that the next picture has in it.
func (b *Beat) settled() {
	select {
	case <-b.cfg.Changed:
	default:
	}
}

// wait returns when the time is over, or earlier and true with a change.
func (b *Beat) wait(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-changed:
		return true
	}
	return false
}

// beat tells the leader once, following hints to it. When it fails, the next
// one begins at another replica.
func (b *Beat) beat(ctx context.Context) error {
	if b.target == "" {
		b.target = b.rotate()
	}
	b.sequence++
	picture := b.cfg.Picture()
	picture.Sequence = b.sequence
	body, err := json.Marshal(picture)
	if err != nil {
		return err
	}
	for range maxHops {
		leader, err := b.send(ctx, b.target, body)
		if err != nil {
			b.target = ""
			return err
		}
		if leader == b.target {
			return nil
		}
		b.cfg.Log.Debug("another replica leads", "asked", b.target, "leader", leader)
		b.target = leader
		if leader == "" {
			return errNoLeader
		}
	}
	b.target = ""
	return errNoLeader
}

var errNoLeader = errors.New("no replica leads")

func (b *Beat) rotate() string {
	peer := b.peers[b.next%len(b.peers)]
	b.next++
	return peer
}

// send returns who leads: the target itself when it took the heartbeat.
func (b *Beat) send(ctx context.Context, target string, body []byte) (leader string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+target+hostapi.PathHeartbeat, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	var sent time.Duration
	if b.cfg.Clock != nil {
		sent = b.cfg.Clock()
	}
	resp, err := b.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("read reply of %s: %w", target, err)
	}
	switch {
	case resp.StatusCode == http.StatusMisdirectedRequest:
		var hint hostapi.NotLeader
		if err := json.Unmarshal(raw, &hint); err != nil {
			return "", fmt.Errorf("decode hint of %s: %w", target, err)
		}
		if hint.LeaderAddress == target {
			// It is about to lead, or was a moment ago.
			return "", nil
		}
		return hint.LeaderAddress, nil
	case resp.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%s answered %s: %s", target, resp.Status, refusal(raw))
	}
	var reply hostapi.HeartbeatReply
	if err := json.Unmarshal(raw, &reply); err != nil {
		return "", fmt.Errorf("decode reply of %s: %w", target, err)
	}
	return target, b.take(reply, sent)
}

func refusal(raw []byte) string {
	var e hostapi.Error
	if json.Unmarshal(raw, &e) == nil && e.Message != "" {
		return e.Error()
	}
	return "no reason given"
}

// take believes a leader. What one says that was deposed is worth nothing, its
// own peers included: the heartbeat counts as not taken.
func (b *Beat) take(reply hostapi.HeartbeatReply, sent time.Duration) error {
	if b.cfg.OnReply != nil {
		if err := b.cfg.OnReply(reply, sent); err != nil {
			return err
		}
	}
	if reply.IntervalSeconds > 0 {
		b.interval = max(time.Duration(reply.IntervalSeconds*float64(time.Second)), 100*time.Millisecond)
	}
	if len(reply.Peers) > 0 {
		b.peers = slices.Clone(reply.Peers)
	}
	return nil
}

func (b *Beat) lose(err error) {
	if !b.lost {
		b.cfg.Log.Warn("no control-plane leader takes heartbeats; sandboxes go on", "error", err)
	}
	b.lost = true
}

func (b *Beat) regained() {
	if b.lost || b.sequence == 1 {
		b.cfg.Log.Info("control-plane leader takes heartbeats", "leader", b.target)
	}
	b.lost = false
}
