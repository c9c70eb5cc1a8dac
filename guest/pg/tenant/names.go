package tenant

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/guest/pgscram"
)

// ErrInvalid is wrapped by what is wrong with credentials themselves.
var ErrInvalid = errors.New("invalid credentials")

// Bounds of a password, in bytes.
const (
	minPassword = 12
	maxPassword = 256
)

var (
	name     = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	reserved = []string{postgres.Superuser, "postgres", "template0", "template1", "public", "none", "all", "replication", "sameuser", "samerole", "current_user", "session_user", "current_role", "user"}
)

// check says what is wrong with credentials, without their password.
func check(c pgapi.Credentials) error {
	for what, s := range map[string]string{"database": c.Database, "username": c.Username} {
		if !name.MatchString(s) || strings.HasPrefix(s, "pg_") || slices.Contains(reserved, s) {
			return fmt.Errorf("%w: %s is %.80q: want a name of a-z, 0-9 and _ that is not reserved", ErrInvalid, what, s)
		}
	}
	if len(c.Password) < minPassword || len(c.Password) > maxPassword {
		return fmt.Errorf("%w: the password has %d bytes: want %d to %d", ErrInvalid, len(c.Password), minPassword, maxPassword)
	}
	for _, b := range []byte(c.Password) {
		if b <= ' ' || b > '~' {
			return fmt.Errorf("%w: the password has other characters than visible ASCII", ErrInvalid)
		}
	}
	if c.Verifier != "" && !pgscram.Matches(c.Verifier, c.Password) {
		return fmt.Errorf("%w: the verifier is not of the password", ErrInvalid)
	}
	return nil
}
