// Command pgx does what a client does, by pgx. DRIVER_URL is the database,
// DRIVER_ADDR where its name leads, DRIVER_CA the authority of the router's
// certificate. What is waited for in its middle: see the type driver in
// drivers_test.go.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func connect(ctx context.Context, url, query string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url + "?" + query)
	if err != nil {
		return nil, err
	}
	// As hostaddr of libpq: the name is verified, and not looked up.
	cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	cfg.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, os.Getenv("DRIVER_ADDR"))
	}
	return pgx.ConnectConfig(ctx, cfg)
}

func run(ctx context.Context) error {
	url := os.Getenv("DRIVER_URL")
	verified := "sslmode=verify-full&sslrootcert=" + os.Getenv("DRIVER_CA")
	for name, query := range map[string]string{
		"require": "sslmode=require", "verify-full": verified, "channel_binding=require": verified + "&channel_binding=require",
	} {
		conn, err := connect(ctx, url, query)
		if err != nil {
			return fmt.Errorf("connect %s: %w", name, err)
		}
		if err := conn.Close(ctx); err != nil {
			return err
		}
		fmt.Println("ok: connect", name)
	}
	if err := work(ctx, url, verified); err != nil {
		return err
	}
	return middle(ctx, url, verified)
}

// work does what one session can do.
func work(ctx context.Context, url, verified string) error {
	conn, err := connect(ctx, url, verified)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, step := range []struct {
		name string
		do   func(context.Context, *pgx.Conn) error
	}{
		{"prepared statements", prepared}, {"copy", copyRows},
		{"listen, notify", func(ctx context.Context, c *pgx.Conn) error { return notify(ctx, c, url, verified) }}, {"cancel", cancelled},
	} {
		if err := step.do(ctx, conn); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println("ok:", step.name)
	}
	return nil
}

// middle is what happens to the database while the program runs.
func middle(ctx context.Context, url, verified string) error {
	answers := bufio.NewScanner(os.Stdin)
	ready := func(step string) string {
		fmt.Println("ready:", step)
		answers.Scan()
		return answers.Text()
	}
	ready("sleep")
	held, err := connect(ctx, url, verified)
	if err != nil {
		return fmt.Errorf("wake: %w", err)
	}
	defer held.Close(ctx)
	fmt.Println("ok: wake")

	fresh := ready("rotation")
	if _, err := held.Exec(ctx, "SELECT 1"); code(err) != "57P01" {
		return fmt.Errorf("a session of before the rotation: %w", err)
	}
	if _, err := connect(ctx, url, verified); code(err) != "28P01" {
		return fmt.Errorf("the password of before the rotation: %w", err)
	}
	again, err := connect(ctx, fresh, verified)
	if err != nil {
		return fmt.Errorf("the new password: %w", err)
	}
	fmt.Println("ok: rotation")
	return again.Close(ctx)
}

func code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

func prepared(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Prepare(ctx, "p", "SELECT $1::int + 1"); err != nil {
		return err
	}
	for i := range 3 {
		var n int
		if err := conn.QueryRow(ctx, "p", i).Scan(&n); err != nil || n != i+1 {
			return fmt.Errorf("got %d: %w", n, err)
		}
	}
	return nil
}

func copyRows(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "CREATE TEMP TABLE pgx_rows (n int PRIMARY KEY, t text)"); err != nil {
		return err
	}
	rows := make([][]any, 10000)
	for i := range rows {
		rows[i] = []any{i, fmt.Sprint("row ", i)}
	}
	n, err := conn.CopyFrom(ctx, pgx.Identifier{"pgx_rows"}, []string{"n", "t"}, pgx.CopyFromRows(rows))
	if err != nil || n != 10000 {
		return fmt.Errorf("copied %d: %w", n, err)
	}
	return conn.QueryRow(ctx, "SELECT count(*) FROM pgx_rows").Scan(&n)
}

func notify(ctx context.Context, conn *pgx.Conn, url, query string) error {
	if _, err := conn.Exec(ctx, "LISTEN pgx_channel"); err != nil {
		return err
	}
	other, err := connect(ctx, url, query)
	if err != nil {
		return err
	}
	defer other.Close(ctx)
	if _, err := other.Exec(ctx, "SELECT pg_notify('pgx_channel', 'hello')"); err != nil {
		return err
	}
	n, err := conn.WaitForNotification(ctx)
	if err != nil || n.Payload != "hello" {
		return fmt.Errorf("got %+v: %w", n, err)
	}
	return nil
}

// cancelled sends a cancel request by itself: the end of a context closes the
// connection first.
func cancelled(ctx context.Context, conn *pgx.Conn) error {
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "SELECT pg_sleep(120)")
		done <- err
	}()
	for {
		if err := conn.PgConn().CancelRequest(ctx); err != nil {
			return err
		}
		select {
		case err := <-done:
			if code(err) != "57014" {
				return fmt.Errorf("got %w", err)
			}
			var n int
			return conn.QueryRow(ctx, "SELECT 1").Scan(&n)
		case <-time.After(100 * time.Millisecond): // it had not begun
		}
	}
}
