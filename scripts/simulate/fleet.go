package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/heartbeat"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/simulate/simhost"
)

// fleet is all hosts.
type fleet struct {
	o         options
	began     time.Time
	hostMB    int // memory of a host
	templates []hostapi.TemplateState
	hosts     []*simhost.Host
	nodes     []*pki.Node
	wg        sync.WaitGroup

	heartbeats atomic.Int64 // that a leader has taken
	delivered  atomic.Int64 // events, to all replicas together
}

func templateName(i int) string { return fmt.Sprintf("sim-%04d", i) }

// startFleet has every host join with a token of its own, as an operator would.
func startFleet(ctx context.Context, o options, c *cell) (*fleet, error) {
	f := &fleet{o: o, began: time.Now()}
	// Twice what the sandboxes need, so that it is load that decides and not room.
	f.hostMB = 2 * (o.sandboxes/o.hosts + 10) * (simhost.SandboxMB + simhost.OverheadMB)
	for i := range o.templates {
		f.templates = append(f.templates, hostapi.TemplateState{
			Name: templateName(i), BuildID: fmt.Sprintf("%064x", i+1), Status: "ready", CPU: 1, MemoryMB: simhost.SandboxMB, DiskMB: simhost.SandboxDiskMB,
			SizeBytes: 300 << 20, CreatedAt: f.began.UTC().Truncate(time.Second),
		})
	}
	admin, err := api.NewClient(nil, c.admin, c.urls()...)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	f.hosts, f.nodes = make([]*simhost.Host, o.hosts), make([]*pki.Node, o.hosts)
	err = inParallel(16, o.hosts, func(i int) error {
		id := fmt.Sprintf("h%04d", i)
		token, err := admin.CreateJoinToken(ctx, api.CreateJoinToken{TTLSeconds: new(int64(600))})
		if err != nil {
			return fmt.Errorf("make a join token: %w", err)
		}
		joined, err := heartbeat.Join(ctx, heartbeat.JoinRequest{Peers: c.peers(), Token: token.Token, CASHA256: token.CASHA256, HostID: id})
		if err != nil {
			return fmt.Errorf("join of %s: %w", id, err)
		}
		if f.nodes[i], err = pki.ParseNode(joined.CA, joined.Certificate, joined.Key); err != nil {
			return err
		}
		f.hosts[i], err = simhost.New(simhost.Config{
			ID: id, Node: f.nodes[i], MemoryMB: f.hostMB, Templates: f.templates, Began: f.began, Heartbeat: o.heartbeat, Events: o.events,
			Heard: func() { f.heartbeats.Add(1) },
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, h := range f.hosts {
		f.wg.Go(func() { h.Run(ctx, c.peers()) })
	}
	if o.events {
		for _, r := range c.replicas {
			f.wg.Go(func() { f.deliver(ctx, r.peer) })
		}
	}
	return f, nil
}

// deliver sends the events of all hosts to one replica, each host's in its own name.
func (f *fleet) deliver(ctx context.Context, peer string) {
	has := make([]uint64, len(f.hosts))
	clients := make([]*http.Client, len(f.hosts))
	for i, node := range f.nodes {
		clients[i] = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
			TLSClientConfig: node.ClientTLS(pki.AnyOf(pki.RoleReplica)), MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
		}}
		defer clients[i].CloseIdleConnections()
	}
	for pause(ctx, time.Second) {
		// A replica that is away gets them later.
		_ = inParallel(4, len(f.hosts), func(i int) error {
			batch := f.hosts[i].EventsAfter(has[i])
			if len(batch.Events) == 0 {
				return nil
			}
			cursor, err := post(ctx, clients[i], peer, batch)
			if err != nil {
				return err
			}
			f.delivered.Add(int64(max(cursor.Seq, has[i]) - has[i]))
			has[i] = cursor.Seq
			return nil
		})
	}
}

func post(ctx context.Context, hc *http.Client, peer string, batch hostapi.EventBatch) (cursor hostapi.EventCursor, err error) {
	body, err := json.Marshal(batch)
	if err != nil {
		return cursor, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+peer+hostapi.PathEvents, bytes.NewReader(body))
	if err != nil {
		return cursor, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := hc.Do(req)
	if err != nil {
		return cursor, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return cursor, err
	}
	if resp.StatusCode != http.StatusOK {
		return cursor, fmt.Errorf("%s answered %s", peer, resp.Status)
	}
	return cursor, json.Unmarshal(raw, &cursor)
}

// inParallel calls do for 0 to n-1, some at once, and returns the first error. After
// one it begins no more.
func inParallel(atOnce, n int, do func(i int) error) error {
	var (
		wg    sync.WaitGroup
		next  atomic.Int64
		once  sync.Once
		first error
		ended atomic.Bool
	)
	for range min(atOnce, n) {
		wg.Go(func() {
			for !ended.Load() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(i); err != nil {
					once.Do(func() { first = err })
					ended.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return first
}
