package pgsni

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// FuzzStartup reads what comes first from any client. Beside the corpus in
// testdata are the shapes that matter.
func FuzzStartup(f *testing.F) {
	f.Add(startupBytes(3<<16, "user", "alice", "database", "app"))
	f.Add(startupBytes(3<<16|2, "user", "alice", "_pq_.x", "1"))
	f.Add(startupBytes(3<<16, "user", "alice", "replication", "database"))
	f.Add(framedBytes(codeCancel, "\x00\x00\x10\x92abcd"))
	f.Add(framedBytes(codeSSL, ""))
	f.Add(framedBytes(codeGSSEnc, ""))
	f.Add(unterminated())
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := readPacket(bytes.NewReader(data))
		if err != nil {
			return
		}
		if !bytes.Equal(p.raw, data[:len(p.raw)]) || len(p.raw) > maxPacket {
			t.Fatalf("%d bytes that are not what came", len(p.raw))
		}
		if key, err := p.cancelKey(); err == nil && (len(key.Secret) == 0 || len(key.Secret) > maxSecret) {
			t.Fatalf("a cancel key of %d bytes", len(key.Secret))
		}
		st, err := parseStartup(p)
		if err != nil {
			var refusal *Refusal
			if !errors.As(err, &refusal) || refusal.Code == "" {
				t.Fatalf("a client cannot be told %v", err)
			}
			return
		}
		checkStartup(t, st)
	})
}

// checkStartup checks that a StartupMessage was understood as it will be read
// behind the router.
func checkStartup(t *testing.T, st *startup) {
	var again []string
	for _, p := range st.params {
		again = append(again, p.name, p.value)
	}
	if !bytes.Equal(startupBytes(binary.BigEndian.Uint32(st.raw[4:]), again...), st.raw) {
		t.Fatalf("%q was read as %q", st.raw, again)
	}
	if v := st.get("replication"); !st.replication() && v != "" && !slices.Contains([]string{"false", "off", "no", "0"}, string(bytes.ToLower([]byte(v)))) {
		t.Fatalf("replication %q goes unnoticed", v)
	}
	// What is sent after a login that the router checked is a StartupMessage too.
	p, err := readPacket(bytes.NewReader(startupFor(st, 0)))
	if err != nil {
		t.Fatal(err)
	}
	sent, err := parseStartup(p)
	if err != nil || sent.minor() != 0 || len(sent.protocolOptions()) != 0 || sent.get("user") != st.get("user") {
		t.Fatalf("%q was sent as %q: %v", st.raw, p.raw, err)
	}
}

// FuzzScram plays a login with whatever a client says.
func FuzzScram(f *testing.F) {
	f.Add(mechanismPlain, "n,,n=,r=nonce", "c=biws,r=nonce,p=AAAA", false)
	f.Add(mechanismPlus, "p=tls-server-end-point,,n=,r=nonce", "c=,r=,p=", true)
	f.Add(mechanismPlain, "y,,n=,r=nonce", "c=eSws,r=%", true)
	f.Fuzz(func(t *testing.T, mechanism, first, final string, plus bool) {
		s := &scramServer{user: "alice", verifier: decoyVerifier([]byte("secret"), "name", "alice")}
		if plus {
			s.binding = []byte("hash")
		}
		_, err := s.first(mechanism, first)
		if err == nil {
			_, _, err = s.final(final)
		}
		var refusal *Refusal
		if !errors.As(err, &refusal) {
			t.Fatalf("a login without a password ended with %v", err)
		}
		out, err := refusal.response().Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		var read pgproto3.ErrorResponse
		if err := read.Decode(out[messageHead:]); err != nil || read.Code != refusal.Code || read.Message != refusal.Message || read.Detail != refusal.Detail {
			t.Fatalf("%+v is read as %+v: %v", refusal, read, err)
		}
	})
}

// FuzzVerifier reads a role's secret.
func FuzzVerifier(f *testing.F) {
	f.Add(decoyVerifier([]byte("secret"), "name", "alice").String())
	f.Fuzz(func(t *testing.T, secret string) {
		v, err := ParseVerifier(secret)
		if err != nil {
			return
		}
		if again, err := ParseVerifier(v.String()); err != nil || again.String() != v.String() {
			t.Fatalf("%v, %v", again, err)
		}
	})
}

// FuzzServerName reads a name of a ClientHello.
func FuzzServerName(f *testing.F) {
	for _, sni := range []string{"", known + "." + domain, "A." + domain, "a\x00." + domain, domain, "." + domain, "a." + domain + "."} {
		f.Add(sni)
	}
	f.Fuzz(func(t *testing.T, sni string) {
		name, err := databaseName(sni, domain)
		if err == nil && (!label.MatchString(name) || len(name)+1+len(domain) != len(sni)) {
			t.Fatalf("%q is %q", sni, name)
		}
	})
}
