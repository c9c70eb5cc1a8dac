package pgsni

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

func TestASessionOverSSLRequest(t *testing.T) {
	server := newFakeServer(t)
	router := serve(t, Config{}, only(server))
	c := router.open(t, known)
	c.ready()
	c.query("SELECT 1")
	c.query("SELECT 2")
	if n := router.Stats(); n != (Stats{Sessions: 1, CancelKeys: 1}) {
		t.Errorf("%+v", n)
	}
	c.message(&pgproto3.Terminate{})
	c.ended()
	c.Close()
	eventually(t, "nothing is left of the session", func() bool { return router.Stats() == Stats{} })
}

func TestDirectTLS(t *testing.T) {
	router := serve(t, Config{}, only(newFakeServer(t)))
	c := router.dial(t)
	c.startTLS(&tls.Config{ServerName: known + "." + domain, NextProtos: []string{"postgresql"}})
	c.start()
	c.ready()
	c.query("SELECT 1")
}

func TestDirectTLSOfAnotherProtocolIsClosed(t *testing.T) {
	router := serve(t, Config{}, never(t))
	c := router.dial(t)
	c.startTLS(&tls.Config{ServerName: known + "." + domain}) // as an HTTPS client without ALPN
	_, _ = c.Conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	c.ended()

	c = router.dial(t)
	err := tls.Client(c.Conn, &tls.Config{ServerName: domain, InsecureSkipVerify: true, NextProtos: []string{"h2"}}).Handshake()
	if err == nil || !strings.Contains(err.Error(), "no application protocol") {
		t.Errorf("a client of HTTP/2 got %v", err)
	}
}

func TestTLSBelow12IsRefused(t *testing.T) {
	router := serve(t, Config{TLS: &tls.Config{Certificates: []tls.Certificate{certs().cert}}}, never(t))
	c := router.dial(t)
	c.message(&pgproto3.SSLRequest{})
	c.answer()
	if err := tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}).Handshake(); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
}

func TestGSSEncryptionIsDeclinedOnce(t *testing.T) {
	router := serve(t, Config{}, only(newFakeServer(t)))
	c := router.dial(t)
	c.message(&pgproto3.GSSEncRequest{})
	if a := c.answer(); a != 'N' {
		t.Fatalf("answered %q", a)
	}
	c.encrypt(known + "." + domain)
	c.start()
	c.ready()

	c = router.dial(t)
	c.message(&pgproto3.GSSEncRequest{})
	c.answer()
	c.message(&pgproto3.GSSEncRequest{})
	c.ended()
}

func TestPlaintextIsRefusedWithHowToConnect(t *testing.T) {
	router := serve(t, Config{}, never(t))
	c := router.dial(t)
	c.start()
	if e := c.refused("28000"); !strings.Contains(e.Message, "sslmode=require") {
		t.Errorf("%+v", e)
	}
}

func TestTheServerNameIsChecked(t *testing.T) {
	upper := strings.ToUpper(known + "." + domain)
	for name, sni := range map[string]string{
		"missing":            "",
		"foreign":            known + ".db.example.org",
		"a longer domain":    known + "." + domain + ".evil.example",
		"the domain":         domain,
		"two labels":         "a." + known + "." + domain,
		"empty label":        "." + domain,
		"underscore":         "a_b." + domain,
		"NUL":                "a\x00b." + domain,
		"leading dash":       "-a." + domain,
		"a label too long":   strings.Repeat("a", 64) + "." + domain,
		"an address in form": "127.0.0.1",
	} {
		t.Run(name, func(t *testing.T) {
			router := serve(t, Config{}, never(t))
			c := router.dial(t)
			c.message(&pgproto3.SSLRequest{})
			c.answer()
			c.startTLS(&tls.Config{ServerName: sni})
			c.start()
			if e := c.refused("08004"); !strings.Contains(e.Hint, domain) {
				t.Errorf("the hint does not say where to connect: %+v", e)
			}
		})
	}
	t.Run("case does not matter", func(t *testing.T) {
		router := serve(t, Config{}, only(newFakeServer(t)))
		c := router.dial(t)
		c.encrypt(upper)
		c.start()
		c.ready()
	})
}

// A trailing dot may not be in SNI (RFC 6066, section 3): Go's own client cuts it
// off, and its server ends the handshake of a client that does not.
func TestDatabaseNameTakesNoTrailingDot(t *testing.T) {
	for _, sni := range []string{known + "." + domain + ".", ".", known + "..", "\x00"} {
		if name, err := databaseName(sni, domain); err == nil {
			t.Errorf("%q is %q", sni, name)
		}
	}
}

