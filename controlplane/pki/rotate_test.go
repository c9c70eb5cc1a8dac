package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/nodecert"
)

// replicaDir makes the directory of a replica, of a cluster of its own.
func replicaDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := InitCluster(dir, []Member{{"a", "127.0.0.1:7001"}}, "admin", []byte("seal"), time.Now()); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "a")
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func write(t *testing.T, dir, name string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, dir string) *CA {
	t.Helper()
	ca, err := LoadCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func add(t *testing.T, dir string) string {
	t.Helper()
	id, added, err := AddAuthority(dir, time.Now())
	if err != nil || !added {
		t.Fatal(added, err)
	}
	return id
}

func TestTheStepsOfAnExchange(t *testing.T) {
	dir := replicaDir(t)
	first := load(t, dir)
	old, secret := first.Signs(), derived(t, first)
	check := func(signs string, trusts ...string) {
		t.Helper()
		for _, ca := range []*CA{first, load(t, dir)} { // one that reads again, and one that starts
			if ca == first {
				if _, err := ca.Reload(dir); err != nil {
					t.Fatal(err)
				}
				if changed, err := ca.Reload(dir); changed || err != nil {
					t.Errorf("nothing has changed: %v, %v", changed, err)
				}
			}
			if ca.Signs() != signs || !slices.Equal(ca.IDs(), trusts) || !strings.HasPrefix(ca.Fingerprint(), signs) {
				t.Errorf("%s signs, and %v count; want %s and %v", ca.Signs(), ca.IDs(), signs, trusts)
			}
			if n := newNode(t, ca, Identity{RoleHost, "h1"}); !strings.HasPrefix(n.CAFingerprint(), signs) {
				t.Errorf("a certificate is of %s", n.CAFingerprint())
			}
			if derived(t, ca) != secret {
				t.Error("what is derived has changed")
			}
		}
		for _, name := range []string{FileCACert, FileCAKey} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
		}
	}
	next := add(t, dir)
	check(old, old, next)
	if id, added, err := AddAuthority(dir, time.Now()); id != next || added || err != nil {
		t.Errorf("added again: %s, %v, %v", id, added, err)
	}
	// A replica, a router, a host and an operator that are added meanwhile trust both.
	parent := t.TempDir()
	for name, err := range map[string]error{
		"b":        AddReplica(parent, dir, Member{"b", "127.0.0.1:7002"}, time.Now()),
		"r1":       AddRouter(parent, dir, "r1", nil, time.Now()),
		"h1":       AddHost(parent, dir, "h1", time.Now()),
		"operator": AddOperator(parent, dir, "ann", time.Now()),
	} {
		cas, perr := nodecert.ParseCAs(read(t, filepath.Join(parent, name), FileCACert))
		if err != nil || perr != nil || len(cas) != 2 {
			t.Errorf("%s: %v, %v, %d", name, err, perr, len(cas))
		}
	}
	if !bytes.Equal(read(t, filepath.Join(parent, "b"), FileCAKey), read(t, dir, FileCAKey)) {
		t.Error("the other replica has other keys")
	}
	if err := AddOperator(parent, dir, "ann", time.Now()); err == nil {
		t.Error("a key was overwritten")
	}

	if _, err := RemoveAuthority(dir, old); !errors.Is(err, ErrSigns) {
		t.Errorf("the one that signs was removed: %v", err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := UseAuthority(dir, next); changed != want || err != nil {
			t.Fatal(changed, err)
		}
		check(next, old, next)
	}
	if _, _, err := AddAuthority(dir, time.Now()); err == nil || !strings.Contains(err.Error(), old+" is still there") {
		t.Errorf("a third one: %v", err)
	}
	// And back, and forth.
	for _, id := range []string{old, next} {
		if changed, err := UseAuthority(dir, id); !changed || err != nil {
			t.Fatal(changed, err)
		}
		check(id, old, next)
	}
	if _, err := UseAuthority(dir, "0123456789abcdef"); !errors.Is(err, ErrUnknownAuthority) {
		t.Error(err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := RemoveAuthority(dir, old); changed != want || err != nil {
			t.Fatal(changed, err)
		}
		check(next, next)
	}
	// The next exchange.
	third := add(t, dir)
	check(next, next, third)
	if changed, err := RemoveAuthority(dir, third); !changed || err != nil { // thought better of
		t.Fatal(changed, err)
	}
	check(next, next)
}

func derived(t *testing.T, ca *CA) string {
	t.Helper()
	secret, err := ca.Derive("purpose")
	if err != nil || len(secret) != 32 {
		t.Fatal(secret, err)
	}
	return string(secret)
}

// A kill between the two files of a step, or between their copies, leaves what starts, and what
// the step completes when it is done again.
func TestAKillBetweenTwoFilesIsMadeGood(t *testing.T) {
	dir := replicaDir(t)
	oldCrt, oldKey := read(t, dir, FileCACert), read(t, dir, FileCAKey)
	old := load(t, dir).Signs()
	next := add(t, dir)
	bothCrt, bothKey := read(t, dir, FileCACert), read(t, dir, FileCAKey)

	write(t, dir, FileCACert, oldCrt) // the key alone was written
	if ca := load(t, dir); ca.Signs() != old || len(ca.IDs()) != 1 {
		t.Fatalf("%s, %v", ca.Signs(), ca.IDs())
	}
	again := add(t, dir) // by another key: this one might be of a CA that was removed long ago
	if keys, _, err := parseKeys(read(t, dir, FileCAKey)); err != nil || len(keys) != 2 || keys[1].Equal(keysOf(t, bothKey)[1]) {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	if changed, err := UseAuthority(dir, again); !changed || err != nil {
		t.Fatal(changed, err)
	}

	// The certificates alone were copied.
	write(t, dir, FileCACert, bothCrt)
	write(t, dir, FileCAKey, oldKey)
	if ca := load(t, dir); ca.Signs() != old || len(ca.IDs()) != 2 {
		t.Fatalf("%s, %v", ca.Signs(), ca.IDs())
	}
	if _, err := UseAuthority(dir, next); err == nil || !strings.Contains(err.Error(), "lacks the key") {
		t.Error(err)
	}
	if _, _, err := AddAuthority(dir, time.Now()); err == nil || !strings.Contains(err.Error(), "without its key") {
		t.Error(err)
	}

	write(t, dir, FileCAKey, bothKey)
	if _, err := UseAuthority(dir, next); err != nil {
		t.Fatal(err)
	}
	if _, err := RemoveAuthority(dir, old); err != nil {
		t.Fatal(err)
	}
	lastKey := read(t, dir, FileCAKey)
	write(t, dir, FileCACert, bothCrt) // the key alone was removed
	if ca := load(t, dir); ca.Signs() != next || len(ca.IDs()) != 2 {
		t.Fatalf("%s, %v", ca.Signs(), ca.IDs())
	}
	if changed, err := RemoveAuthority(dir, old); !changed || err != nil || !bytes.Equal(read(t, dir, FileCAKey), lastKey) {
		t.Fatal(changed, err)
	}
	if ca := load(t, dir); ca.Signs() != next || len(ca.IDs()) != 1 {
		t.Fatalf("%s, %v", ca.Signs(), ca.IDs())
	}
}

func keysOf(t *testing.T, raw []byte) []*ecdsa.PrivateKey {
	t.Helper()
	keys, _, err := parseKeys(raw)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// On a replica to which ca.crt alone was copied after a removal, the removed CA's key is left.
// It goes with the same step done there, and in any case before it could sign for a new CA.
func TestAKeyThatWasLeftBehindIsNotUsedAgain(t *testing.T) {
	for name, next := range map[string]func(t *testing.T, dir, old string){
		"the removal is done again": func(t *testing.T, dir, old string) {
			for _, want := range []bool{true, false} {
				if changed, err := RemoveAuthority(dir, old); changed != want || err != nil {
					t.Fatal(changed, err)
				}
			}
		},
		"the next exchange begins": func(t *testing.T, dir, _ string) { add(t, dir) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := replicaDir(t)
			old, seen := load(t, dir).Signs(), keysOf(t, read(t, dir, FileCAKey))[0]
			if _, err := UseAuthority(dir, add(t, dir)); err != nil {
				t.Fatal(err)
			}
			both := read(t, dir, FileCAKey)
			if _, err := RemoveAuthority(dir, old); err != nil {
				t.Fatal(err)
			}
			write(t, dir, FileCAKey, both)
			signs := load(t, dir).Signs()
			next(t, dir, old)
			if slices.ContainsFunc(keysOf(t, read(t, dir, FileCAKey)), func(k *ecdsa.PrivateKey) bool { return k.Equal(seen) }) {
				t.Error("the key is still there")
			}
			if got := load(t, dir).Signs(); got != signs {
				t.Errorf("%s signs, and %s did", got, signs)
			}
		})
	}
}

// A kill leaves nothing that has a key for long.
func TestWhatAKillLeftIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if err := os.CopyFS(dir, os.DirFS(replicaDir(t))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{FileCAKey + ".next", "." + FileCAKey + ".next-123", "." + FileCACert + ".next-4"} {
		write(t, dir, name, read(t, dir, FileCAKey))
	}
	add(t, dir)
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if strings.Contains(f.Name(), "next") {
			t.Errorf("%s is still there", f.Name())
		}
	}
}

func TestFilesOfACAThatAreWrong(t *testing.T) {
	dir, elsewhere := replicaDir(t), replicaDir(t)
	crt, key := read(t, dir, FileCACert), read(t, dir, FileCAKey)
	otherCrt, otherKey := read(t, elsewhere, FileCACert), read(t, elsewhere, FileCAKey)
	running := load(t, dir)
	signs := running.Signs()
	member, _, err := running.Issue(Identity{RoleHost, "h1"}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(key)
	for name, c := range map[string]struct {
		crt, key []byte
		says     string
	}{
		"a key of another CA":         {crt, otherKey, "does not belong"},
		"its key second":              {crt, append(bytes.Clone(otherKey), key...), "does not belong"},
		"noise behind certificates":   {append(bytes.Clone(crt), "noise"...), key, "something else"},
		"half a certificate":          {crt[:len(crt)/2], key, "something else"},
		"a member's certificate":      {append(bytes.Clone(crt), member...), key, "no authority"},
		"no certificate":              {nil, key, "no PEM certificate"},
		"no key":                      {crt, nil, "no PEM block with a key"},
		"half a key":                  {crt, key[:len(key)/2], "something else"},
		"a certificate for a key":     {crt, crt, "does not belong there"},
		"a secret that is too short":  {crt, append(bytes.Clone(key), pem.EncodeToMemory(&pem.Block{Type: blockRoot, Bytes: []byte("x")})...), "does not belong there"},
		"a key that is none":          {crt, pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: block.Bytes[:9]}), "CA key"},
		"the files of another CA":     {otherCrt, otherKey, ""},
		"files of nothing but spaces": {[]byte("\n"), []byte("\n"), "no PEM"},
	} {
		write(t, dir, FileCACert, c.crt)
		write(t, dir, FileCAKey, c.key)
		if changed, err := running.Reload(dir); changed || err == nil || running.Signs() != signs {
			t.Errorf("%s: read again: %v, %v", name, changed, err)
		}
		if c.says == "" {
			continue
		}
		if _, err := LoadCA(dir); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		before := read(t, dir, FileCAKey)
		if _, _, err := AddAuthority(dir, time.Now()); err == nil || !bytes.Equal(read(t, dir, FileCAKey), before) {
			t.Errorf("%s: it was built upon: %v", name, err)
		}
	}
}

// A member that is told that two CAs count accepts members of both, and one that is told that
// one went refuses its certificates.
func TestMembersOfBothAuthoritiesKnowEachOther(t *testing.T) {
	dir := replicaDir(t)
	ca := load(t, dir)
	replica, host := newNode(t, ca, Identity{RoleReplica, "a"}), newNode(t, ca, Identity{RoleHost, "h1"})
	server := replica.ServerTLS("x") // made once, as by the port
	old := ca.Signs()
	next := add(t, dir)
	if _, err := UseAuthority(dir, next); err != nil {
		t.Fatal(err)
	}
	both := load(t, dir)
	young := newNode(t, both, Identity{RoleHost, "h2"})
	meets := func(n *Node, want bool) {
		t.Helper()
		_, known, serverErr, clientErr := handshake(t, server, n.ClientTLS(AnyOf(RoleReplica), "x"))
		if got := known && serverErr == nil && clientErr == nil; got != want {
			t.Errorf("%s of %.16s: known %v, want %v: %v, %v", n.Identity.CommonName(), n.CAFingerprint(), got, want, serverErr, clientErr)
		}
	}
	meets(host, true)
	meets(young, false) // the replica does not know the new one yet
	for _, n := range []*Node{replica, host} {
		if _, err := n.Certificate().Trust().Replace(both.CertPEM()); err != nil {
			t.Fatal(err)
		}
	}
	meets(host, true)
	meets(young, true)
	cert, key, err := both.Issue(replica.Identity, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := replica.Certificate().Replace(cert, key); err != nil {
		t.Fatal(err)
	}
	if shown, err := server.GetCertificate(nil); err != nil || len(shown.Certificate) != 2 || !strings.HasPrefix(fingerprint(shown.Certificate[1]), next) {
		t.Errorf("it does not show the CA that signed its certificate: %v", err)
	}
	meets(host, true)
	meets(young, true)
	if _, err := RemoveAuthority(dir, old); err != nil {
		t.Fatal(err)
	}
	if _, err := replica.Certificate().Trust().Replace(load(t, dir).CertPEM()); err != nil {
		t.Fatal(err)
	}
	meets(host, false)
	meets(young, true)
}

// The token of a host that joins names one authority; both work while both are there.
func TestAHostJoinsByEitherAuthority(t *testing.T) {
	dir := replicaDir(t)
	ca := load(t, dir)
	replica := newNode(t, ca, Identity{RoleReplica, "a"}, "127.0.0.1")
	now := time.Now()
	replica.TakeJoins(ca, func() time.Time { return now })
	old := ca.Fingerprint()
	asks := func(digest string) error {
		t.Helper()
		raw, err := hex.DecodeString(digest)
		if err != nil {
			t.Fatal(err)
		}
		_, _, _, clientErr := handshake(t, replica.ServerTLS(), &tls.Config{
			MinVersion: tls.VersionTLS13, ServerName: hostapi.JoinServerName(raw), InsecureSkipVerify: true,
			VerifyConnection: func(cs tls.ConnectionState) error {
				sum := sha256.Sum256(cs.PeerCertificates[1].Raw)
				leaf := cs.PeerCertificates[0]
				if !bytes.Equal(sum[:], raw) || leaf.CheckSignatureFrom(cs.PeerCertificates[1]) != nil || leaf.Subject.CommonName != "replica:a" {
					return errors.New("another cluster")
				}
				return nil
			},
		})
		return clientErr
	}
	reload := func() {
		t.Helper()
		if changed, err := ca.Reload(dir); !changed || err != nil {
			t.Fatal(changed, err)
		}
	}
	next := add(t, dir)
	reload()
	if err := asks(old); err != nil {
		t.Error(err)
	}
	if _, err := UseAuthority(dir, next); err != nil {
		t.Fatal(err)
	}
	reload()
	for _, renewed := range []bool{false, true} {
		if renewed {
			if _, err := replica.Certificate().Trust().Replace(ca.CertPEM()); err != nil {
				t.Fatal(err)
			}
			cert, key, err := ca.Issue(replica.Identity, nil, now)
			if err != nil {
				t.Fatal(err)
			}
			if err := replica.Certificate().Replace(cert, key); err != nil {
				t.Fatal(err)
			}
		}
		for _, digest := range []string{old, ca.Fingerprint()} {
			for range 2 {
				if err := asks(digest); err != nil {
					t.Errorf("renewed %v, by %.16s: %v", renewed, digest, err)
				}
			}
			now = now.Add(40 * 24 * time.Hour) // what was made for joins is not shown when it has expired
		}
	}
	if _, err := RemoveAuthority(dir, old[:16]); err != nil {
		t.Fatal(err)
	}
	reload()
	if asks(old) == nil || asks(ca.Fingerprint()) != nil {
		t.Error("after the removal")
	}
	if asks(strings.Repeat("ab", 32)) == nil {
		t.Error("any digest will do")
	}
}

// A replica that was off during the whole exchange has the files of the new CA copied, and a
// certificate of the old one.
func TestAReplicaThatMissedTheExchangeIssuesItsOwnCertificate(t *testing.T) {
	dir := replicaDir(t)
	old := load(t, dir).Signs()
	next := add(t, dir)
	if _, err := UseAuthority(dir, next); err != nil {
		t.Fatal(err)
	}
	if _, err := RemoveAuthority(dir, old); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadNode(dir); !errors.Is(err, ErrForeign) {
		t.Fatal(err)
	}
	ca := load(t, dir)
	if err := Reissue(dir, ca, time.Now()); err != nil {
		t.Fatal(err)
	}
	n, err := LoadNode(dir)
	if err != nil || n.Identity != (Identity{RoleReplica, "a"}) || n.CAFingerprint() != ca.Fingerprint() || n.Leaf().VerifyHostname("127.0.0.1") != nil {
		t.Fatalf("%+v, %v", n, err)
	}
	host := t.TempDir()
	if err := AddHost(host, dir, "h1", time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := Reissue(filepath.Join(host, "h1"), ca, time.Now()); err == nil {
		t.Error("a host's certificate was made anew")
	}
}
