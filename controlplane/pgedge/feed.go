package pgedge

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// pathTable is the route below peer.PathDatabases that a router in a process of its own
// asks of a replica:
//
//	POST table {} → lines, each a news, for as long as the router listens
const pathTable = peer.PathDatabases + "table"

// news is a line of the table's stream. A line without any field says that the replica is
// still there.
type news struct {
	Secret []byte         `json:"secret,omitempty"` // the Secret of RouterConfig, in the first line
	Entry  *Entry         `json:"entry,omitempty"`  // a new or changed database
	Gone   string         `json:"gone,omitempty"`   // the id of a removed database
	Whole  bool           `json:"whole,omitempty"`  // everything that existed when the stream began has been sent
	Blank  bool           `json:"blank,omitempty"`  // with Whole: that is nothing, and there is no host either
	Store  string         `json:"store,omitempty"`  // with Whole, and when it changes: whose indexes the entries have
	Index  uint64         `json:"index,omitempty"`  // with Whole: up to which the replica knows the store
	Leader *string        `json:"leader,omitempty"` // the leader's peer address; "" if there is none
	Cancel *cancelRequest `json:"cancel,omitempty"` // the router that has its session carries it out
}

const (
	maxFeeds    = 64 // the most routers that may listen to one replica
	feedCancels = 64 // the most cancel requests queued for a router; any more are lost

	beatEvery = time.Second           // the longest time between two lines
	feedPause = 20 * time.Millisecond // the shortest time between two looks at the table
	// feedShare bounds what looks at the table cost: each is followed by a pause that is
	// this many times as long.
	feedShare = 20
)

// feedStall is how long a router may accept no data before its stream ends.
var feedStall = timescale.Limit(10 * time.Second)

// FeedConfig configures a Feed.
type FeedConfig struct {
	Known  func() Known
	Leader func() (id, address string)
	Secret []byte // the Secret of RouterConfig
	Log    *slog.Logger
}

// Feed streams the table of databases to routers in processes of their own.
type Feed struct {
	cfg      FeedConfig
	stopping chan struct{}
	stop     sync.Once

	mu      sync.Mutex
	routers map[chan cancelRequest]struct{}
}

// NewFeed returns a Feed. The caller must close it.
func NewFeed(cfg FeedConfig) *Feed {
	return &Feed{cfg: cfg, stopping: make(chan struct{}), routers: map[chan cancelRequest]struct{}{}}
}

// Close ends the streams. The routers continue with another replica.
func (f *Feed) Close() { f.stop.Do(func() { close(f.stopping) }) }

// Known is what a replica knows of databases.
type Known struct {
	Entries []Entry
	Hosts   bool            // there are hosts
	Store   string          // the cluster's name, another one after each restore of a backup
	Index   uint64          // of the last change in the replica's copy
	Changed <-chan struct{} // is closed when it may have changed
}

// ReadAll returns what a replica's copy of the store knows, for FeedConfig.
func ReadAll(s *raftstore.Snapshot) Known {
	rows := raftstore.All(s, record.Databases)
	k := Known{Entries: make([]Entry, 0, len(rows)), Hosts: len(raftstore.All(s, record.Hosts)) > 0, Index: s.Index()}
	for _, row := range rows {
		if e, ok := Read(s, row.ID); ok {
			k.Entries = append(k.Entries, e)
		}
	}
	if c, ok := raftstore.Get(s, record.Clusters, record.ClusterID); ok {
		k.Store = c.Name
	}
	k.Changed = s.Changed(record.Databases.Name, record.Sandboxes.Name, record.Hosts.Name) // a restore changes all
	return k
}

// Cancel forwards a cancel request to the listening routers. It reports whether there are
// any.
func (f *Feed) Cancel(key pgsni.CancelKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for router := range f.routers {
		select {
		case router <- cancelRequest{key.PID, key.Secret}:
		default:
		}
	}
	return len(f.routers) > 0
}

