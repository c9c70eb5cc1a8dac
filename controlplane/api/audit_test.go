package api

import (
	"strings"
	"testing"
	"time"
)

func auditLog(workspace string, n int) (out []AuditEntry) {
	previous := ""
	for i := range n {
		e := AuditEntry{
			Sequence: uint64(i) + 1, Time: Time{time.Unix(int64(i), 0).UTC()}, WorkspaceID: workspace, ActorType: "user", ActorID: "usr-1",
			Action: "deleteVolume", Resource: "volumes/v", Outcome: "ok", Previous: previous,
		}
		e.Hash = e.Digest()
		previous = e.Hash
		out = append(out, e)
	}
	return out
}

func TestVerifyAudit(t *testing.T) {
	whole := append(auditLog("", 3), auditLog("ws-1", 4)...)
	heads, err := VerifyAudit(whole)
	if err != nil || len(heads) != 2 || heads[1] != (AuditHead{WorkspaceID: "ws-1", First: 1, Last: 4, Hash: whole[6].Hash}) {
		t.Fatalf("%+v, %v", heads, err)
	}
	if _, err := VerifyAudit(append([]AuditEntry{{Action: "no place yet"}}, whole[4:]...)); err != nil {
		t.Errorf("the beginning was pruned: %v", err)
	}
	for name, c := range map[string]struct {
		change func(log []AuditEntry) []AuditEntry
		want   string
	}{
		"changed": {func(log []AuditEntry) []AuditEntry { log[1].ActorID = "usr-2"; return log }, "entry 2 was changed"},
		"changed with its hash": {func(log []AuditEntry) []AuditEntry {
			log[1].ActorID = "usr-2"
			log[1].Hash = log[1].Digest()
			return log
		}, "entry 3 follows another"},
		"removed":     {func(log []AuditEntry) []AuditEntry { return append(log[:1:1], log[2:]...) }, "after entry 1 comes 3"},
		"given twice": {func(log []AuditEntry) []AuditEntry { return append(log, log[2]) }, "after entry 3 comes 3"},
		"first with a past": {func(log []AuditEntry) []AuditEntry {
			log[0].Previous = "ab"
			log[0].Hash = log[0].Digest()
			return log[:1]
		}, "entry 1 follows another"},
		"moved to other logs": {func(log []AuditEntry) []AuditEntry { log[3].WorkspaceID = "ws-2"; return log }, "entry 4 was changed"},
	} {
		if _, err := VerifyAudit(c.change(auditLog("ws-1", 4))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
