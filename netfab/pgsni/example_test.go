package pgsni_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/netfab/pgsni"
)

// table is a Resolver: names, and where their servers are.
type table map[string]server

func (t table) Resolve(_ context.Context, name string) (pgsni.Backend, error) {
	if s, ok := t[name]; ok {
		return s, nil
	}
	return nil, pgsni.ErrUnknown
}

// server is a Backend: the address of a PostgreSQL server.
type server string

func (s server) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", string(s))
}

// A router for two databases, which drains for half a minute when it is told to
// end.
func Example() {
	err := route(table{"orders": "10.0.0.7:5432", "users": "10.0.0.8:5432"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func route(t table) error {
	cert, err := tls.LoadX509KeyPair("tls.crt", "tls.key")
	if err != nil {
		return err
	}
	router, err := pgsni.New(pgsni.Config{
		Domain: "db.example.com",
		TLS:    &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	}, t)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", ":5432")
	if err != nil {
		return err
	}
	stop, release := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer release()
	served := make(chan error, 1)
	go func() { served <- router.Serve(context.Background(), l) }()
	select {
	case err := <-served:
		return err
	case <-stop.Done():
	}
	drain, end := context.WithTimeout(context.Background(), 30*time.Second)
	defer end()
	router.Drain(drain)
	return <-served
}
