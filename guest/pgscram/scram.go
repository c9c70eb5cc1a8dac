// Package pgscram makes what PostgreSQL keeps in the place of a password.
package pgscram

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"
)

// Of a SCRAM-SHA-256 verifier: what PostgreSQL itself takes.
const (
	scramIterations = 4096
	scramSalt       = 16 // bytes
)

// Verifier is what PostgreSQL stores in the place of a password (RFC 5803), with a
// new salt each time. Made here, so that the password is in no statement. The password
// is printable ASCII, which SASLprep leaves as it is.
func Verifier(password string) (string, error) {
	salt := make([]byte, scramSalt)
	_, _ = rand.Read(salt) // never fails
	return verifierOf(password, salt)
}

// Matches says whether a verifier, as Verifier makes it, is of a password.
func Matches(verifier, password string) bool {
	rest, ok := strings.CutPrefix(verifier, fmt.Sprintf("SCRAM-SHA-256$%d:", scramIterations))
	b64, _, whole := strings.Cut(rest, "$")
	salt, err := base64.StdEncoding.DecodeString(b64)
	if !ok || !whole || err != nil {
		return false
	}
	same, err := verifierOf(password, salt)
	return err == nil && subtle.ConstantTimeCompare([]byte(same), []byte(verifier)) == 1
}

func verifierOf(password string, salt []byte) (string, error) {
	salted, err := pbkdf2.Key(sha256.New, password, salt, scramIterations, sha256.Size)
	if err != nil {
		return "", err
	}
	client := sha256.Sum256(mac(salted, "Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", scramIterations, b64(salt), b64(client[:]), b64(mac(salted, "Server Key"))), nil
}

func mac(key []byte, message string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(message))
	return h.Sum(nil)
}
