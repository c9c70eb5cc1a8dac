package raftstore

import "github.com/berth-cloud/berth/raftstore/record"

// RecordTables returns every table of package record, for Config.Tables.
func RecordTables() []AnyTable {
	return []AnyTable{
		Register(record.Workspaces), Register(record.Users), Register(record.APIKeys), Register(record.Hosts), Register(record.JoinTokens),
		Register(record.Sandboxes), Register(record.EnvParts), Register(record.Flows), Register(record.Outcomes), Register(record.IdempotencyKeys),
		Register(record.Snapshots), Register(record.Volumes), Register(record.Databases), Register(record.Templates),
		Register(record.Builds), Register(record.Clusters), Register(record.CertFiles),
		Register(record.WebhookEndpoints), Register(record.WebhookDeliveries), Register(record.Apps), Register(record.Deployments),
		Register(record.WorkspaceCreates), Register(record.Invitations),
		Register(record.GitInstallations), Register(record.GitReceipts), Register(record.GitHeads), Register(record.GitPreviews),
		Register(record.GitReports), Register(record.RepoEnvs), Register(record.Domains),
		Register(record.Usages), Register(record.MeterCursors), Register(record.EndedBoxes),
		Register(record.AuditEntries), Register(record.AuditChains),
	}
}
