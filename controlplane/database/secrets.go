package database

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/guest/pgscram"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Lengths of the random part of passwords and tokens, in characters of five bits each.
const (
	passwordLength = 32
	tokenLength    = 40
)

// tokenPrefix begins every broker token.
const tokenPrefix = "brk_"

// archiveKey is the length of an archive's key, in bytes.
const archiveKey = 32

// newID returns a new database id, a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// newCredentials returns new sealed credentials for a database.
func (f *Flows) newCredentials(id string) (*record.DatabaseCredentials, error) {
	password, token := core.RandomText(passwordLength), tokenPrefix+core.RandomText(tokenLength)
	verifier, err := pgscram.Verifier(password)
	if err != nil {
		return nil, fmt.Errorf("make the verifier of a password: %w", err)
	}
	hash := sha256.Sum256([]byte(token))
	c := &record.DatabaseCredentials{Verifier: verifier, BrokerTokenHash: hash[:], CreatedAt: f.Clock()}
	if c.PasswordSealed, err = f.Sealer.Seal([]byte(password), record.PasswordContext(id)); err != nil {
		return nil, fmt.Errorf("seal a password: %w", err)
	}
	if c.BrokerTokenSealed, err = f.Sealer.Seal([]byte(token), record.BrokerTokenContext(id)); err != nil {
		return nil, fmt.Errorf("seal a broker token: %w", err)
	}
	return c, nil
}

// open unseals a database's credentials.
func (f *Flows) open(id string, c *record.DatabaseCredentials) (password, token string, err error) {
	rawPassword, err := f.Sealer.Open(c.PasswordSealed, record.PasswordContext(id))
	if err != nil {
		return "", "", apierror.As(fmt.Errorf("open a password: %w", err))
	}
	rawToken, err := f.Sealer.Open(c.BrokerTokenSealed, record.BrokerTokenContext(id))
	if err != nil {
		return "", "", apierror.As(fmt.Errorf("open a broker token: %w", err))
	}
	return string(rawPassword), string(rawToken), nil
}

// newArchive returns the archive for a database's next incarnation.
func (f *Flows) newArchive(d *record.Database) (record.DatabaseArchive, error) {
	key := make([]byte, archiveKey)
	_, _ = rand.Read(key) // never fails
	a := record.DatabaseArchive{Name: d.ID + "/1"}
	if before := d.Archive(); before != nil {
		last, _ := strconv.ParseInt(strings.TrimPrefix(before.Name, d.ID+"/"), 10, 64) // we made the name
		// A row restored from a backup does not know the latest incarnations. The current
		// time is a number that none of them can have.
		a.Name = fmt.Sprintf("%s/%d", d.ID, max(last+1, f.Clock().Unix()))
	}
	var err error
	if a.KeySealed, err = f.Sealer.Seal(key, record.ArchiveContext(a.Name)); err != nil {
		return a, fmt.Errorf("seal the key of an archive: %w", err)
	}
	return a, nil
}

// archive returns an archive as hosts need it, with its key unsealed.
func (f *Flows) archive(a *record.DatabaseArchive) (hostapi.Archive, error) {
	key, err := f.Sealer.Open(a.KeySealed, record.ArchiveContext(a.Name))
	if err != nil {
		return hostapi.Archive{}, fmt.Errorf("open the key of archive %s: %w", a.Name, err)
	}
	return hostapi.Archive{Name: a.Name, Key: key}, nil
}