func TestTheStartupGoesThroughUnchanged(t *testing.T) {
	server := newFakeServer(t)
	router := serve(t, Config{}, only(server))
	c := router.dial(t)
	c.encrypt(known + "." + domain)
	// Order, a double, an empty value, an extension and bytes that are no UTF-8.
	raw := startupBytes(3<<16|2, "user", "alice", "options", "-c geqo=off", "user", "bob", "application_name", "", "_pq_.x", "1", "client_encoding", "\xff\xfe")
	c.write(raw)
	c.ready()
	if got := server.lastStartup(); !bytes.Equal(got, raw) {
		t.Errorf("the server got %q, not %q", got, raw)
	}
}

func TestNegotiationOfTheProtocolGoesThrough(t *testing.T) {
	server := newFakeServer(t)
	server.before = []pgproto3.BackendMessage{&pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: 3 << 16, UnrecognizedOptions: []string{"_pq_.x"}}}
	router := serve(t, Config{}, only(server))
	c := router.dial(t)
	c.encrypt(known + "." + domain)
	c.write(startupBytes(3<<16|9999, "user", "alice", "_pq_.x", "1"))
	if v := receive[*pgproto3.NegotiateProtocolVersion](c); v.NewestMinorProtocol != 3<<16 || len(v.UnrecognizedOptions) != 1 {
		t.Errorf("%+v", v)
	}
	c.ready()
}

func TestStartupsThatAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		raw  []byte
		code string
	}{
		"protocol 2":            {startupBytes(2<<16, "user", "alice"), "0A000"},
		"protocol 4":            {startupBytes(4<<16, "user", "alice"), "0A000"},
		"no user":               {startupBytes(3<<16, "database", "app"), "28000"},
		"an empty user":         {startupBytes(3<<16, "user", ""), "28000"},
		"no parameter":          {startupBytes(3 << 16), "28000"},
		"no terminator":         {unterminated(), "08P01"},
		"a value is missing":    {framedBytes(3<<16, "user\x00"), "08P01"},
		"bytes after the end":   {framedBytes(3<<16, "user\x00alice\x00\x00x\x00"), "08P01"},
		"replication":           {startupBytes(3<<16, "user", "alice", "replication", "database"), "28000"},
		"replication, one of 2": {startupBytes(3<<16, "user", "alice", "replication", "on", "replication", "off"), "28000"},
		"encryption again":      {framedBytes(codeSSL, ""), "08P01"},
		"GSSAPI inside TLS":     {framedBytes(codeGSSEnc, ""), "08P01"},
	} {
		t.Run(name, func(t *testing.T) {
			router := serve(t, Config{}, never(t))
			c := router.dial(t)
			c.encrypt(known + "." + domain)
			c.write(test.raw)
			c.refused(test.code)
		})
	}
}

func TestReplicationByOption(t *testing.T) {
	server := newFakeServer(t)
	router := serve(t, Config{AllowReplication: true}, only(server))
	c := router.dial(t)
	c.encrypt(known + "." + domain)
	c.start("replication", "true")
	c.ready()
	router = serve(t, Config{}, only(server))
	c = router.dial(t)
	c.encrypt(known + "." + domain)
	c.start("replication", "off")
	c.ready()
}

func TestPacketsOfAWrongLengthAreClosed(t *testing.T) {
	for name, length := range map[string]uint32{"0": 0, "7": 7, "10,005": 10_005, "2 GB": 1 << 31, "all": 0xffffff} {
		t.Run(name, func(t *testing.T) {
			router := serve(t, Config{}, never(t))
			packet := binary.BigEndian.AppendUint32(nil, length)
			packet = append(packet, 0, 3, 0, 0)
			c := router.dial(t)
			c.write(packet)
			c.ended()
			c = router.dial(t)
			c.encrypt(known + "." + domain)
			c.write(packet)
			c.ended()
		})
	}
}

func TestTheLongestStartup(t *testing.T) {
	router := serve(t, Config{}, only(newFakeServer(t)))
	c := router.dial(t)
	c.encrypt(known + "." + domain)
	fixed := len(startupBytes(3<<16, "user", "alice", "options", ""))
	c.write(startupBytes(3<<16, "user", "alice", "options", strings.Repeat("x", maxPacket-fixed)))
	c.ready()
}

func TestGarbageIsClosed(t *testing.T) {
	router := serve(t, Config{}, never(t))
	for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-x\r\n", "\x16\x03\x01\x00\x05hello", strings.Repeat("\x00", 64)} {
		c := router.dial(t)
		c.write([]byte(garbage))
		_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite()
		if rest, _ := io.ReadAll(c.Conn); bytes.Contains(rest, []byte("FATAL")) {
			t.Errorf("%q got %q", garbage, rest)
		}
	}
}

// startupBytes is a StartupMessage with these names and values in order.
func startupBytes(version uint32, params ...string) []byte {
	var body strings.Builder
	for _, p := range params {
		body.WriteString(p + "\x00")
	}
	return framedBytes(version, body.String()+"\x00")
}

func unterminated() []byte { return framedBytes(3<<16, "user\x00alice\x00") }

func framedBytes(code uint32, body string) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(packetHead+len(body)))
	out = binary.BigEndian.AppendUint32(out, code)
	return append(out, body...)
}
