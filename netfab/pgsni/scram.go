package pgsni

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strconv"
	"strings"
)

// SASL mechanisms (manual, "SASL Authentication").
const (
	mechanismPlain = "SCRAM-SHA-256"
	mechanismPlus  = "SCRAM-SHA-256-PLUS"
	bindingType    = "tls-server-end-point"
	nonceBytes     = 18 // as PostgreSQL's, before base64
)

// scramServer is the server's half of one SCRAM exchange (RFC 5802). Its refusals
// are those of PostgreSQL, so that nobody can tell from them who spoke.
type scramServer struct {
	user     string
	verifier *Verifier
	// binding is the hash of the router's certificate where channel binding is
	// offered, else nil.
	binding []byte

	plus      bool
	gs2       string // the client's header: flag, authorization identity
	nonce     string // the client's and the server's
	firstBare string
	reply     string // server-first-message
}

// mechanisms are what is offered, the best first.
func (s *scramServer) mechanisms() []string {
	if s.binding != nil {
		return []string{mechanismPlus, mechanismPlain}
	}
	return []string{mechanismPlain}
}

// first answers the client-first-message with the server's.
func (s *scramServer) first(mechanism, message string) (string, error) {
	switch {
	case mechanism == mechanismPlus && s.binding != nil:
		s.plus = true
	case mechanism != mechanismPlain:
		return "", refuse(codeProtocolViolation, "client selected an invalid SASL authentication mechanism")
	}
	flag, rest, ok := strings.Cut(message, ",")
	if !ok || hasNUL(message) {
		return "", malformed("")
	}
	if err := s.checkFlag(flag); err != nil {
		return "", err
	}
	identity, bare, ok := strings.Cut(rest, ",")
	switch {
	case strings.HasPrefix(identity, "a="):
		return "", refuse(codeUnsupported, "client uses authorization identity, but it is not supported")
	case !ok || identity != "":
		return "", malformed("")
	}
	s.gs2, s.firstBare = flag+",,", bare
	clientNonce, err := firstNonce(bare)
	if err != nil {
		return "", err
	}
	s.nonce = clientNonce + newNonce()
	s.reply = "r=" + s.nonce + ",s=" + base64.StdEncoding.EncodeToString(s.verifier.Salt) + ",i=" + strconv.Itoa(s.verifier.Iterations)
	return s.reply, nil
}

// checkFlag checks what the client says about channel binding.
func (s *scramServer) checkFlag(flag string) error {
	switch {
	case flag == "n" || flag == "y":
		if s.plus {
			return malformed("The client selected SCRAM-SHA-256-PLUS, but the SCRAM message does not include channel binding data.")
		}
		if flag == "y" && s.binding != nil {
			// Somebody in between took PLUS off the list.
			r := refuse(codeInvalidAuth, "SCRAM channel binding negotiation error")
			r.Detail = "The client supports SCRAM channel binding but thinks the server does not.  However, this server does support channel binding."
			return r
		}
		return nil
	case strings.HasPrefix(flag, "p="):
		if !s.plus {
			return malformed("The client selected SCRAM-SHA-256 without channel binding, but the SCRAM message includes channel binding data.")
		}
		if flag != "p="+bindingType {
			return refuse(codeProtocolViolation, `unsupported SCRAM channel-binding type "%s"`, flag[len("p="):])
		}
		return nil
	}
	return malformed("")
}

// firstNonce takes the nonce out of client-first-message-bare. The user name in
// it is ignored, as PostgreSQL does: that of the start-up counts.
func firstNonce(bare string) (string, error) {
	if strings.HasPrefix(bare, "m=") {
		return "", refuse(codeUnsupported, "client requires an unsupported SCRAM extension")
	}
	user, rest, ok := strings.Cut(bare, ",")
	nonce, _, _ := strings.Cut(rest, ",")
	if !ok || !strings.HasPrefix(user, "n=") || !strings.HasPrefix(nonce, "r=") {
		return "", malformed("")
	}
	nonce = nonce[len("r="):]
	for i := range len(nonce) {
		if nonce[i] < 0x21 || nonce[i] > 0x7e {
			return "", refuse(codeProtocolViolation, "non-printable characters in SCRAM nonce")
		}
	}
	return nonce, nil
}

// final checks the client-final-message and answers with the server's. The
// ClientKey that comes out of a right proof is what the router logs in with.
func (s *scramServer) final(message string) (reply string, clientKey []byte, err error) {
	withoutProof, proofText, ok := cutLast(message, ",p=")
	if !ok || hasNUL(message) {
		return "", nil, malformed("")
	}
	binding, rest, ok := strings.Cut(withoutProof, ",")
	nonce, _, _ := strings.Cut(rest, ",")
	if !ok || !strings.HasPrefix(binding, "c=") || !strings.HasPrefix(nonce, "r=") {
		return "", nil, malformed("")
	}
	if err := s.checkBinding(binding[len("c="):]); err != nil {
		return "", nil, err
	}
	if nonce[len("r="):] != s.nonce {
		r := refuse(codeProtocolViolation, "invalid SCRAM response")
		r.Detail = "Nonce does not match."
		return "", nil, r
	}
	proof, err := base64.StdEncoding.DecodeString(proofText)
	if err != nil || len(proof) != sha256.Size {
		return "", nil, malformed("Malformed proof in client-final-message.")
	}
	authMessage := []byte(s.firstBare + "," + s.reply + "," + withoutProof)
	clientKey = make([]byte, sha256.Size)
	subtle.XORBytes(clientKey, proof, mac(s.verifier.StoredKey, authMessage))
	stored := sha256.Sum256(clientKey)
	if subtle.ConstantTimeCompare(stored[:], s.verifier.StoredKey) != 1 {
		return "", nil, wrongPassword(s.user)
	}
	return "v=" + base64.StdEncoding.EncodeToString(mac(s.verifier.ServerKey, authMessage)), clientKey, nil
}

// checkBinding checks that what the client bound is what the router showed it.
func (s *scramServer) checkBinding(encoded string) error {
	want := []byte(s.gs2)
	if s.plus {
		want = append(want, s.binding...)
	}
	got, err := base64.StdEncoding.DecodeString(encoded)
	if err == nil && bytes.Equal(got, want) {
		return nil
	}
	if s.plus {
		return refuse(codeInvalidAuth, "SCRAM channel binding check failed")
	}
	return refuse(codeProtocolViolation, "unexpected SCRAM channel-binding attribute in client-final-message")
}

// hasNUL finds what would end a text early for whoever reads it in C.
func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }

func malformed(detail string) *Refusal {
	r := refuse(codeProtocolViolation, "malformed SCRAM message")
	r.Detail = detail
	return r
}

func newNonce() string {
	var b [nonceBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.StdEncoding.EncodeToString(b[:])
}

// cutLast cuts around the last separator.
func cutLast(s, separator string) (before, after string, ok bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}
