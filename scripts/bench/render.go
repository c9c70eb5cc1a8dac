package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// The document has places for tables, "<!-- bench:name -->" to "<!-- /bench -->".
// What stands between is written from the file of numbers.

// shown is one line of a table. A number's name in braces, with the end of its
// unit, stands for the number.
type shown struct {
	what, value, goal string
}

const latency = "p50 {%[1]s_p50}, worst {%[1]s_max}"

func few(name string) string { return fmt.Sprintf(latency, name) }

func firstRow(template, command, name string) shown {
	prefix := "first_" + template + "_" + name
	return shown{
		what:  fmt.Sprintf("`%s` as the first command in `%s`", command, template),
		value: few(prefix) + "; with the create p50 {" + prefix + "_with_create_p50}",
	}
}

func commitsRow(clients string) shown {
	name := "raft_commits_" + clients + "_clients"
	return shown{what: clients, value: "{" + name + "_raftstore} | {" + name + "_plain}", goal: "{" + name + "_share}"}
}

func routerRow(name, what, clients string) shown {
	prefix := "router_" + name + "_" + clients + "_clients"
	return shown{what + " in a guest, clients: " + clients, "{" + prefix + "}, {" + prefix + "_share} of direct", "at least 90 %"}
}

func pgbenchRow(clients string) shown {
	prefix := "pgbench_select_" + clients + "_clients"
	return shown{
		"`pgbench -S` at PostgreSQL on this machine, clients: " + clients,
		"{" + prefix + "}, {" + prefix + "_share} of direct; by pgbouncer {" + prefix + "_pgbouncer}", "at least 90 %",
	}
}

