package volume

import (
	"context"
	"fmt"
	"os"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Size returns a volume's bytes.
func (s *Store) Size(volumeID string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[volumeID]
	if v == nil {
		return 0, notHere(volumeID)
	}
	return int64(v.SizeMB) << 20, nil
}

func notHere(volumeID string) error {
	return hosterr.Invalid("volume %s is not on this host", volumeID)
}

// Attach gives a volume to a box, and its image to the user of the box's VMM. A
// box that has it already gets it again, for the user that it has now.
//
// The box's record names its volumes before it attaches them, so that after a
// crash the volume is attached to whoever may have it.
func (s *Store) Attach(_ context.Context, boxID, volumeID string, uid, gid int) (string, error) {
	fresh, err := s.claim(boxID, volumeID)
	if err != nil {
		return "", err
	}
	// The guest's kernel replays the file system's journal when it mounts it: a
	// check here would only do that first, on the host, on a file that a guest
	// has written.
	if err := s.own(volumeID, uid, gid); err != nil {
		if fresh {
			s.unclaim(boxID, volumeID)
		}
		return "", err
	}
	return s.image(volumeID), nil
}

// claim makes a volume a box's, in memory; fresh says that it was nobody's.
func (s *Store) claim(boxID, volumeID string) (fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[volumeID]
	switch {
	case v == nil:
		return false, notHere(volumeID)
	case v.attachedTo != "" && v.attachedTo != boxID:
		return false, fmt.Errorf("%w: volume %s is attached to sandbox %s", hosterr.ErrInUse, volumeID, hostapi.ShortID(v.attachedTo))
	}
	fresh = v.attachedTo == ""
	v.attachedTo = boxID
	return fresh, nil
}

func (s *Store) unclaim(boxID, volumeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.volumes[volumeID]; v != nil && v.attachedTo == boxID {
		v.attachedTo = ""
	}
}

// has reports whether a box has a volume.
func (s *Store) has(boxID, volumeID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[volumeID]
	return v != nil && v.attachedTo == boxID
}

// Flush has on disk what was written to a volume.
func (s *Store) Flush(volumeID string) error { return atomicfile.Sync(s.image(volumeID)) }

// Detach takes a volume back from a box whose VMM has ended. One that the box
// does not have, or that is gone, is no error.
func (s *Store) Detach(boxID, volumeID string) error {
	if !s.has(boxID, volumeID) {
		return nil
	}
	// Nobody else's before it is root's again.
	if err := s.own(volumeID, 0, 0); err != nil {
		return err
	}
	s.unclaim(boxID, volumeID)
	return nil
}

// own gives an image to a user.
func (s *Store) own(id string, uid, gid int) error {
	if uid == 0 && os.Geteuid() != 0 {
		uid, gid = os.Geteuid(), os.Getegid() // of tests that are not root's
	}
	if err := os.Lchown(s.image(id), uid, gid); err != nil {
		return fmt.Errorf("give volume %s to user %d: %w", id, uid, err)
	}
	return nil
}