func (f *Feed) attach() (chan cancelRequest, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.routers) >= maxFeeds {
		return nil, false
	}
	cancels := make(chan cancelRequest, feedCancels)
	f.routers[cancels] = struct{}{}
	return cancels, true
}

func (f *Feed) detach(cancels chan cancelRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.routers, cancels)
}

func (f *Feed) serve(w http.ResponseWriter, r *http.Request) {
	cancels, ok := f.attach()
	if !ok {
		peer.Refuse(w, apierror.Unavailable("too many routers listen to this replica", nil))
		return
	}
	defer f.detach(cancels)
	w.Header().Set("Content-Type", "application/x-ndjson")
	s := &feedStream{Feed: f, to: http.NewResponseController(w), lines: json.NewEncoder(w), told: map[string]Entry{}}
	if err := s.run(r.Context(), cancels); err != nil {
		f.cfg.Log.DebugContext(r.Context(), "a router listens no more", "remote", r.RemoteAddr, "error", err)
	}
}

// feedStream is the stream to one router.
type feedStream struct {
	*Feed
	to     *http.ResponseController
	lines  *json.Encoder
	told   map[string]Entry
	store  string
	leader *string
}

// run sends news until the router disconnects or the Feed is closed.
func (s *feedStream) run(ctx context.Context, cancels <-chan cancelRequest) error {
	if err := s.say(news{Secret: s.cfg.Secret}); err != nil {
		return err
	}
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for first := true; ; first = false {
		began := time.Now()
		changed, err := s.update(first)
		if err != nil {
			return err
		}
		rest := time.NewTimer(max(feedPause, feedShare*time.Since(began)))
		err = s.wait(ctx, rest.C, changed, beat.C, cancels)
		rest.Stop()
		if err != nil {
			return err
		}
	}
}

// wait returns when the table is to be looked at again: when it has changed, and the rest
// is over. Until then it sends beats and cancel requests.
func (s *feedStream) wait(ctx context.Context, rest <-chan time.Time, changed <-chan struct{}, beat <-chan time.Time, cancels <-chan cancelRequest) error {
	due := changed
	changed = nil // until the rest is over
	for {
		var err error
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.stopping:
			return http.ErrServerClosed
		case c := <-cancels:
			err = s.say(news{Cancel: &c})
		case <-beat:
			err = s.beat()
		case <-rest:
			changed = due
		case <-changed:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// update sends what has changed in the table.
func (s *feedStream) update(first bool) (changed <-chan struct{}, err error) {
	known := s.cfg.Known()
	there := make(map[string]bool, len(known.Entries))
	for _, e := range known.Entries {
		e.BrokerTokenHash = nil // only replicas run the broker
		there[e.ID] = true
		if old, ok := s.told[e.ID]; ok && reflect.DeepEqual(old, e) {
			continue
		}
		s.told[e.ID] = e
		if err := s.line(news{Entry: &e}); err != nil {
			return nil, err
		}
	}
	for id := range s.told {
		if !there[id] {
			delete(s.told, id)
			if err := s.line(news{Gone: id}); err != nil {
				return nil, err
			}
		}
	}
	if first || known.Store != s.store {
		s.store = known.Store
		n := news{Store: s.store}
		if first {
			n.Whole, n.Blank, n.Index = true, len(known.Entries) == 0 && !known.Hosts, known.Index
		}
		if err := s.line(n); err != nil {
			return nil, err
		}
	}
	return known.Changed, s.beat()
}

// beat sends the leader if it has changed, or else an empty line.
func (s *feedStream) beat() error {
	var n news
	if _, leader := s.cfg.Leader(); s.leader == nil || *s.leader != leader {
		s.leader, n.Leader = &leader, &leader
	}
	return s.say(n)
}

// say sends a line and flushes it.
func (s *feedStream) say(n news) error {
	if err := s.line(n); err != nil {
		return err
	}
	return s.to.Flush()
}

func (s *feedStream) line(n news) error {
	if err := s.to.SetWriteDeadline(time.Now().Add(feedStall)); err != nil {
		return err
	}
	return s.lines.Encode(n)
}
