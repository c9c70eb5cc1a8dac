package events

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

const (
	batchEvents = 500
	batchBytes  = 1 << 20 // of their lines

	firstBackoff = 200 * time.Millisecond
	lastBackoff  = 30 * time.Second
	// askAgain is after how long of silence a replica is asked again what it has: it
	// may have lost its store, and would not notice that earlier events are missing.
	askAgain   = 10 * time.Second
	pruneEvery = time.Minute
	maxAnswer  = 64 << 10
)

var sendTimeout = timescale.Limit(15 * time.Second)

// DeliveryConfig is what a Delivery works with.
type DeliveryConfig struct {
	Recorder *Recorder
	// Peers are the replicas' peer ports, host:port, until SetPeers.
	Peers []string
	TLS   *tls.Config
	Log   *slog.Logger
}

// Delivery sends every event of the host to every replica of the control plane, to
// each at its own pace: a replica that was away gets what it missed.
type Delivery struct {
	cfg     DeliveryConfig
	changed chan struct{} // capacity 1

	mu    sync.Mutex
	peers []string
}

// NewDelivery returns a Delivery that sends nothing yet.
func NewDelivery(cfg DeliveryConfig) *Delivery {
	return &Delivery{cfg: cfg, peers: slices.Clone(cfg.Peers), changed: make(chan struct{}, 1)}
}

// SetPeers replaces the list of replicas.
func (d *Delivery) SetPeers(peers []string) {
	d.mu.Lock()
	d.peers = slices.Clone(peers)
	d.mu.Unlock()
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// Run delivers until ctx ends, and keeps the spool within its bounds.
func (d *Delivery) Run(ctx context.Context) {
	var senders sync.WaitGroup
	defer senders.Wait()
	running := map[string]context.CancelFunc{}
	defer func() {
		for _, cancel := range running {
			cancel()
		}
	}()
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for {
		d.mu.Lock()
		peers := slices.Clone(d.peers)
		d.mu.Unlock()
		for peer, cancel := range running {
			if !slices.Contains(peers, peer) {
				cancel()
				delete(running, peer)
			}
		}
		for _, peer := range peers {
			if running[peer] == nil {
				sctx, cancel := context.WithCancel(ctx)
				running[peer] = cancel
				senders.Go(func() { d.sender(peer).run(sctx) })
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-d.changed:
		case <-tick.C:
			d.cfg.Recorder.prune()
		}
	}
}

// sender sends to one replica.
type sender struct {
	peer string
	rec  *Recorder
	http *http.Client
	log  *slog.Logger

	seq   uint64    // up to which the replica has all
	asked time.Time // when it last said so
	lost  bool      // the last call failed
}

func (d *Delivery) sender(peer string) *sender {
	return &sender{
		peer: peer, rec: d.cfg.Recorder, log: d.cfg.Log,
		http: &http.Client{Transport: &http.Transport{
			TLSClientConfig: d.cfg.TLS, TLSHandshakeTimeout: sendTimeout, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
		}},
	}
}

func (s *sender) run(ctx context.Context) {
	defer s.http.CloseIdleConnections()
	backoff := firstBackoff
	for ctx.Err() == nil {
		changed, err := s.step(ctx)
		if ctx.Err() != nil {
			return
		}
		var again <-chan time.Time // at once, without changed
		switch {
		case err == nil && s.lost:
			s.log.Info("a replica takes events again", "peer", s.peer)
		case err != nil && !s.lost:
			s.log.Warn("a replica does not take events; they are sent later", "peer", s.peer, "error", err)
		}
		if s.lost = err != nil; s.lost {
			s.asked = time.Time{}
			// A random part, so that a fleet does not come back all at once.
			again = time.After(backoff/2 + rand.N(backoff)) //nolint:gosec // spreading load is no secret
			backoff = min(2*backoff, lastBackoff)
		} else {
			backoff = firstBackoff
			if changed == nil {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-again:
		case <-changed:
		}
	}
}

// step sends one batch. Where there is nothing to send, it returns a channel that is
// closed when there is.
func (s *sender) step(ctx context.Context) (changed <-chan struct{}, err error) {
	if s.asked.IsZero() {
		if err := s.send(ctx, hostapi.EventBatch{}); err != nil {
			return nil, err
		}
	}
	events, first, changed, err := s.rec.unsent(s.seq)
	if err != nil || len(events) == 0 {
		return changed, err
	}
	if time.Since(s.asked) > askAgain {
		s.asked = time.Time{}
		return nil, nil
	}
	if events[0].Seq != s.seq+1 {
		// Numbers were left out, by a power cut or a full disk: the replica need
		// not wait for them.
		first = events[0].Seq
	}
	before := s.seq
	if err := s.send(ctx, hostapi.EventBatch{First: first, Events: events}); err != nil {
		return nil, err
	}
	if s.seq <= before {
		return nil, fmt.Errorf("it took nothing of a batch of %d, from number %d", len(events), events[0].Seq)
	}
	s.rec.cfg.Metrics.deliver(s.peer, len(events))
	return nil, nil
}

// send sends a batch, and moves the place to what the replica then says it has.
func (s *sender) send(ctx context.Context, b hostapi.EventBatch) error {
	b.HostID = s.rec.cfg.HostID
	if b.Events == nil {
		b.Events = []hostapi.Event{}
	}
	body, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("encode events: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.peer+hostapi.PathEvents, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send events: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req)
	if err != nil {
		return fmt.Errorf("send events: %w", err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("send events: read answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("send events: it answered %s", resp.Status)
	}
	var cursor hostapi.EventCursor
	if err := json.Unmarshal(raw, &cursor); err != nil {
		return fmt.Errorf("send events: decode answer: %w", err)
	}
	s.rec.seen(cursor.Seq)
	s.seq = cursor.Seq
	s.asked = time.Now()
	return nil
}
