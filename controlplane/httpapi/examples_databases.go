package httpapi

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

var (
	exampleCreateDatabase = api.CreateDatabase{Label: "orders", Size: new(api.Database1G)}
	exampleNewDatabase    = api.Database{
		ID: "7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37", Status: api.DatabaseProvisioning, Template: "postgres-16", Size: api.Database1G,
		Label: "orders", CreatedAt: exampleAt, Host: "7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37.db.example.com", Port: 5432,
		BrokerURL: "https://api.example.com/v1/databases/7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37/proxy", Error: "PostgreSQL is starting",
	}
	exampleDatabase = func() api.Database {
		d := exampleNewDatabase
		d.Status, d.Error, d.AlwaysOn = api.DatabaseRunning, "", true
		d.Database, d.Username, d.Password = "app", "app", "k7m2qz4xw3v5n6a2j7p4t5r6sdb3n5x7"
		d.ConnectionURL = "postgres://app:" + d.Password + "@" + d.Host + ":5432/app"
		d.BrokerToken = "brk_z2q4m6w2k4t6r2p7j5dc6w2k4t6r2p7j5d3n5x7z2q4"
		return d
	}()
	exampleConnection = api.DatabaseConnection{
		Status: exampleDatabase.Status, Host: exampleDatabase.Host, Port: exampleDatabase.Port, Database: "app", Username: "app", Password: exampleDatabase.Password,
		ConnectionURL: exampleDatabase.ConnectionURL, BrokerToken: exampleDatabase.BrokerToken, BrokerURL: exampleDatabase.BrokerURL,
	}
	exampleTarget = "2026-11-20T13:00:00Z"
	exampleClone  = api.CloneDatabase{Size: new(api.Database4G), TargetTime: &exampleTarget}
	exampleCloned = func() api.Database {
		d := exampleNewDatabase
		d.ID, d.ClonedFrom, d.Label, d.Size = "b1f6e0c4-8a27-4d93-a5be-6c19d7f2038e", d.ID, "orders (clone)", api.Database4G
		d.Host, d.BrokerURL = d.ID+".db.example.com", "https://api.example.com/v1/databases/"+d.ID+"/proxy"
		d.TargetTime = &api.Time{Time: time.Date(2026, time.November, 20, 13, 0, 0, 0, time.UTC)}
		d.Error = "its data is being restored: recovering, 12 WAL files"
		return d
	}()
	exampleArchive = api.DatabaseArchive{
		FirstRestorable: &exampleStarted, LastRestorable: &exampleExpires, LastArchivedLSN: new("0/5000060"), LagSeconds: 3.5,
		BaseBackups: []api.DatabaseBaseBackup{{ID: "20261120T130509Z", StartedAt: exampleAt, SizeBytes: 4194304}}, SizeBytes: 12582912,
	}
)