// tables are what the document shows, by name.
var tables = map[string]struct {
	head string
	rows []shown
}{
	"create": {"| | measured | goal |\n|---|---|---|\n", []shown{
		{"Create by restore, 30 in sequence", "p50 {create_restored_p50}, p95 {create_restored_p95}", ""},
		{"Create by cold boot, in the same run", "p50 {create_cold_booted_p50}, p95 {create_cold_booted_p95}", ""},
		{"Cold boot over restore", "{create_cold_over_restored}", "at least 5 times"},
		{"Of a create: our own processes (replicas and hostd)", "p50 {create_share_ours_p50}, p95 {create_share_ours_p95}", ""},
		{"Of a create: the engine (start, restore, resume)", "p50 {create_share_engine_p50}, p95 {create_share_engine_p95}", ""},
		{"Of a create: the guest, until it has confirmed its identity", "p50 {create_share_guest_p50}, p95 {create_share_guest_p95}", ""},
		{"One Raft commit of one client, in the same run", "p50 {raft_commit_1_client_raftstore_p50}", ""},
		{"**Our own processes over two such commits**", "{create_share_ours_over_raft_commits}", "at most 3 times"},
		{"16 creates at once: errors", "{create_16_at_once_errors}", "none"},
		{"16 creates at once", "p50 {create_16_at_once_p50}, p95 {create_16_at_once_p95}, all {create_16_at_once_all}", ""},
		{"First create of a fresh stack", "{fresh_first_create}", ""},
		{"16 creates at once on a fresh stack: errors", "{fresh_16_at_once_errors}", "none"},
		{"16 creates at once on a fresh stack", "p50 {fresh_16_at_once_p50}, p95 {fresh_16_at_once_p95}, all {fresh_16_at_once_all}", ""},
		{"Exec of `true`, round trip", "p50 {exec_true_p50}, p95 {exec_true_p95}", ""},
		{"Memory that a running sandbox adds (PSS)", "{memory_of_a_sandbox_pss}", ""},
		{"Three replicas and two hosts at rest, of one core", "{rest_cpu}", "at most 2 %"},
		{"kill -9 of the leader → next accepted write", "p50 {leader_kill_to_next_write_p50}, worst {leader_kill_to_next_write_max}", "under 1 s (p50)"},
	}},
	"transitions": {"| | measured | goal |\n|---|---|---|\n", []shown{
		{"Pause", few("pause"), ""},
		{"Resume", few("resume"), ""},
		{"Hibernate", few("hibernate"), ""},
		{"Wake", few("wake"), ""},
		{"Wake to the first exec answered", few("wake_to_first_exec"), ""},
		{"Exec on a hibernated sandbox, which wakes it", few("exec_that_wakes"), ""},
		{"Raw restore to `vm.resume` returned", few("raw_restore_to_resume"), ""},
		{"Raw restore to the guest's identity confirmed", few("raw_restore_to_identity"), ""},
		{"Raw restore to the first exec answered", few("raw_restore_to_first_exec"), ""},
		{"**Wake to first exec over raw restore to first exec**", "{wake_to_first_exec_over_raw_restore}", "at most 2 times"},
		{"Wake to first exec over raw restore to `vm.resume`", "{wake_to_first_exec_over_raw_restore_to_resume}", ""},
		{"Snapshot", few("snapshot") + "; pause p50 {snapshot_pause_p50}", ""},
		{"Snapshot with upload to the store", few("snapshot_to_the_store"), ""},
		{"Create from a snapshot", few("from_snapshot") + "; to the first exec p50 {from_snapshot_to_first_exec_p50}", ""},
		{"Cold fork to the first exec", few("fork_cold_to_first_exec") + "; the parent's pause p50 {fork_cold_pause_p50}", ""},
	}},
	"forks": {"| | measured | goal |\n|---|---|---|\n", []shown{
		{"Fork-tree of 1: call → the child answers an exec", few("fork_tree_1_to_all_execs"), ""},
		{"Fork-tree of 4: call → all answer", few("fork_tree_4_to_all_execs"), ""},
		{"Fork-tree of 8: call → all answer", few("fork_tree_8_to_all_execs"), ""},
		{"Fork-tree of 16: call → all answer", few("fork_tree_16_to_all_execs"), ""},
		{"Fork-tree of 16 where there is a snapshot store", few("fork_tree_16_with_store_to_all_execs"), ""},
		{"Children that failed to start", "{fork_tree_failed_children}", "none"},
		{"16 raw restores in parallel to every `vm.resume` returned", few("raw_restore_16_to_all_resumes"), ""},
		{"16 raw restores in parallel to every identity confirmed", few("raw_restore_16_to_all_identities"), ""},
		{"16 raw restores in parallel to every first exec answered", few("raw_restore_16_to_all_execs"), ""},
		{"**Fork-tree of 16 over 16 raw restores, both to every first exec**", "{fork_tree_16_over_16_raw_restores}", "at most 1.3 times"},
		{"Fork-tree of 16 over 16 raw restores to `vm.resume`", "{fork_tree_16_over_16_raw_restores_to_resume}", ""},
		{"Parent's pause in a fork-tree of any size", few("fork_tree_pause"), ""},
		{"Raw pause, save, copy of the disk, resume", few("raw_save_and_copy"), ""},
		{"**The parent's pause over raw save and copy**", "{parent_pause_over_raw_save_and_copy}", "at most 1.3 times"},
		{"RAM that the parent had written", "{parent_ram_touched}", ""},
		{"A child right after the fork: PSS of its RAM mapping", "{fork_child_ram_pss}, of it written by itself {fork_child_ram_written}", ""},
		{"… PSS of its engine (VMM, emulator, translated code)", "{fork_child_engine_pss}", ""},
		{"… PSS in all", "{fork_child_pss}", ""},
		{"**RAM that a child adds, as a share of what the parent had written**", "{fork_child_ram_share_of_touched}", "at most 20 %"},
	}},
	"data": {"| | measured | goal |\n|---|---|---|\n", []shown{
		firstRow("base", "node -v", "node_v"), firstRow("node", "node -v", "node_v"), firstRow("python", "node -v", "node_v"),
		firstRow("base", "python3 -c pass", "python3_pass"), firstRow("python", "python3 -c pass", "python3_pass"), firstRow("node", "python3 -c pass", "python3_pass"),
		{"Upload of 64 MiB", "{upload_64_mib}", ""},
		{"Download of 64 MiB", "{download_64_mib}", ""},
		{"exec/stream, 16 MiB of text", "{exec_stream}; from the guest's agent directly {exec_stream_direct}", ""},
		{"Event → seen by a follower", "p50 {event_latency_p50}, p95 {event_latency_p95}", ""},
		{"Call of a transition → its event seen by a follower", "p50 {transition_call_to_event_p50}, p95 {transition_call_to_event_p95}", ""},
		{"Node.js server in a guest, reached directly in its slot", "{direct_requests}, p99 {direct_p99}", ""},
		{"The same by its preview URL", "{preview_requests}, p99 {preview_p99}", ""},
		{"**Preview over direct**", "{preview_share_of_direct}", "at least 70 %"},
		{"A minimal server in Go, reached directly", "{lean_direct_requests}, p99 {lean_direct_p99}", ""},
		{"The same by its preview URL", "{lean_preview_requests}, p99 {lean_preview_p99}", ""},
		{"**Preview over direct**, minimal server", "{lean_preview_share_of_direct}", "at least 70 %"},
	}},
	"databases": {"| | measured | goal |\n|---|---|---|\n", []shown{
		{"Create to the first query", few("database_create_to_first_query"), "under 5 s (p50)"},
		{"Asleep to the first query", few("database_wake_to_first_query"), "under 500 ms (p50)"},
		{"Memory of one that is awake (PSS)", "{database_awake_pss}", ""},
		{"Memory of one that sleeps", "{database_asleep_pss}", "none"},
		routerRow("select", "Select", "1"), routerRow("select", "Select", "8"), routerRow("select", "Select", "64"),
		routerRow("tpcb", "TPC-B", "1"), routerRow("tpcb", "TPC-B", "8"), routerRow("tpcb", "TPC-B", "64"),
		pgbenchRow("1"), pgbenchRow("8"), pgbenchRow("64"),
		{"**64 clients: the router over pgbouncer**", "{pgbench_select_64_clients_over_pgbouncer}", "more than 1"},
		{"Archive lag, idle", "p50 {archive_lag_idle_p50}, worst {archive_lag_idle_max}", "under 60 s"},
		{"Archive lag under TPC-B", "p50 {archive_lag_busy_p50}, worst {archive_lag_busy_max}", "under 60 s"},
		{"What archiving costs `pgbench`'s TPC-B at PostgreSQL on this machine", "{archiving_cost}: {pgbench_tpcb_archived} with it, {pgbench_tpcb_unarchived} without", "under 5 %"},
		{"Clone of 512 MB by a copy of the disk, to the first query", "{database_clone_by_copy}", ""},
		{"Clone of 512 MB from the archive, to the first query", "{database_clone_from_archive}", ""},
		{"A host is killed → its database is `failed`", "{database_host_lost_to_failed}", ""},
		{"**`failed` → failed over, to the first query**", "{database_failed_to_failed_over}", "under 30 s"},
	}},
	"apps": {"| | measured | goal |\n|---|---|---|\n", []shown{
		{"Deployment, from the call until it is live", few("app_deploy"), ""},
		{"Rollback, likewise", few("app_rollback"), ""},
		{"Requests during ten deployments and two rollbacks", "{app_load_requests}", ""},
		{"**… lost, or answered with anything but 2xx**", "{app_load_failed}", "none"},
		{"Asleep → first byte", few("app_wake_to_first_byte"), ""},
		{"**… without the program's own start**", "p50 {app_wake_own_part}, worst {app_wake_own_part_max}", "at most 1 s (p50)"},
		{"An app by the edge", "{app_edge_requests}, p99 {app_edge_p99}", ""},
		{"The same reached directly, in its slot", "{app_direct_requests}, p99 {app_direct_p99}", ""},
		{"The same by nginx in its slot", "{app_nginx_requests}, p99 {app_nginx_p99}", ""},
		{"Edge over direct", "{app_edge_share_of_direct}", ""},
		{"**Edge over nginx**", "{app_edge_share_of_nginx}", "at least 80 %"},
	}},
	"stages": {"| stage | | whose |\n|---|---|---|\n", []shown{
		{"admission", "{create_stage_ours_admission_p50}", "ours"},
		{"slot", "{create_stage_ours_slot_p50}", "ours"},
		{"intent", "{create_stage_ours_intent_p50}", "ours"},
		{"cgroup", "{create_stage_ours_cgroup_p50}", "ours"},
		{"files", "{create_stage_ours_files_p50}", "ours"},
		{"vmm_start", "{create_stage_engine_vmm_start_p50}", "the engine"},
		{"restore", "{create_stage_engine_restore_p50}", "the engine"},
		{"resume", "{create_stage_engine_resume_p50}", "the engine"},
		{"identity", "{create_stage_guest_identity_p50}", "the guest"},
		{"commit", "{create_stage_ours_commit_p50}", "ours"},
		{"control_plane", "{create_stage_ours_control_plane_p50}", "ours"},
	}},
	"raft": {"| clients | raftstore | plain | share, goal at least 80 % |\n|---|---|---|---|\n", []shown{
		commitsRow("1"), commitsRow("64"), commitsRow("256"),
	}},
}

