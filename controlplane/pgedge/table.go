package pgedge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/timescale"
)

var (
	// tableSilence is how long a replica may be silent. It sends something every second.
	tableSilence = timescale.Limit(5 * time.Second)
	// tableLeaderless is how long a replica may know of no leader before the Table
	// switches to another one: this replica may be cut off from the others.
	tableLeaderless = timescale.Limit(5 * time.Second)
	// cancelLimit bounds what is done for one cancel request.
	cancelLimit = timescale.Limit(pgsni.DefaultCancelTimeout)
)

const (
	tableRetry   = 100 * time.Millisecond // the first pause between two replicas
	tableLast    = 2 * time.Second        // the longest pause between two replicas
	maxTableLine = 1 << 20
	maxCancels   = 16 // the most cancel requests carried out at a time; any more are lost
)

// TableConfig configures a Table.
type TableConfig struct {
	Replicas  []string          // the addresses of their peer ports
	Transport http.RoundTripper // to the peer ports
	// Cancel carries out a cancel request if its session is here.
	Cancel func(ctx context.Context, key pgsni.CancelKey) bool
	Log    *slog.Logger
}

// Table is a copy of the table of databases, for a router in a process of its own. It
// listens to one replica at a time. While no replica answers, it keeps what it has.
type Table struct {
	cfg     TableConfig
	ready   chan struct{}
	cancels chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex
	entries map[string]Entry
	store   string // whose indexes the entries have
	leader  string
	secret  []byte
	changed chan struct{}
}

// NewTable returns an empty Table.
func NewTable(cfg TableConfig) *Table {
	return &Table{cfg: cfg, ready: make(chan struct{}), cancels: make(chan struct{}, maxCancels), changed: make(chan struct{})}
}

// Ready returns a channel that is closed once the Table has received all databases.
func (t *Table) Ready() <-chan struct{} { return t.ready }

// Lookup finds a database in the Table. It serves as a Lookup.
func (t *Table) Lookup(id string) (Entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.entries[id]
	return e, ok
}

// Leader returns the last known address of the leader's peer port. It serves as the id,
// which is not known: who waits for a leader must notice when another one leads.
func (t *Table) Leader() (id, address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leader, t.leader
}

// Secret returns the Secret of RouterConfig, once the Table is ready.
func (t *Table) Secret() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.secret
}

// Changed returns a channel that is closed when an entry changes.
func (t *Table) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// Run listens to one replica after the other, until ctx ends.
func (t *Table) Run(ctx context.Context) {
	defer t.running.Wait()
	retry := tableRetry
	for at := 0; ctx.Err() == nil; at++ {
		address := t.cfg.Replicas[at%len(t.cfg.Replicas)]
		told, err := t.listen(ctx, address)
		if ctx.Err() != nil {
			return
		}
		if told {
			retry = tableRetry
		}
		t.cfg.Log.WarnContext(ctx, "a replica tells no more of databases; another is asked", "address", address, "error", err)
		_ = pause(ctx, retry) // the loop checks ctx next
		retry = min(2*retry, tableLast)
	}
}

// listen follows one replica's stream until it ends. told reports whether the replica had
// sent all databases.
func (t *Table) listen(ctx context.Context, address string) (told bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(tableSilence, func() { cancel(fmt.Errorf("nothing was heard for %s", tableSilence)) })
	defer silence.Stop()
	resp, err := peer.Ask(ctx, t.cfg.Transport, address, pathTable, struct{}{})
	if err != nil {
		return false, because(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("status %d", resp.StatusCode)
	}
	h := hearing{Table: t, entries: map[string]Entry{}, led: time.Now()}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxTableLine)
	for lines.Scan() {
		silence.Reset(tableSilence)
		var n news
		if err := json.Unmarshal(lines.Bytes(), &n); err != nil {
			return h.whole, fmt.Errorf("read what it tells: %w", err)
		}
		if err := h.hear(ctx, n); err != nil {
			return false, err
		}
		if time.Since(h.led) > tableLeaderless && len(t.cfg.Replicas) > 1 {
			return h.whole, fmt.Errorf("it has known no leader for %s", tableLeaderless)
		}
	}
	if err := lines.Err(); err != nil {
		return h.whole, because(ctx, err)
	}
	return h.whole, errors.New("it has ended the stream")
}

func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// hearing is the state of one replica's stream.
type hearing struct {
	*Table
	entries map[string]Entry // collects entries until all have been sent
	whole   bool
	led     time.Time // when the replica last knew of a leader
	leading bool
}

// errBlank ends the stream of a replica whose store is empty while databases are known: it is
// of a cluster that is just made anew, into which a backup will be restored. What runs goes on
// meanwhile.
var errBlank = errors.New("it knows neither databases nor hosts: is a backup yet to be restored?")

func (h *hearing) hear(ctx context.Context, n news) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(n.Secret) > 0 {
		h.secret = n.Secret
	}
	if n.Leader != nil {
		h.leader, h.leading = *n.Leader, *n.Leader != ""
	}
	if h.leading {
		h.led = time.Now()
	}
	to := h.entries
	if h.whole {
		to = h.Table.entries
	}
	switch {
	case n.Entry != nil:
		to[n.Entry.ID] = *n.Entry
	case n.Gone != "":
		delete(to, n.Gone)
	case n.Whole && n.Blank && !h.whole && len(h.Table.entries) > 0:
		return errBlank
	case n.Whole && !h.whole:
		h.begin(n.Store, n.Index)
	case n.Store != "" && h.whole:
		h.store = n.Store
		return nil
	case n.Cancel != nil:
		h.carryOut(ctx, pgsni.CancelKey{PID: n.Cancel.PID, Secret: n.Cancel.Secret})
		return nil
	default:
		return nil
	}
	if h.whole {
		close(h.changed)
		h.changed = make(chan struct{})
	}
	return nil
}

// begin makes the stream's entries the table. This replica may be behind the previous
// one, and soon sends the rest, so entries that are known to be newer stay, and those that
// it cannot know of yet: one that has just been restarted knows no more than its snapshot.
// After the restore of a backup none stays: the backup's may have lower indexes.
func (h *hearing) begin(store string, index uint64) {
	same := store == "" || h.store == "" || store == h.store // an older version does not say
	for id, known := range h.Table.entries {
		e, ok := h.entries[id]
		if same && (ok && known.Index > e.Index || !ok && index > 0 && known.Index > index) {
			h.entries[id] = known
		}
	}
	h.store = store
	h.Table.entries, h.whole = maps.Clone(h.entries), true
	select {
	case <-h.ready:
	default:
		close(h.ready)
	}
}

func (h *hearing) carryOut(ctx context.Context, key pgsni.CancelKey) {
	select {
	case h.cancels <- struct{}{}:
	default:
		return
	}
	h.running.Go(func() {
		defer func() { <-h.cancels }()
		ctx, cancel := context.WithTimeout(ctx, cancelLimit) // a guest that stands still takes no request
		defer cancel()
		h.cfg.Cancel(ctx, key)
	})
}
