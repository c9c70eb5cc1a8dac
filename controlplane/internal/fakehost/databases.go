package fakehost

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Archives is a bucket of databases' archives, which fake hosts share.
type Archives struct {
	mu     sync.Mutex
	keys   map[string][]byte
	infos  map[string]hostapi.ArchiveInfo
	pruned map[string]time.Time // by archive: the time before which it was pruned
}

// NewArchives returns an empty bucket.
func NewArchives() *Archives {
	return &Archives{keys: map[string][]byte{}, infos: map[string]hostapi.ArchiveInfo{}, pruned: map[string]time.Time{}}
}

// Names returns the archives' names.
func (a *Archives) Names() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.infos))
}

// Info returns the content of an archive.
func (a *Archives) Info(name string) hostapi.ArchiveInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.infos[name]
}

// Pruned returns the time before which an archive was pruned.
func (a *Archives) Pruned(name string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pruned[name]
}

// Fill adds a base backup, and WAL until last, to an archive.
func (a *Archives) Fill(name string, first, last time.Time, lsn string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	info := a.infos[name]
	info.BaseBackups = []hostapi.BaseBackup{{ID: "b1", StartedAt: first.Add(-time.Second), FinishedAt: first, StartLSN: "0/1000", StopLSN: "0/2000", SizeBytes: 1 << 20}}
	info.FirstRestorable, info.LastRestorable, info.LastLSN, info.SizeBytes = first, last, lsn, 2<<20
	a.infos[name] = info
}

// Gap makes a gap in an archive, before which it has the moments of a window.
func (a *Archives) Gap(name string, before hostapi.Window) {
	a.mu.Lock()
	defer a.mu.Unlock()
	info := a.infos[name]
	info.Earlier = append(info.Earlier, before)
	a.infos[name] = info
}

// Damage damages an archive.
func (a *Archives) Damage(name, what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	info := a.infos[name]
	info.Damage = what
	a.infos[name] = info
}

// LoseEnd makes a gap in an archive that nothing leads over.
func (a *Archives) LoseEnd(name, what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	info := a.infos[name]
	info.Damage, info.EndLost = what, true
	a.infos[name] = info
}

// open returns an archive, if the key is right.
func (a *Archives) open(in hostapi.Archive) (hostapi.ArchiveInfo, error) {
	info, ok := a.infos[in.Name]
	switch {
	case !ok:
		return info, &hostapi.Error{Code: hostapi.CodeNoArchive, Message: "no such archive"}
	case !bytes.Equal(a.keys[in.Name], in.Key):
		return info, &hostapi.Error{Code: hostapi.CodeArchiveDamaged, Message: "archive is damaged", Detail: "another key"}
	}
	return info, nil
}

// Add adds an empty archive.
func (a *Archives) Add(name string, key []byte) { a.make(hostapi.Archive{Name: name, Key: key}) }

func (a *Archives) make(in hostapi.Archive) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.infos[in.Name]; !ok {
		a.keys[in.Name], a.infos[in.Name] = in.Key, hostapi.ArchiveInfo{BaseBackups: []hostapi.BaseBackup{}}
	}
}

// call answers a call about an archive.
func (a *Archives) call(op string, r *http.Request) (any, error) {
	var in hostapi.ArchivePrune
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if op == "archive.delete" {
		delete(a.infos, in.Name)
		delete(a.keys, in.Name)
		return nil, nil
	}
	info, err := a.open(in.Archive)
	if err != nil {
		return nil, err
	}
	switch op {
	case "archive.fence":
		info.Fenced = true
		a.infos[in.Name] = info
		return nil, nil
	case "archive.prune":
		if in.Before.After(a.pruned[in.Name]) {
			a.pruned[in.Name] = in.Before
		}
	}
	return info, nil
}

// databases are a host's databases, by box.
type databases struct {
	archives    *Archives
	specs       map[string]hostapi.DatabaseSpec
	states      map[string]hostapi.DatabaseState
	credentials map[string]pgapi.Credentials
	slow        bool // they do not become ready by themselves
	uncopied    bool // no disk is copied
}

func newDatabases() databases {
	return databases{
		archives: NewArchives(), specs: map[string]hostapi.DatabaseSpec{}, states: map[string]hostapi.DatabaseState{},
		credentials: map[string]pgapi.Credentials{},
	}
}

// SetArchives sets the host's bucket, which hosts can share.
func (h *Host) SetArchives(a *Archives) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.databases.archives = a
}

// Archives returns the host's bucket.
func (h *Host) Archives() *Archives {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.databases.archives
}

// SlowDatabases sets whether databases stay unready until ChangeDatabase.
func (h *Host) SlowDatabases(slow bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.databases.slow = slow
}

// RefuseCopies makes the host refuse to copy disks.
func (h *Host) RefuseCopies(refuse bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.databases.uncopied = refuse
}

// ChangeDatabase changes the state of a box's database and reports it.
func (h *Host) ChangeDatabase(id string, change func(s *hostapi.DatabaseState)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.databases.states[id]
	change(&s)
	h.databases.states[id] = s
	h.announce()
}

// DatabaseSpec returns the specification of a box's database.
func (h *Host) DatabaseSpec(id string) (hostapi.DatabaseSpec, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.databases.specs[id]
	return s, ok
}

// Credentials returns a database's current credentials.
func (h *Host) Credentials(id string) pgapi.Credentials {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.databases.credentials[id]
}

// copied has a box be a copy of another one's disk, which has the other's credentials.
func (d *databases) copied(from, to string) {
	if c, ok := d.credentials[from]; ok {
		d.credentials[to] = c
	}
}

