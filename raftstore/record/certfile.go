package record

import (
	"bytes"
	"time"
)

// CertFile is a file of what speaks ACME: an account, a key, a certificate or what
// belongs to one. Its id is its path.
type CertFile struct {
	Meta
	ValueSealed []byte    `json:"value_sealed"`
	ModifiedAt  time.Time `json:"modified_at"`
}

// Clone returns a deep copy.
func (f *CertFile) Clone() *CertFile {
	c := *f
	c.ValueSealed = bytes.Clone(f.ValueSealed)
	return &c
}
