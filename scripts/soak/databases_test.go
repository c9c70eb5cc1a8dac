package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestThePlanHasEveryStep(t *testing.T) {
	k := &soak{options: options{seed: 1, ops: 2 * len(dbStepNames()), hostKills: 3}}
	plan := k.plan(k.options.random(0))
	count := map[string]int{}
	for _, name := range plan {
		count[name]++
	}
	for _, name := range dbStepNames() {
		if count[name] != 2 {
			t.Errorf("%s is planned %d times, want 2", name, count[name])
		}
	}
	if count[stepLoseHost] != 3 {
		t.Errorf("a host is lost %d times, want 3", count[stepLoseHost])
	}
	if again := k.plan(k.options.random(0)); !slices.Equal(plan, again) {
		t.Error("the same seed makes another plan")
	}
}

func TestClientsMayMeetClosedConnectionsAlone(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{io.EOF, true},
		{fmt.Errorf("read: %w", io.ErrUnexpectedEOF), true},
		{context.DeadlineExceeded, true},
		{&pgconn.PgError{Code: "57P01"}, true},
		{&pgconn.PgError{Code: "57P03"}, true},
		{&pgconn.PgError{Code: "08006"}, true},
		{&pgconn.PgError{Code: "28P01"}, false},
		{&pgconn.PgError{Code: "23505"}, false},
		{&pgconn.PgError{Code: "25006"}, false},
		{&tls.CertificateVerificationError{Err: errors.New("unknown authority")}, false},
		{errors.New("something else"), false},
	} {
		if got := isClosed(test.err); got != test.want {
			t.Errorf("%v: %t", test.err, got)
		}
	}
}

func TestPositionOfAFailoverIsRead(t *testing.T) {
	said := endsAt.FindStringSubmatch("it is restored from its archive, which ends at LSN 0/3000060, 2026-11-25T03:00:00Z; what was")
	if said == nil || said[1] != "0/3000060" {
		t.Errorf("the answer to a failover says %q", said)
	}
}
