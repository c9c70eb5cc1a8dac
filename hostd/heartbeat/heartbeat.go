// Package heartbeat is a host's side of its session with the control plane: the
// host joins once, and then sends the leader its state, every interval and soon
// after a change. To a leader that has heard it before, it sends what has changed.
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
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 2 * time.Second
	// settleTime is how long a change waits to be sent. Most changes are made by a
	// call that is being answered at that moment, which is more urgent; and one
	// heartbeat then carries several changes.
	settleTime = 50 * time.Millisecond
	// maxHops bounds how often one heartbeat follows a hint to another leader.
	maxHops   = 3
	maxAnswer = 64 << 10
)

var farewellTimeout = timescale.Limit(time.Second)

// sendTimeout bounds one heartbeat: a leader that takes longer is as good
// as none, and another replica may lead by now.
var sendTimeout = timescale.Limit(3 * time.Second)

// Config is what a Sender needs.
type Config struct {
	// Report returns the state to send; the sequence number is filled in here.
	Report func() hostapi.Heartbeat
	// Changed receives when that state changed.
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

// Sender sends heartbeats.
type Sender struct {
	cfg      Config
	http     *http.Client
	peers    []string
	target   string // where the leader was last
	next     int    // peer to ask when the target fails
	interval time.Duration
	sequence uint64
	lost     bool // no leader answered the last time

	taken *hostapi.Heartbeat // the last that the target has answered, if it was the last sent; nil: send a whole one
	whole string             // a leader that takes no parts

	began  time.Time
	rounds atomic.Uint64 // heartbeats that were tried
	due    atomic.Int64  // when the next one is, in nanoseconds since began
	looked uint64        // rounds, when Progress looked last
}

// Progress returns nil if a heartbeat was tried since the last call, whatever became of
// it, or the next one is not due yet. So it does as long as Run goes round and the host's
// state, which takes the locks of every box, can be reported. It is called by one
// goroutine alone.
func (s *Sender) Progress(context.Context) error {
	rounds := s.rounds.Load()
	if rounds != s.looked {
		s.looked = rounds
		return nil
	}
	late := time.Since(s.began) - time.Duration(s.due.Load())
	if late < 0 {
		return nil
	}
	return fmt.Errorf("after %d heartbeats the next one is late by %s", rounds, late.Round(time.Millisecond))
}

// New returns a Sender that sends nothing yet.
func New(cfg Config) *Sender {
	return &Sender{
		cfg: cfg, peers: slices.Clone(cfg.Peers), interval: cfg.Interval, began: time.Now(),
		http: &http.Client{Transport: &http.Transport{
			TLSClientConfig: cfg.TLS, TLSHandshakeTimeout: sendTimeout,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
		}},
	}
}

// Run sends heartbeats until ctx ends. No failure ends it: a host without a
// control plane goes on serving what it has, and keeps looking.
func (s *Sender) Run(ctx context.Context) {
	defer s.http.CloseIdleConnections()
	defer s.farewell(ctx)
	backoff := firstBackoff
	for ctx.Err() == nil {
		err := s.sendOnce(ctx)
		s.rounds.Add(1)
		if err == nil {
			backoff = firstBackoff
			s.regained()
			if s.wait(ctx, s.interval, s.cfg.Changed) {
				s.wait(ctx, settleTime, nil)
				s.settled()
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		s.lose(err)
		// A random part, so that a fleet does not come back all at once.
		s.wait(ctx, backoff/2+rand.N(backoff), nil) //nolint:gosec // spreading load is no secret
		backoff = min(2*backoff, lastBackoff)
	}
}

// farewell tells a leader that listened until now how the host leaves.
func (s *Sender) farewell(ctx context.Context) {
	if s.lost || s.target == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	if err := s.sendOnce(ctx); err != nil {
		s.cfg.Log.Debug("the leader was not told of the end", "error", err)
	}
}

// settled forgets a change that the next heartbeat contains.
func (s *Sender) settled() {
	select {
	case <-s.cfg.Changed:
	default:
	}
}

// wait returns when the time is over, or earlier and true with a change.
func (s *Sender) wait(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	s.due.Store(int64(time.Since(s.began) + d))
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

// sendOnce sends one heartbeat to the leader, following hints to it. When it fails, the next
// one begins at another replica.
func (s *Sender) sendOnce(ctx context.Context) error {
	if s.target == "" {
		s.target = s.rotate()
	}
	s.sequence++
	report := s.cfg.Report()
	report.Sequence = s.sequence
	before := s.taken
	s.taken = nil // until this one is answered
	if before != nil && s.target != s.whole {
		if done, err := s.sendPart(ctx, report.Since(*before)); err != nil {
			s.target = ""
			return err
		} else if done {
			s.taken = &report
			return nil
		}
	}
	body, err := json.Marshal(report)
	if err != nil {
		return err
	}
	for range maxHops {
		leader, err := s.send(ctx, s.target, hostapi.PathHeartbeat, body)
		if err != nil {
			s.target = ""
			return err
		}
		if leader == s.target {
			s.taken = &report
			return nil
		}
		s.cfg.Log.Debug("another replica leads", "asked", s.target, "leader", leader)
		s.target = leader
		if leader == "" {
			return errNoLeader
		}
	}
	s.target = ""
	return errNoLeader
}

// sendPart sends what has changed. If the leader does not take it, because it is another
// one by now, is new or is older than this daemon, done is false, and the whole heartbeat
// is to be sent.
func (s *Sender) sendPart(ctx context.Context, part hostapi.HeartbeatPart) (done bool, err error) {
	body, err := json.Marshal(part)
	if err != nil {
		return false, err
	}
	leader, err := s.send(ctx, s.target, hostapi.PathHeartbeatPart, body)
	var no *refusedError
	switch {
	case errors.As(err, &no):
		if no.status == http.StatusForbidden || no.status == http.StatusNotFound {
			s.whole = s.target
		}
		return false, nil
	case err != nil:
		return false, err
	case leader != s.target:
		if leader == "" {
			return false, errNoLeader
		}
		s.target = leader
		return false, nil
	}
	return true, nil
}

// refusedError is the answer of a replica that has not taken a heartbeat.
type refusedError struct {
	status int
	text   string
}

func (e *refusedError) Error() string { return e.text }

var errNoLeader = errors.New("no replica leads")

func (s *Sender) rotate() string {
	peer := s.peers[s.next%len(s.peers)]
	s.next++
	return peer
}

// send returns who leads: the target itself when it took the heartbeat.
func (s *Sender) send(ctx context.Context, target, path string, body []byte) (leader string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+target+path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	var sent time.Duration
	if s.cfg.Clock != nil {
		sent = s.cfg.Clock()
	}
	resp, err := s.http.Do(req)
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
		return "", &refusedError{resp.StatusCode, fmt.Sprintf("%s answered %s: %s", target, resp.Status, refusal(raw))}
	}
	var reply hostapi.HeartbeatReply
	if err := json.Unmarshal(raw, &reply); err != nil {
		return "", fmt.Errorf("decode reply of %s: %w", target, err)
	}
	return target, s.take(reply, sent)
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
func (s *Sender) take(reply hostapi.HeartbeatReply, sent time.Duration) error {
	if s.cfg.OnReply != nil {
		if err := s.cfg.OnReply(reply, sent); err != nil {
			return err
		}
	}
	if reply.IntervalSeconds > 0 {
		s.interval = max(time.Duration(reply.IntervalSeconds*float64(time.Second)), 100*time.Millisecond)
	}
	if len(reply.Peers) > 0 {
		s.peers = slices.Clone(reply.Peers)
	}
	return nil
}

func (s *Sender) lose(err error) {
	if !s.lost {
		s.cfg.Log.Warn("no control-plane leader takes heartbeats; sandboxes go on", "error", err)
	}
	s.lost = true
}

func (s *Sender) regained() {
	if s.lost || s.sequence == 1 {
		s.cfg.Log.Info("control-plane leader takes heartbeats", "leader", s.target)
	}
	s.lost = false
}
