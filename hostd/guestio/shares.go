package guestio

import "sync"

// shares counts what the boxes of this host have of something, by workspace. A workspace
// leaves at least as much to others as its boxes have, however many boxes there are.
type shares struct {
	most int64

	mu  sync.Mutex
	all int64
	of  map[string]int64 // of those that have some
}

func newShares(most int64) *shares { return &shares{most: most, of: map[string]int64{}} }

// take counts n more for a workspace, or nothing if it then left too little to others.
func (s *shares) take(workspace string, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 && s.of[workspace]+n > s.most-s.all-n {
		return false
	}
	s.all += n
	s.of[workspace] += n
	return true
}

// give gives back n that a workspace took.
func (s *shares) give(workspace string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all -= n
	if s.of[workspace] -= n; s.of[workspace] == 0 {
		delete(s.of, workspace)
	}
}
