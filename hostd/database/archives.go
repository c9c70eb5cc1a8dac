package database

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/pgarchive"
	"github.com/berth-cloud/berth/timescale"
)

// looksAtOnce is how many archives a host lists at once for others: each listing is in
// memory whole.
const looksAtOnce = 4

// longLook is after how long a look is not worth to be begun anew for each who asks.
const longLook = 3 * time.Second

// Limits of what is done in the bucket for others, whether or not they hang up.
var (
	fenceLimit = timescale.Limit(time.Minute)
	pruneLimit = timescale.Limit(10 * time.Minute)
)

// Archives answers for archives by their names: any host can, for all is in the
// bucket.
type Archives struct {
	store *pgarchive.Store
	turns chan struct{} // capacity looksAtOnce

	mu    sync.Mutex
	looks map[string]*looks // by what names an archive, and opens it
	kept  map[string]kept   // by the same; what looks that took long have found
}

// kept is what a look has found, for those who come before it has been over for as long as
// it took: nobody waits for so long, and each would have it begun anew.
type kept struct {
	info  hostapi.ArchiveInfo
	until time.Time
}

// looks are at one archive: one that is under way, and one for all who came since, for
// they may know of something that the first has passed.
type looks struct{ next *archiveLook }

type archiveLook struct {
	done chan struct{}
	info hostapi.ArchiveInfo
	err  error
}

// NewArchives returns the archives of a store.
func NewArchives(s *pgarchive.Store) *Archives {
	return &Archives{store: s, turns: make(chan struct{}, looksAtOnce), looks: map[string]*looks{}, kept: map[string]kept{}}
}

// Info returns what the bucket has of an archive. One that is damaged may be restored
// from all the same: whoever does finds out whether what it needs is left. Tenants ask
// as often as they like, so all that wait for one archive share a look, and one that took
// long is good for as long again.
func (s *Archives) Info(ctx context.Context, a hostapi.Archive) (hostapi.ArchiveInfo, error) {
	l, found := s.share(a)
	if l == nil {
		return found, nil
	}
	select {
	case <-l.done:
		return l.info, l.err
	case <-ctx.Done():
		return hostapi.ArchiveInfo{}, context.Cause(ctx)
	}
}

// share returns a look to wait for, or none and what the last one has found.
func (s *Archives) share(a hostapi.Archive) (*archiveLook, hostapi.ArchiveInfo) {
	key := a.Name + "\x00" + string(a.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(s.kept, func(_ string, k kept) bool { return !now.Before(k.until) })
	if k, ok := s.kept[key]; ok {
		return nil, k.info
	}
	of := s.looks[key]
	begin := of == nil
	if begin {
		of = &looks{}
		s.looks[key] = of
	}
	if of.next == nil {
		of.next = &archiveLook{done: make(chan struct{})}
	}
	l := of.next
	if begin {
		go s.lookOn(key, a, of)
	}
	return l, hostapi.ArchiveInfo{}
}

// lookOn looks at an archive until nobody has come since the last look began.
func (s *Archives) lookOn(key string, a hostapi.Archive, of *looks) {
	for {
		s.turns <- struct{}{}
		s.mu.Lock()
		l := of.next
		of.next = nil
		if l == nil {
			delete(s.looks, key)
		}
		s.mu.Unlock()
		if l != nil {
			began := time.Now()
			l.info, l.err = within(context.Background(), listLimit, func(ctx context.Context) (hostapi.ArchiveInfo, error) { return s.info(ctx, a) })
			if now := time.Now(); l.err == nil && now.Sub(began) > longLook {
				s.mu.Lock()
				s.kept[key] = kept{l.info, now.Add(now.Sub(began))}
				s.mu.Unlock()
			}
			close(l.done)
		}
		<-s.turns
		if l == nil {
			return
		}
	}
}

func (s *Archives) info(ctx context.Context, a hostapi.Archive) (hostapi.ArchiveInfo, error) {
	archive, err := s.store.Open(a)
	if err != nil {
		return hostapi.ArchiveInfo{}, archiveError(err)
	}
	info, err := archive.Info(ctx)
	if errors.Is(err, pgarchive.ErrDamaged) {
		info.Damage, err = err.Error(), nil
	}
	return info, archiveError(err)
}

// restoreTime is how long a restore may take: the leader gives it an hour.
var restoreTime = timescale.Limit(90 * time.Minute)

// Prune removes what no restore to a moment after p.Before needs, nor one that was
// allowed when p.Before was earlier, and is under way.
func (s *Archives) Prune(ctx context.Context, p hostapi.ArchivePrune) (hostapi.ArchiveInfo, error) {
	archive, err := s.store.Open(p.Archive)
	if err != nil {
		return hostapi.ArchiveInfo{}, archiveError(err)
	}
	info, err := within(ctx, pruneLimit, func(ctx context.Context) (hostapi.ArchiveInfo, error) {
		return archive.Prune(ctx, p.Before.Add(-restoreTime))
	})
	return info, archiveError(err)
}

// Fence has nothing written to an archive from now on.
func (s *Archives) Fence(ctx context.Context, a hostapi.Archive) error {
	archive, err := s.store.Open(a)
	if err != nil {
		return archiveError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, fenceLimit)
	defer cancel()
	return archiveError(archive.Fence(ctx))
}

// Delete removes an archive. One that is gone is no error.
func (s *Archives) Delete(ctx context.Context, a hostapi.Archive) error {
	ctx, cancel := context.WithTimeout(ctx, pruneLimit)
	defer cancel()
	return archiveError(s.store.Delete(ctx, a.Name))
}
