package pgsni

import (
	"crypto/hmac"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
)

// scramClient is the client's half of an exchange, with a ClientKey in place of
// a password: the router logs in at a server as the client that it has checked.
type scramClient struct {
	verifier  *Verifier
	clientKey []byte

	firstBare   string
	authMessage []byte
}

var (
	errStaleVerifier = errors.New("the server's SCRAM secret is another than the router's")
	errBadServer     = errors.New("the server's SCRAM message is malformed or its signature wrong")
)

// first is the client-first-message. The user name stands in the start-up.
func (c *scramClient) first() string {
	c.firstBare = "n=,r=" + newNonce()
	return "n,," + c.firstBare
}

// final answers the server-first-message. With another salt or count than the
// verifier's the ClientKey is worth nothing: the password was changed.
func (c *scramClient) final(serverFirst string) (string, error) {
	fields := strings.Split(serverFirst, ",")
	ours := strings.TrimPrefix(c.firstBare, "n=,")
	if len(fields) < 3 || !strings.HasPrefix(fields[0], ours) || len(fields[0]) == len(ours) {
		return "", errBadServer
	}
	salt := "s=" + base64.StdEncoding.EncodeToString(c.verifier.Salt)
	if fields[1] != salt || fields[2] != "i="+strconv.Itoa(c.verifier.Iterations) {
		return "", errStaleVerifier
	}
	withoutProof := "c=biws," + fields[0] // "n,,"
	c.authMessage = []byte(c.firstBare + "," + serverFirst + "," + withoutProof)
	proof := make([]byte, len(c.clientKey))
	subtle.XORBytes(proof, c.clientKey, mac(c.verifier.StoredKey, c.authMessage))
	return withoutProof + ",p=" + base64.StdEncoding.EncodeToString(proof), nil
}

// verify checks the server-final-message.
func (c *scramClient) verify(serverFinal string) error {
	signature, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(serverFinal, "v="))
	if err != nil || !hmac.Equal(signature, mac(c.verifier.ServerKey, c.authMessage)) {
		return errBadServer
	}
	return nil
}
