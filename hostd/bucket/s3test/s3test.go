// Package s3test runs an S3 server of a test's own, as the real one behind a
// snapshot store.
package s3test

import (
	"bytes"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/tier"
)

const (
	bucket    = "berth"
	accessKey = "berth"
	secretKey = "berth-secret"

	startTimeout = 20 * time.Second
)

// Server is versitygw on the loopback. Its bucket is a directory. Its methods
// are not for concurrent use.
type Server struct {
	Addr string // host:port
	Dir  string // of the bucket: an object a file

	t       testing.TB
	program string
	run     *exec.Cmd // nil while it is stopped
	exited  chan struct{}
	log     bytes.Buffer
}

// New starts a server with an empty bucket, which ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{Addr: FreeAddress(t), Dir: filepath.Join(t.TempDir(), bucket), t: t, program: versitygw(t)}
	if err := os.Mkdir(s.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Logf("S3 server: %s", s.log.String())
		}
	})
	s.Start()
	return s
}

// FreeAddress is a port of the loopback where nobody listens.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Credentials is the environment of whoever may use the bucket.
func Credentials() map[string]string {
	return map[string]string{"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_EC2_METADATA_DISABLED": "true"}
}

// URL is the bucket's as a snapshot store, reached at an address: the server's,
// or that of a proxy in front of it.
func URL(addr string) string {
	q := url.Values{"endpoint": {"http://" + addr}, "region": {"us-east-1"}, "use_path_style": {"true"}}
	return "s3://" + bucket + "?" + q.Encode()
}

// Start starts a server that was stopped, with the objects that it had, and
// returns when it takes connections.
func (s *Server) Start() {
	s.t.Helper()
	s.run = exec.Command(s.program, "--access", accessKey, "--secret", secretKey, "--port", s.Addr, "--quiet", "posix", filepath.Dir(s.Dir))
	s.run.Stdout, s.run.Stderr = &s.log, &s.log
	s.run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.run.Start(); err != nil {
		s.run = nil
		s.t.Fatal(err)
	}
	run, exited := s.run, make(chan struct{})
	s.exited = exited
	go func() {
		_ = run.Wait() // it is killed
		close(exited)
	}()
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		conn, err := net.Dial("tcp", s.Addr)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-poll.C:
		case <-exited:
			s.t.Fatalf("the S3 server ended: %s", s.log.String())
		case <-deadline.C:
			s.t.Fatalf("the S3 server does not answer: %v", err)
		}
	}
}

// Stop kills the server.
func (s *Server) Stop() {
	if s.run == nil {
		return
	}
	_ = s.run.Process.Kill()
	<-s.exited
	s.run = nil
}

// versitygw finds the server's program. Building it takes minutes, so these tests are
// among the slow ones.
func versitygw(t testing.TB) string {
	t.Helper()
	tier.Slow(t)
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(out))
	path := filepath.Join(root, ".tools/bin/versitygw")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if path, err := exec.LookPath("versitygw"); err == nil {
		return path
	}
	tier.Missing(t, "S3 server")
	return ""
}
