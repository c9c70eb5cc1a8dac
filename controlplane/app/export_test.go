package app

import (
	"errors"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// For tests outside.
const (
	MaxLogs      = maxLogs
	MaxUploads   = maxUploads
	MaxDropped   = maxDropped
	MaxUndeleted = maxUndeleted

	FunctionsAtOnce = functionsAtOnce
)

// BeginWake begins to add an instance to an app that runs.
func BeginWake(tx *raftstore.Tx, appID string) error {
	a, ok := raftstore.Get(tx, record.Apps, appID)
	if !ok {
		return errors.New("no such app")
	}
	return beginWake(tx, a, true)
}