func (d *databases) gone(id string) {
	delete(d.specs, id)
	delete(d.states, id)
	delete(d.credentials, id)
}

// report adds the state of a box's database to a heartbeat.
func (d *databases) report(b *hostapi.BoxState) {
	if s, ok := d.states[b.ID]; ok && b.Status == hostapi.StatusRunning {
		b.Database = &s
	}
}

// databaseCall returns the operation and id of a call about a database or an
// archive, or "".
func databaseCall(r *http.Request) (op, id string) {
	if what, ok := strings.CutPrefix(r.URL.Path, hostapi.PathArchives+"/"); ok {
		return "archive." + what, "archive"
	}
	id, action, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, hostapi.PathBoxes+"/"), "/")
	switch {
	case action == "database" && r.Method == http.MethodGet:
		return "database.get", id
	case action == "database":
		return "database.put", id
	case action == "restart":
		return action, id
	}
	if what, ok := strings.CutPrefix(action, "database/"); ok {
		return "database." + what, id
	}
	return "", ""
}

// KeptDisk reports whether a box was deleted, and its disk kept.
func (h *Host) KeptDisk(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keptDisks[id]
}

// database executes a call about a database. The caller holds the lock.
func (h *Host) database(r *http.Request, c Call) (any, error) {
	if strings.HasPrefix(c.Op, "archive.") {
		return h.databases.archives.call(c.Op, r)
	}
	b, ok := h.boxes[c.ID]
	switch {
	case !ok:
		return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}
	case c.Op == "restart":
		return h.restart(b)
	case c.Op == "database.put":
		return h.putDatabase(r, b)
	}
	d := &h.databases
	state, is := d.states[c.ID]
	switch {
	case !is:
		return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no database"}
	case b.Status != hostapi.StatusRunning:
		return nil, &hostapi.Error{Code: hostapi.CodeNotRunning, Message: "box is not running", Detail: string(b.Status)}
	}
	switch c.Op {
	case "database.get":
		return state, nil
	case "database.credentials":
		return h.setCredentials(r, c.ID, state)
	case "database.switch":
		name := d.specs[c.ID].Archive.Name
		d.archives.mu.Lock()
		defer d.archives.mu.Unlock()
		if info := d.archives.infos[name]; len(info.BaseBackups) > 0 {
			info.LastRestorable = time.Now()
			d.archives.infos[name] = info
		}
		return state, nil
	case "database.sleep":
		if state.IdleSince.IsZero() {
			return nil, &hostapi.Error{Code: hostapi.CodeDatabaseBusy, Message: "database is not idle"}
		}
		b.Status, b.Seq = hostapi.StatusHibernated, b.Seq+1
		h.boxes[c.ID] = b
		h.transitions["sleep"]++
		h.announce()
		return b, nil
	}
	return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: "no such call"}
}

func (h *Host) restart(b hostapi.Box) (any, error) {
	switch lost := b.Status == hostapi.StatusHibernated && h.memoryLost[b.ID]; {
	case b.Status == hostapi.StatusRunning:
		return b, nil
	case b.Status == hostapi.StatusFailed, lost:
		delete(h.memoryLost, b.ID)
		b.Status, b.Seq, b.Error = hostapi.StatusRunning, b.Seq+1, ""
		h.boxes[b.ID] = b
		h.transitions["restart"]++
		h.announce()
		return b, nil
	}
	return nil, &hostapi.Error{Code: hostapi.CodeIllegalState, Message: "illegal state", Detail: string(b.Status)}
}

func (h *Host) putDatabase(r *http.Request, b hostapi.Box) (any, error) {
	var spec hostapi.DatabaseSpec
	if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
		return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()}
	}
	d := &h.databases
	if before, ok := d.specs[b.ID]; ok {
		if before.Archive.Name != spec.Archive.Name {
			return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: "the box has another database"}
		}
		return d.states[b.ID], nil
	}
	state := hostapi.DatabaseState{State: pgapi.StateReady, Ready: true}
	d.archives.make(spec.Archive)
	switch {
	case spec.Restore != nil && spec.Restore.WithDisk:
		state.Restore = &pgapi.RestoreStatus{Phase: pgapi.RestoreDone, As: spec.Archive.Name}
	case spec.Restore != nil:
		d.archives.mu.Lock()
		info, err := d.archives.open(spec.Restore.From)
		d.archives.mu.Unlock()
		state.Restore = &pgapi.RestoreStatus{Phase: pgapi.RestoreDone, TargetTime: spec.Restore.TargetTime, ReachedLSN: info.LastLSN}
		if err != nil {
			state = hostapi.DatabaseState{State: pgapi.StateFailed, Error: err.Error(), Restore: &pgapi.RestoreStatus{Phase: pgapi.RestoreFailed, Error: err.Error()}}
		}
	}
	if d.slow {
		state.State, state.Ready = pgapi.StateStarting, false
	}
	b.Archive = spec.Archive.Name
	h.boxes[b.ID] = b
	d.specs[b.ID], d.states[b.ID] = spec, state
	h.announce()
	return state, nil
}

func (h *Host) setCredentials(r *http.Request, id string, state hostapi.DatabaseState) (any, error) {
	var in pgapi.Credentials
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()}
	}
	if !state.Ready {
		return nil, &hostapi.Error{Code: hostapi.CodeNotReady, Message: "database is not ready"}
	}
	h.databases.credentials[id] = in
	tenant := in.Tenant()
	state.Tenant = &tenant
	h.databases.states[id] = state
	h.announce()
	return pgapi.CredentialsApplied{Tenant: tenant, SessionsCut: 1}, nil
}
