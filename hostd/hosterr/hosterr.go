// Package hosterr names why a host refuses. hostd/server maps each reason to a
// code and a status, once.
package hosterr

import (
	"errors"
	"fmt"
	"syscall"
)

var (
	// ErrInvalid is a request that no host could serve.
	ErrInvalid = errors.New("invalid request")
	// ErrCwd and ErrUser are an ErrInvalid, with its text: a guest has not the
	// directory or the user that a command names. ErrMount is one, too: a guest
	// cannot mount anything at the path of a volume.
	ErrCwd   = fmt.Errorf("%w", ErrInvalid)
	ErrUser  = fmt.Errorf("%w", ErrInvalid)
	ErrMount = fmt.Errorf("%w", ErrInvalid)
	// ErrNotFound means that there is no such box.
	ErrNotFound = errors.New("no such sandbox on this host")
	// ErrStaleGeneration means that a younger box of the id is or was here.
	ErrStaleGeneration = errors.New("a younger sandbox of this id is or was here")
	// ErrNotRunning refuses what needs a box to run that is paused, failed or not
	// yet or no longer there. The guest was not asked: nothing was done, and the
	// same may be asked again.
	ErrNotRunning = errors.New("sandbox not running")
	// ErrCutOff ends what was under way in a box that stopped. It was begun, so it
	// must not be done again for its caller.
	ErrCutOff = errors.New("sandbox stopped while this was under way")
	// ErrIllegalState is a transition that the state table does not have.
	ErrIllegalState = errors.New("not possible in this state")
	// ErrTemplate means that the template is missing, or not ready to restore.
	ErrTemplate = errors.New("template is not ready on this host")
	// ErrGuest means that the guest's agent did not answer as it should.
	ErrGuest = errors.New("guest does not answer")
	// ErrPortClosed means that nothing in the guest accepts on the port.
	ErrPortClosed = errors.New("port is closed")
	// ErrBusy means that too many execs run in the box.
	ErrBusy = errors.New("too many commands run in this sandbox")
	// ErrConnections means that too many connections into the box are open.
	ErrConnections = errors.New("too many connections to this sandbox")
	// ErrNoSnapshot means that there is no such capture, here or in the store.
	ErrNoSnapshot = errors.New("no such snapshot")
	// ErrBadSnapshot is a capture, or the saved memory of a box, that is damaged,
	// partial, or made by another engine. Trying again does not help.
	ErrBadSnapshot = errors.New("snapshot is refused")
	// ErrInUse is a volume or capture that something else holds.
	ErrInUse = errors.New("in use")
	// ErrDraining means that the daemon is starting up or shutting down.
	ErrDraining = errors.New("host is starting up or shutting down")
	// ErrNoMemory, ErrNoDisk and ErrNoSlot are the host's limits.
	ErrNoMemory = errors.New("insufficient host memory for sandbox")
	ErrNoDisk   = errors.New("insufficient host disk space for sandbox")
	// ErrDiskStalled refuses a new box while the disk does not end a write.
	ErrDiskStalled = errors.New("the host's disk does not take writes")
	ErrNoSlot      = errors.New("no free network slot on this host")

	// ErrDatabaseBusy refuses what a database has no time for: it is not idle, or the
	// same is under way.
	ErrDatabaseBusy = errors.New("database is busy")
	// ErrDatabaseUnready means that PostgreSQL does not serve yet, or not any more.
	ErrDatabaseUnready = errors.New("database does not serve")
	// ErrNotVerified means that a log-in with new credentials failed. The old ones are
	// in force.
	ErrNotVerified = errors.New("new credentials do not work")
	// ErrNoArchive means that there is no such archive, or nothing to restore in it.
	ErrNoArchive = errors.New("nothing is archived there")
	// ErrArchiveDamaged is an archive with an object that is missing or has other bytes.
	ErrArchiveDamaged = errors.New("archive is damaged")
	// ErrArchiveFenced means that another incarnation of the database has taken over.
	ErrArchiveFenced = errors.New("archive is fenced")
)

// Invalid is an ErrInvalid that says what is wrong.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// AsNoDisk names a full disk by its own error, whichever step met it. An error
// with a method NoSpace says itself whether that is what it means.
func AsNoDisk(err error) error {
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	var refusal interface {
		error
		NoSpace() bool
	}
	full = full || errors.As(err, &refusal) && refusal.NoSpace()
	if full && !errors.Is(err, ErrNoDisk) {
		return fmt.Errorf("%w: %w", ErrNoDisk, err)
	}
	return err
}