var (
	place  = regexp.MustCompile(`(?s)(<!-- bench:([a-z]+) -->\n).*?(<!-- /bench -->)`)
	braces = regexp.MustCompile(`\{[a-z0-9_]+\}`)
)

// renderInto writes the numbers of a file into a document's tables.
func renderInto(document, file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var numbers map[string]entry
	if err := json.Unmarshal(raw, &numbers); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	rendered, err := render(text, numbers)
	if err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	return os.WriteFile(document, rendered, 0o644)
}

// render fills the tables of a document. A table of which nothing was measured stays.
func render(text []byte, numbers map[string]entry) ([]byte, error) {
	var failed error
	out := place.ReplaceAllFunc(text, func(found []byte) []byte {
		part := place.FindSubmatch(found)
		table, ok := tables[string(part[2])]
		if !ok {
			failed = fmt.Errorf("there is no table %q", part[2])
			return found
		}
		var b bytes.Buffer
		b.Write(part[1])
		b.WriteString(table.head)
		measured := false
		for _, row := range table.rows {
			value, goal := fill(row.value, numbers), fill(row.goal, numbers)
			measured = measured || value != notMeasured
			fmt.Fprintf(&b, "| %s | %s | %s |\n", row.what, value, goal)
		}
		if !measured {
			return found
		}
		b.Write(part[3])
		return b.Bytes()
	})
	return out, failed
}

// fill puts numbers in place of their names. A line none of whose numbers were
// measured says so.
func fill(text string, numbers map[string]entry) string {
	measured := false
	out := braces.ReplaceAllStringFunc(text, func(name string) string {
		n, ok := numbers[strings.Trim(name, "{}")]
		if !ok {
			return "?"
		}
		measured = true
		return strings.TrimSpace(thousands(number(n.Value)) + " " + unitOf(n.Unit))
	})
	if !measured && out != text {
		return notMeasured
	}
	return out
}

const notMeasured = "not measured"

// unitOf is how a unit is written behind its number.
func unitOf(unit string) string { return strings.Replace(unit, "1/s", "/s", 1) }

// thousands puts a comma before each third digit of whole numbers.
func thousands(n string) string {
	if strings.Contains(n, ".") {
		return n
	}
	for at := len(n) - 3; at > 0; at -= 3 {
		n = n[:at] + "," + n[at:]
	}
	return n
}
