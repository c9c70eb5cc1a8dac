package pgsni

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-cloud/berth/tier"
)

// nobody is the unprivileged user that the server insists on.
const nobody = 65534

// The role of the tests, and its password: one that a shell and a URL mangle.
const (
	role     = "alice"
	password = "p@ss w/ö:rd%"
)

// postgres is one real PostgreSQL server for the tests of this package, started
// by the first that needs it. Its only way to log in is SCRAM-SHA-256, with TLS of
// its own for who asks for it.
type postgres struct {
	once sync.Once
	err  error
	bin  string
	dir  string
	port int
	run  *exec.Cmd
}

var pg postgres

// realPostgres is the server, or skips the test: only where there is none and
// nobody asked for all tests.
func realPostgres(t testing.TB) *postgres {
	t.Helper()
	if pg.bin = postgresPrograms(); pg.bin == "" {
		tier.Missing(t, "PostgreSQL")
	}
	pg.once.Do(func() { pg.err = pg.start() })
	if pg.err != nil {
		t.Fatal(pg.err)
	}
	return &pg
}

// postgresPrograms is the directory of the newest server's programs: Debian keeps
// them off the PATH.
func postgresPrograms() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) > 0 {
		slices.Sort(found)
		return filepath.Dir(found[len(found)-1])
	}
	if initdb, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(initdb)
	}
	return ""
}

func (p *postgres) start() (err error) {
	if p.dir, err = os.MkdirTemp("", "berth-pgsni-"); err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(serverCerts().cert.PrivateKey)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"password": []byte(password + "\n"), "server.crt": serverCerts().pem,
		"server.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	} {
		if err := os.WriteFile(p.file(name), content, 0o600); err != nil {
			return err
		}
		if os.Geteuid() == 0 {
			if err := errors.Join(os.Chown(p.file(name), nobody, nobody), os.Chown(p.dir, nobody, nobody)); err != nil {
				return err
			}
		}
	}
	initdb := p.command("initdb", "-D", p.file("data"), "-U", role, "--pwfile", p.file("password"),
		"--auth=scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	p.run = p.command("postgres", "-D", p.file("data"), "-p", strconv.Itoa(p.port), "-k", p.dir, "-h", "127.0.0.1",
		"-c", "fsync=off", "-c", "max_connections=200",
		"-c", "ssl=on", "-c", "ssl_cert_file="+p.file("server.crt"), "-c", "ssl_key_file="+p.file("server.key"))
	if err := p.run.Start(); err != nil {
		p.run = nil
		return err
	}
	return p.await()
}

func (p *postgres) file(name string) string { return filepath.Join(p.dir, name) }

func (p *postgres) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir = p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd
}

func (p *postgres) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := pgx.ConnectConfig(ctx, p.direct())
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL does not answer: %w", err)
		}
	}
}

func (p *postgres) stop() {
	if p.run != nil {
		_ = p.run.Process.Signal(syscall.SIGQUIT)
		_ = p.run.Wait() // its status is that of a crash
	}
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

// direct is how to connect without a router.
func (p *postgres) direct() *pgx.ConnConfig {
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=postgres sslmode=disable", p.port, role))
	if err != nil {
		panic(err)
	}
	cfg.Password = password
	return cfg
}

// Dial makes the server a Backend.
func (p *postgres) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)))
}

// verifier is what the server keeps of the role's password.
func (p *postgres) verifier(t testing.TB) *Verifier {
	t.Helper()
	c, err := pgx.ConnectConfig(t.Context(), p.direct())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	var secret string
	if err := c.QueryRow(t.Context(), "SELECT rolpassword FROM pg_authid WHERE rolname = $1", role).Scan(&secret); err != nil {
		t.Fatal(err)
	}
	v, err := ParseVerifier(secret)
	if err != nil {
		t.Fatal(err)
	}
	if v.String() != secret {
		t.Fatal("the verifier is written in another form than PostgreSQL's")
	}
	return v
}

// verifying is a Backend whose role the router checks.
type verifying struct {
	Backend
	verify func(ctx context.Context, user string) (*Verifier, error)
}

func (v verifying) Verifier(ctx context.Context, user string) (*Verifier, error) {
	return v.verify(ctx, user)
}

// checked is the server with its role's verifier.
func (p *postgres) checked(t testing.TB) verifying {
	v := p.verifier(t)
	return verifying{p, func(_ context.Context, user string) (*Verifier, error) {
		switch user {
		case role:
			return v, nil
		case "by_server":
			return nil, ErrPassThrough
		}
		return nil, ErrUnknown
	}}
}
