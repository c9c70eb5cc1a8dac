// Command dbapp is an app of a test: it finds its database by DATABASE_URL alone, as
// a driver does by itself, and counts its visitors there.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ready") })
	http.HandleFunc("/visit", func(w http.ResponseWriter, r *http.Request) {
		n, err := visit(r.Context())
		if err != nil {
			log.Print(err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, n)
	})
	server := &http.Server{Addr: net.JoinHostPort(os.Getenv("HOST"), os.Getenv("PORT")), ReadHeaderTimeout: time.Minute}
	log.Fatal(server.ListenAndServe())
}

// visit counts with a connection of its own, so that the database sleeps between two.
func visit(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS visits (id serial)"); err != nil {
		return 0, err
	}
	if _, err := conn.Exec(ctx, "INSERT INTO visits DEFAULT VALUES"); err != nil {
		return 0, err
	}
	err = conn.QueryRow(ctx, "SELECT count(*) FROM visits").Scan(&n)
	return n, err
}
