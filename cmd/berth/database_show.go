package main

import (
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// describeDatabase returns a database's fields as names and values, without empty
// ones and without secrets.
func describeDatabase(db *api.Database) []string {
	out := []string{"id", db.ID, "status", string(db.Status)}
	add := func(name, value string) {
		if value != "" {
			out = append(out, name, value)
		}
	}
	add("error", db.Error)
	if db.FailoverAvailable != nil {
		add("failover", yes(*db.FailoverAvailable)+orNothing(", ", db.FailoverReason))
	}
	add("label", db.Label)
	out = append(out, "size", string(db.Size), "always on", yes(db.AlwaysOn))
	add("clone of", db.ClonedFrom)
	if db.TargetTime != nil {
		add("as of", db.TargetTime.String())
	}
	if db.Host != "" {
		add("host", fmt.Sprintf("%s:%d", db.Host, db.Port))
	}
	add("database", db.Database)
	add("user", db.Username)
	add("broker", db.BrokerURL)
	return append(out, "created", db.CreatedAt.String())
}

func describeArchive(ar *api.DatabaseArchive) []string {
	out := []string{"restorable", "not yet: there is no base backup", "archive lag", lag(ar)}
	if ar.FirstRestorable != nil && ar.LastRestorable != nil {
		out[1] = ar.FirstRestorable.String() + " to " + ar.LastRestorable.String()
		out = append(out, "archive", fmt.Sprintf("%s, base backups: %d", size(ar.SizeBytes), len(ar.BaseBackups)))
	}
	if ar.Error != nil {
		out = append(out, "archive error", *ar.Error)
	}
	return out
}

// describeBackups returns all that there is to say of an archive.
func describeBackups(ar *api.DatabaseArchive) []string {
	out := describeArchive(ar)
	if ar.FailingSince != nil {
		out = append(out, "failing since", ar.FailingSince.String())
	}
	if ar.LastArchivedLSN != nil {
		out = append(out, "archived up to", "LSN "+*ar.LastArchivedLSN)
	}
	for _, b := range ar.BaseBackups {
		out = append(out, "base backup", fmt.Sprintf("%s, %s", b.StartedAt, size(b.SizeBytes)))
	}
	return out
}

func lag(ar *api.DatabaseArchive) string {
	return time.Duration(ar.LagSeconds * float64(time.Second)).Round(time.Second).String()
}

func orNothing(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}
