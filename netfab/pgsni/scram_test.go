package pgsni

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
)

// verifierOf is what PostgreSQL would keep of a password.
func verifierOf(password, salt string, iterations int) (*Verifier, []byte) {
	salted, err := pbkdf2.Key(sha256.New, password, []byte(salt), iterations, sha256.Size)
	if err != nil {
		panic(err)
	}
	clientKey := mac(salted, []byte("Client Key"))
	stored := sha256.Sum256(clientKey)
	return &Verifier{iterations, []byte(salt), stored[:], mac(salted, []byte("Server Key"))}, clientKey
}

// The example of RFC 7677, section 3.
func TestScramAsInTheRFC(t *testing.T) {
	salt, _ := base64.StdEncoding.DecodeString("W22ZaJ0SNY7soEsUEjb6gQ==")
	v, clientKey := verifierOf("pencil", string(salt), 4096)
	s := &scramServer{user: "user", verifier: v}
	if _, err := s.first(mechanismPlain, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"); err != nil {
		t.Fatal(err)
	}
	// The server's nonce of the example instead of its own.
	nonce := "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
	s.reply = strings.Replace(s.reply, s.nonce, nonce, 1)
	s.nonce = nonce
	if s.reply != "r="+nonce+",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096" {
		t.Fatalf("server-first-message %s", s.reply)
	}
	reply, key, err := s.final("c=biws,r=" + nonce + ",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
	if err != nil || reply != "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=" || string(key) != string(clientKey) {
		t.Errorf("%s %x %v", reply, key, err)
	}
}

// exchange logs in with both halves of this package.
func exchange(s *scramServer, c *scramClient) error {
	reply, err := s.first(mechanismPlain, c.first())
	if err != nil {
		return err
	}
	final, err := c.final(reply)
	if err != nil {
		return err
	}
	signature, _, err := s.final(final)
	if err != nil {
		return err
	}
	return c.verify(signature)
}

func TestScramClientLogsInWithAClientKey(t *testing.T) {
	v, key := verifierOf("secret", "0123456789abcdef", 10)
	if err := exchange(&scramServer{verifier: v}, &scramClient{verifier: v, clientKey: key}); err != nil {
		t.Error(err)
	}
	wrong := append([]byte(nil), key...)
	wrong[0]++
	var refusal *Refusal
	if err := exchange(&scramServer{verifier: v}, &scramClient{verifier: v, clientKey: wrong}); !errors.As(err, &refusal) || refusal.Code != codeInvalidPassword {
		t.Error(err)
	}
	other, _ := verifierOf("secret", "another salt 123", 10)
	if err := exchange(&scramServer{verifier: other}, &scramClient{verifier: v, clientKey: key}); !errors.Is(err, errStaleVerifier) {
		t.Error(err)
	}
}

func TestScramClientTrustsNoServer(t *testing.T) {
	v, key := verifierOf("secret", "0123456789abcdef", 10)
	for _, reply := range []string{"", "r=", "r=x,s=eA==,i=1", ",,", "r=%s", "r=%s,s=,i=10"} {
		c := &scramClient{verifier: v, clientKey: key}
		c.first()
		if _, err := c.final(strings.ReplaceAll(reply, "%s", strings.TrimPrefix(c.firstBare, "n=,r="))); err == nil {
			t.Errorf("%q was answered", reply)
		}
	}
	for _, signature := range []string{"", "v=", "e=other-error", "v=!!", "v=AAAA"} {
		if err := (&scramClient{verifier: v}).verify(signature); err == nil {
			t.Errorf("%q was believed", signature)
		}
	}
}

func TestScramMessagesThatAreRefused(t *testing.T) {
	binding := []byte("the hash of a certificate")
	for name, test := range map[string]struct {
		binding            []byte
		mechanism, message string
		code               string
	}{
		"another mechanism":        {nil, "PLAIN", "n,,n=,r=x", "08P01"},
		"PLUS without TLS":         {nil, mechanismPlus, "p=tls-server-end-point,,n=,r=x", "08P01"},
		"empty":                    {nil, mechanismPlain, "", "08P01"},
		"no flag":                  {nil, mechanismPlain, "x,,n=,r=x", "08P01"},
		"a flag alone":             {nil, mechanismPlain, "n", "08P01"},
		"no identity":              {nil, mechanismPlain, "n,n=", "08P01"},
		"another identity":         {nil, mechanismPlain, "n,a=bob,n=,r=x", "0A000"},
		"a needed extension":       {nil, mechanismPlain, "n,,m=ext,n=,r=x", "0A000"},
		"no nonce":                 {nil, mechanismPlain, "n,,n=user", "08P01"},
		"a nonce with a space":     {nil, mechanismPlain, "n,,n=,r=a b", "08P01"},
		"binding without PLUS":     {nil, mechanismPlain, "p=tls-server-end-point,,n=,r=x", "08P01"},
		"PLUS without binding":     {binding, mechanismPlus, "n,,n=,r=x", "08P01"},
		"another kind of binding":  {binding, mechanismPlus, "p=tls-unique,,n=,r=x", "08P01"},
		"PLUS was taken off":       {binding, mechanismPlain, "y,,n=,r=x", "28000"},
		"a mechanism with a comma": {binding, "SCRAM-SHA-256,", "n,,n=,r=x", "08P01"},
	} {
		t.Run(name, func(t *testing.T) {
			v, _ := verifierOf("secret", "0123456789abcdef", 10)
			s := &scramServer{verifier: v, binding: test.binding}
			_, err := s.first(test.mechanism, test.message)
			var refusal *Refusal
			if !errors.As(err, &refusal) || refusal.Code != test.code {
				t.Errorf("%v", err)
			}
		})
	}
	for name, test := range map[string]struct{ message, code string }{
		"empty":           {"", "08P01"},
		"no proof":        {"c=biws,r=%", "08P01"},
		"another binding": {"c=eSws,r=%,p=AAAA", "08P01"},
		"another nonce":   {"c=biws,r=other,p=AAAA", "08P01"},
		"a short proof":   {"c=biws,r=%,p=AAAA", "08P01"},
		"no base64":       {"c=biws,r=%,p=!", "08P01"},
		"a wrong proof":   {"c=biws,r=%,p=" + base64.StdEncoding.EncodeToString(make([]byte, 32)), "28P01"},
	} {
		t.Run("final: "+name, func(t *testing.T) {
			v, _ := verifierOf("secret", "0123456789abcdef", 10)
			s := &scramServer{user: "alice", verifier: v}
			if _, err := s.first(mechanismPlain, "n,,n=,r=x"); err != nil {
				t.Fatal(err)
			}
			_, key, err := s.final(strings.ReplaceAll(test.message, "%", s.nonce))
			var refusal *Refusal
			if !errors.As(err, &refusal) || refusal.Code != test.code || key != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestVerifiersThatAreNone(t *testing.T) {
	v, _ := verifierOf("secret", "0123456789abcdef", 10)
	good := v.String()
	if got, err := ParseVerifier(good); err != nil || got.String() != good {
		t.Fatal(got, err)
	}
	for _, bad := range []string{"", "md5abc", "SCRAM-SHA-256$", good[:len(good)-4], good + "$", strings.Replace(good, "10:", "0:", 1),
		strings.Replace(good, "10:", "x:", 1), strings.Replace(good, "SCRAM-SHA-256", "SCRAM-SHA-1", 1), "SCRAM-SHA-256$1:$:"} {
		if _, err := ParseVerifier(bad); err == nil {
			t.Errorf("%q", bad)
		} else if bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("the error tells the secret: %v", err)
		}
	}
}

func TestADecoyIsStableAndOfItsOwn(t *testing.T) {
	secret := []byte("of all routers")
	a := decoyVerifier(secret, "name", "user").String()
	if a != decoyVerifier(secret, "name", "user").String() {
		t.Error("the salt changes from login to login")
	}
	for _, b := range []*Verifier{decoyVerifier(secret, "name", "user2"), decoyVerifier(secret, "name2", "user"), decoyVerifier([]byte("x"), "name", "user")} {
		if a == b.String() {
			t.Error("two have one salt")
		}
	}
}
