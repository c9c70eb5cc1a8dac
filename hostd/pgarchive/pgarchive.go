// Package pgarchive is what of databases is in the bucket: the WAL and the base
// backups of each incarnation, encrypted with its key, in an order that leaves every
// moment that could be restored restorable whatever is interrupted. DESIGN.md has the
// layout, the format and the reasons.
package pgarchive

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Errors that a caller tells apart.
var (
	// ErrInvalid: what is asked for can never be.
	ErrInvalid = errors.New("invalid request to an archive")
	// ErrFenced: another incarnation of the database has taken over.
	ErrFenced = errors.New("the archive is fenced")
	// ErrOtherBytes: the archive has a file of that name with other bytes.
	ErrOtherBytes = errors.New("the archive has other bytes under that name")
	// ErrCut: what came is not what was announced.
	ErrCut = errors.New("these are not the bytes that were announced")
	// ErrExists: the archive has a base backup of that id.
	ErrExists = errors.New("there is such a base backup already")
	// ErrNotArchived: there is no such file, and nothing that would come after it.
	ErrNotArchived = errors.New("it is not archived")
	// ErrNothing: there is no base backup that could be restored, or not to that moment.
	ErrNothing = errors.New("nothing can be restored")
	// ErrDamaged: an object is missing or is not what was stored. It is always a
	// *DamagedError.
	ErrDamaged = errors.New("the archive is damaged")
	// ErrOtherFormat: it was stored by a Berth that this one cannot read.
	ErrOtherFormat = errors.New("an object has another format")
)

// DamagedError names what is damaged.
type DamagedError struct {
	Object string // its key in the bucket
	Cause  error
}

func (e *DamagedError) Error() string { return fmt.Sprintf("%s: %v", e.Object, e.Cause) }

// Unwrap makes it ErrDamaged, whatever the cause.
func (e *DamagedError) Unwrap() []error { return []error{ErrDamaged, e.Cause} }

var errMissing = errors.New("it is missing")

// Layout of the bucket, below pg/<database id>/<incarnation>/.
const (
	root       = "pg/"
	walDir     = "wal/"     // <name>: a WAL file
	backupsDir = "backups/" // <id>: a base backup's manifest, its last object to be written and its first to go
	partsDir   = "base/"    // <id>/<number>: a part of a base backup
	asideDir   = "damaged/" // <name>: a WAL file as it was before it was written anew
	fenceName  = "fenced"   // is there: nothing is written any more
)

// removedDir has an object for each archive that was deleted, of which the fence is
// left: <day>-<database id>-<incarnation>.
const removedDir = "pg-removed/"

// Store is a bucket with archives. Hosts share it, each through a Store of its own.
type Store struct {
	bucket bucket.Bucket
	now    func() time.Time
}

// New returns the archives of a bucket.
func New(b bucket.Bucket) *Store {
	return &Store{bucket: b, now: func() time.Time { return time.Now().Round(0).UTC() }} // the monotonic clock stops while a machine sleeps
}

// Archive is that of one incarnation of a database.
type Archive struct {
	store *Store
	name  string
	key   []byte
}

const keyBytes = 32

var (
	databaseName = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	incarnation  = regexp.MustCompile(`^[1-9][0-9]{0,17}$`)
	backupID     = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
)

// Open returns an archive, whether anything is in it or not.
func (s *Store) Open(a hostapi.Archive) (*Archive, error) {
	db, n, _ := strings.Cut(a.Name, "/")
	if !databaseName.MatchString(db) || !incarnation.MatchString(n) {
		return nil, fmt.Errorf("%w: no archive is named %.80q", ErrInvalid, a.Name)
	}
	if len(a.Key) != keyBytes {
		return nil, fmt.Errorf("%w: the key of archive %s has %d bytes: want %d", ErrInvalid, a.Name, len(a.Key), keyBytes)
	}
	return &Archive{store: s, name: a.Name, key: a.Key}, nil
}

// Name is "<database id>/<incarnation>".
func (a *Archive) Name() string { return a.name }

// prefix is that of all keys of the archive.
func (a *Archive) prefix() string { return root + a.name + "/" }

// Fence lets nobody write to the archive any more. Whatever was said to be archived
// before it returns is there to be restored; whoever writes meanwhile is told that it
// is fenced.
func (a *Archive) Fence(ctx context.Context) error {
	if err := a.store.fence(ctx, a.name); err != nil {
		return fmt.Errorf("fence archive %s: %w", a.name, err)
	}
	return nil
}

func (s *Store) fence(ctx context.Context, name string) error {
	dir := root + name + "/"
	note := s.now().UTC().Format(time.RFC3339Nano) + "\n" // for a person who looks at the bucket
	err := bucket.Retry(ctx, s.bucket, func() error { return s.bucket.Create(ctx, dir+fenceName, []byte(note)) })
	if err != nil && !errors.Is(err, bucket.ErrExists) {
		return err
	}
	return s.bucket.Sync(dir)
}

// Fenced says whether the archive is fenced.
func (a *Archive) Fenced(ctx context.Context) (bool, error) {
	return a.there(ctx, fenceName)
}

func (a *Archive) there(ctx context.Context, object string) (bool, error) {
	err := bucket.Retry(ctx, a.store.bucket, func() error {
		_, err := a.store.bucket.Stat(ctx, a.prefix()+object)
		return err
	})
	if errors.Is(err, bucket.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// unfenced fails if the archive is fenced. It is asked before something is written,
// and again before it is said to be archived: then it was there before any fence, and
// whoever restores after the fence finds it.
func (a *Archive) unfenced(ctx context.Context) error {
	fenced, err := a.Fenced(ctx)
	if err == nil && fenced {
		err = ErrFenced
	}
	return err
}

// create writes an object where none is, and makes it durable. ErrExists of the
// bucket is only returned for an object of somebody else's.
func (a *Archive) create(ctx context.Context, key string, raw []byte) error {
	b := a.store.bucket
	err := bucket.Retry(ctx, b, func() error { return b.Create(ctx, key, raw) })
	if errors.Is(err, bucket.ErrExists) { // also by an attempt whose answer was lost
		there, readErr := bucket.Read(ctx, b, key, int64(len(raw)))
		if readErr != nil {
			return errors.Join(err, readErr)
		}
		if string(there) == string(raw) {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	return b.Sync(key[:strings.LastIndexByte(key, '/')])
}
