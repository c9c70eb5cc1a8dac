package sandbox_test

import (
	"testing"

	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestWhatARowFollows(t *testing.T) {
	for name, c := range map[string]struct {
		row  record.Sandbox
		box  hostapi.BoxState
		want bool
	}{
		"news":                             {record.Sandbox{Status: record.SandboxRunning, HostSeq: 1}, hostapi.BoxState{Status: hostapi.StatusPaused, Seq: 2}, true},
		"what is known":                    {record.Sandbox{Status: record.SandboxRunning, HostSeq: 2}, hostapi.BoxState{Status: hostapi.StatusPaused, Seq: 2}, false},
		"what is old":                      {record.Sandbox{Status: record.SandboxHibernated, HostSeq: 3}, hostapi.BoxState{Status: hostapi.StatusRunning, Seq: 2}, false},
		"an older generation":              {record.Sandbox{Status: record.SandboxRunning, Generation: 2}, hostapi.BoxState{Status: hostapi.StatusPaused, Seq: 9, Generation: 1}, false},
		"a death":                          {record.Sandbox{Status: record.SandboxPaused, HostSeq: 5}, hostapi.BoxState{Status: hostapi.StatusFailed}, true},
		"a box that is being made":         {record.Sandbox{Status: record.SandboxRunning}, hostapi.BoxState{Status: hostapi.StatusStarting, Seq: 9}, false},
		"one that a flow makes":            {record.Sandbox{Status: record.SandboxStarting}, hostapi.BoxState{Status: hostapi.StatusRunning, Seq: 9}, false},
		"one that a flow takes apart":      {record.Sandbox{Status: record.SandboxDeleting}, hostapi.BoxState{Status: hostapi.StatusFailed, Seq: 9}, false},
		"one that has failed":              {record.Sandbox{Status: record.SandboxFailed}, hostapi.BoxState{Status: hostapi.StatusRunning, Seq: 9}, false},
		"one that was unreachable":         {record.Sandbox{Status: record.SandboxFailed, Unreachable: true}, hostapi.BoxState{Status: hostapi.StatusHibernated, Seq: 9}, true},
		"one that died unreachable":        {record.Sandbox{Status: record.SandboxFailed, Unreachable: true}, hostapi.BoxState{Status: hostapi.StatusFailed, Seq: 9}, true},
		"an exclusive one that comes back": {record.Sandbox{Status: record.SandboxFailed, Persistent: true, Exclusive: true}, hostapi.BoxState{Status: hostapi.StatusRunning, Seq: 9}, false},
		"an exclusive one with an owner":   {record.Sandbox{Status: record.SandboxFailed, Persistent: true, Exclusive: true, Owner: &record.Owner{Type: "database", ID: "d"}}, hostapi.BoxState{Status: hostapi.StatusRunning, Seq: 9}, true},
		"a persistent one that comes back": {record.Sandbox{Status: record.SandboxFailed, Persistent: true}, hostapi.BoxState{Status: hostapi.StatusRunning, Seq: 9}, true},
		"a persistent one, once more":      {record.Sandbox{Status: record.SandboxFailed, Persistent: true}, hostapi.BoxState{Status: hostapi.StatusFailed, Seq: 9}, false},
	} {
		if got := sandbox.Follows(&c.row, c.box); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
