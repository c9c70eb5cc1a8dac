package bucket

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/bucket/s3test"
)

// silent is a server that takes connections and requests, and never answers.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var held sync.WaitGroup
	held.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			held.Go(func() {
				defer conn.Close()
				for buf := make([]byte, 1<<10); ; {
					if _, err := conn.Read(buf); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		held.Wait()
	})
	return l.Addr().String()
}

// No call of ours may wait for ever, whatever its caller's context says.
func TestABucketThatNeverAnswers(t *testing.T) {
	was := answerLimit
	answerLimit = 20 * time.Millisecond
	defer func() { answerLimit = was }()
	for name, value := range s3test.Credentials() {
		t.Setenv(name, value)
	}
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	b := open(t, s3test.URL(silent(t)))
	nothing := func(Object) error { return nil }
	for what, call := range map[string]func() error{
		"put":    func() error { return b.Put(t.Context(), "x", []byte("x")) },
		"create": func() error { return b.Create(t.Context(), "x", []byte("x")) },
		"get":    func() error { _, _, err := b.Get(t.Context(), "x"); return err },
		"stat":   func() error { _, err := b.Stat(t.Context(), "x"); return err },
		"copy":   func() error { return b.Copy(t.Context(), "x", "y") },
		"remove": func() error { return b.Remove(t.Context(), "x") },
		"list":   func() error { return b.List(t.Context(), "x/", "", nothing) },
		"walk":   func() error { return b.Walk(t.Context(), "x/", nothing) },
		"all":    func() error { return b.RemoveAll(t.Context(), "x/") },
	} {
		err := call()
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() || !b.Passing(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
