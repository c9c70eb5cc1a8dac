package httpapi

import (
	"math"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// adminRoutes are the operator's.
func adminRoutes() []route {
	return []route{
		{get, "/v1/admin/raft-status", operator, (*API).raftStatus, operation{
			id: "raftStatus", tag: "Administration", summary: "Read how this replica sees the control store",
			detail: "Every replica answers for itself, whether or not there is a leader.",
			status: 200, anyReplica: true, answer: exampleRaftStatus,
		}},
		{post, "/v1/admin/raft/peers", operator, (*API).addPeer, operation{
			id: "addPeer", tag: "Administration", summary: "Add a replica, which votes once it is stable",
			detail: "It gets every record. It votes once it has had them for a while and every other voter is there, or in the place of one that was silent for long. Of a member, it changes the address.",
			body:   api.AddPeer{ID: "r4", Address: "10.0.0.14:7001"}, status: 204,
			failures: append(refusals(apierror.EConflict, "another replica has this address", "no majority of the replicas would be left"),
				apierror.Error{Code: apierror.EInvalid, Message: "id is required"}),
		}},
		{del, "/v1/admin/raft/peers/:id", operator, (*API).removePeer, operation{
			id: "removePeer", tag: "Administration", summary: "Remove a replica from the members", status: 204,
			failures: refusals(apierror.EConflict, "the last replica cannot be removed", "no majority of the replicas would be left"),
		}},
		{del, "/v1/admin/routers/:name", operator, (*API).removeRouter, operation{
			id: "removeRouter", tag: "Administration", summary: "Remove a PostgreSQL router, which is refused from now on",
			detail: "For ever: a router is known by its certificate alone, so that one that is to come back needs another name. One that never was is refused, too.",
			status: 204, failures: []apierror.Error{{Code: apierror.EConflict, Message: "too many routers were removed"}},
		}},
		{post, "/v1/admin/raft/transfer-leadership", operator, (*API).transferLeadership, operation{
			id: "transferLeadership", tag: "Administration", summary: "Transfer leadership to another replica",
			body: api.TransferLeadership{To: "r2"}, status: 204,
			failures: []apierror.Error{{Code: apierror.ENotFound, Message: "not found"}},
		}},
		{get, "/v1/admin/raft/snapshot", operator, (*API).backup, operation{
			id: "backup", tag: "Administration", summary: "Download a whole backup of the control store",
			detail: "It holds every workspace's records. Secrets in it stay sealed with the cluster's key, which is not in it.",
			status: 200, answerType: backupType,
		}},
		{post, "/v1/admin/raft/restore", operator, (*API).restore, operation{
			id: "restore", tag: "Administration", summary: "Restore the control store from a backup",
			detail:   "A backup whose secrets need sealing keys that the cluster has not is refused, unless they may be lost.",
			query:    []parameter{{name: "without_keys", description: "Also a backup with secrets that cannot be opened: they are lost.", schema: aBoolean}},
			bodyType: backupType, status: 204,
			failures: append(refusals(apierror.EInvalid, "invalid backup", "invalid without_keys"),
				apierror.Error{Code: apierror.EConflict, Message: "backup is sealed with other keys"},
				apierror.Error{Code: apierror.EInsufficient, Message: "insufficient storage for backup"}),
		}},
		{del, "/v1/admin/raft/restore", operator, (*API).acceptRestore, operation{
			id: "acceptRestore", tag: "Administration", summary: "End the grace period after a restore",
			detail: "For an hour after a restore, nothing that hosts have and the backup does not know is deleted. This ends that hour.",
			status: 204,
		}},
		{get, "/v1/admin/agents", operator, (*API).listAgents, operation{
			id: "listAgents", tag: "Administration", summary: "List the hosts, their capacity and health", list: true,
			status: 200, answer: []api.Agent{exampleAgent},
		}},
		{get, "/v1/admin/agents/:id/events", operator, (*API).showAgentEvents, operation{
			id: "listAgentEvents", tag: "Administration", summary: "List what a host found that belongs to no sandbox, newest last",
			detail: "`recover.unmanaged`: a VM that no record names, which was killed. From the event store.",
			query: []parameter{
				{name: "tail", description: "The last so many, 10000 at most; 100 unless either is given.", schema: anInteger(0, math.MaxInt32)},
				{name: "since", description: "Only those after it: an event's ts.", schema: map[string]any{"type": "string", "format": "date-time"}},
			},
			status: 200, answer: []api.Event{exampleUnmanaged},
			failures: append(refusals(apierror.EInvalid, "invalid tail", "invalid since"),
				apierror.Error{Code: apierror.EUnavailable, Message: "event store unavailable"}),
		}},
		{post, "/v1/admin/agents/:id/drain", operator, (*API).drainAgent, operation{
			id: "drainAgent", tag: "Administration", summary: "Drain a host: place no new sandbox on it",
			detail: "What runs on it keeps running.",
			body:   api.Empty{}, status: 200, answer: exampleAgent,
		}},
		{get, "/v1/admin/agents/:id", operator, (*API).getAgent, operation{
			id: "getAgent", tag: "Administration", summary: "Read a host, and how far it has been evacuated",
			status: 200, answer: exampleEvacuated,
		}},
		{post, "/v1/admin/agents/:id/evacuate", operator, (*API).evacuateAgent, operation{
			id: "evacuateAgent", tag: "Administration", summary: "Evacuate a host: move its sandboxes, databases and apps to others",
			detail: "The host is drained. Its sandboxes are hibernated, moved through the snapshot store under the same id, and those that ran are woken there. " +
				"The call returns at once; `evacuation` of the host says how far it has come, and what stays and why. Again, it tries again what could not be moved; undrain gives it up.",
			body: api.EvacuateAgent{AtOnce: new(4)}, status: 200, answer: exampleEvacuated,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "invalid at_once", Detail: "at_once must be from 1 to 64"},
				{Code: apierror.EConflict, Message: "agent has no snapshot store"},
			},
		}},
		{post, "/v1/admin/rebalance", operator, (*API).rebalance, operation{
			id: "rebalance", tag: "Administration", summary: "Rebalance hosts: move what sleeps on the fuller ones to the emptier ones",
			detail: "Sandboxes and databases that sleep move through the snapshot store under the same id, until hosts differ by less than `percent` of an even share of the disk that is reserved. " +
				"What runs is never touched, nor are hosts that are drained, have had trouble or have no snapshot store. With `dry_run` nothing moves, and `moves` tells what would. " +
				"The call returns at once; GET tells how far it has come. Again, it tries again what could not be moved.",
			body: api.Rebalance{DryRun: true, AtOnce: new(4), Percent: new(20)}, status: 200, answer: exampleRebalancing,
			failures: append(refusals(apierror.EInvalid, "invalid at_once", "invalid percent"),
				apierror.Error{Code: apierror.EUnavailable, Message: "this leader has not heard all hosts yet"}),
		}},
		{get, "/v1/admin/rebalance", operator, (*API).showRebalancing, operation{
			id: "getRebalancing", tag: "Administration", summary: "Read how evenly hosts are filled, and how far a rebalancing has come",
			status: 200, answer: exampleRebalancing,
		}},
		{del, "/v1/admin/rebalance", operator, (*API).stopRebalancing, operation{
			id: "stopRebalancing", tag: "Administration", summary: "Stop a rebalancing", status: 204,
			detail: "What is under way still arrives.",
		}},
		{post, "/v1/admin/agents/:id/undrain", operator, (*API).undrainAgent, operation{
			id: "undrainAgent", tag: "Administration", summary: "Undrain a host: place sandboxes on it again",
			body: api.Empty{}, status: 200, answer: exampleAgent,
		}},
		{del, "/v1/admin/agents/:id", operator, (*API).removeAgent, operation{
			id: "removeAgent", tag: "Administration", summary: "Remove a host that has no sandbox left", status: 204,
			failures: []apierror.Error{
				{Code: apierror.EConflict, Message: "agent has sandboxes"},
				{Code: apierror.EConflict, Message: "agent has volumes or snapshots"},
			},
		}},
		{post, "/v1/admin/join-tokens", operator, (*API).createJoinToken, operation{
			id: "createJoinToken", tag: "Administration", summary: "Create a token with which one host can join",
			idempotent: true, body: api.CreateJoinToken{}, status: 201, answer: exampleJoinToken,
			failures: []apierror.Error{{Code: apierror.EInvalid, Message: "invalid ttl_seconds", Detail: "ttl_seconds must be from 1 to 86400"}},
		}},
	}
}
