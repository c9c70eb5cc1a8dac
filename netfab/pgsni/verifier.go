package pgsni

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// defaultIterations is PostgreSQL's scram_iterations, and saltLength its salt in
// bytes.
const (
	defaultIterations = 4096
	saltLength        = 16
)

// Verifier is what a server keeps of a password for SCRAM-SHA-256 (RFC 5802,
// section 3): enough to check a login, too little to log in elsewhere.
type Verifier struct {
	Iterations           int
	Salt                 []byte
	StoredKey, ServerKey []byte
}

// ParseVerifier reads a role's secret as pg_authid.rolpassword has it:
// SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>, in base64.
func ParseVerifier(secret string) (*Verifier, error) {
	bad := errors.New("not a SCRAM-SHA-256 secret") // and never its text
	parts := strings.Split(secret, "$")
	if len(parts) != 3 || parts[0] != mechanismPlain {
		return nil, bad
	}
	iterations, salt, ok1 := strings.Cut(parts[1], ":")
	stored, server, ok2 := strings.Cut(parts[2], ":")
	n, err := strconv.Atoi(iterations)
	if !ok1 || !ok2 || err != nil || n < 1 {
		return nil, bad
	}
	v := &Verifier{Iterations: n}
	for _, f := range []struct {
		to   *[]byte
		from string
	}{{&v.Salt, salt}, {&v.StoredKey, stored}, {&v.ServerKey, server}} {
		if *f.to, err = base64.StdEncoding.DecodeString(f.from); err != nil {
			return nil, bad
		}
	}
	if len(v.Salt) == 0 || len(v.StoredKey) != sha256.Size || len(v.ServerKey) != sha256.Size {
		return nil, bad
	}
	return v, nil
}

// String is the secret in PostgreSQL's form. It is a credential of a kind: logs
// should not have it.
func (v *Verifier) String() string {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("%s$%d:%s$%s:%s", mechanismPlain, v.Iterations, b64(v.Salt), b64(v.StoredKey), b64(v.ServerKey))
}

// decoyVerifier makes up what a user of a database that does not exist might
// have. It is the same at each login, as a real one is. No password fits it:
// its keys are no hashes of anything that anybody knows.
func decoyVerifier(secret []byte, name, user string) *Verifier {
	derive := func(what string) []byte { return mac(secret, []byte(what+"\x00"+name+"\x00"+user)) }
	return &Verifier{
		Iterations: defaultIterations,
		Salt:       derive("salt")[:saltLength],
		StoredKey:  derive("stored key"),
		ServerKey:  derive("server key"),
	}
}

func mac(key []byte, messages ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, m := range messages {
		h.Write(m)
	}
	return h.Sum(nil)
}
