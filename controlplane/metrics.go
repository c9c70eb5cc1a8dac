package controlplane

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// metrics are the replica's metrics, except those of requests, which httpapi has.
type metrics struct {
	registry  *prometheus.Registry
	operators *prometheus.Registry // what everybody is not shown
	create    *prometheus.HistogramVec
	failures  *prometheus.CounterVec
}

func newMetrics(version, commit string) *metrics {
	m := &metrics{
		registry:  prometheus.NewRegistry(),
		operators: prometheus.NewRegistry(),
		create: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_create_stage_seconds",
			Help: "Where the time of a sandbox's create goes. engine=\"true\" is the VMM's own start, restore or resume; " +
				"stage \"total\" is the whole, \"own\" the whole without the engine and the guest's answer.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .02, .04, .06, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"stage", "engine"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_flow_step_failures_total", Help: "Attempts of the steps of flows that failed and are repeated.",
		}, []string{"kind", "step"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_build_info", Help: "The running program; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "commit": commit, "go_version": runtime.Version()},
	})
	info.Set(1)
	m.registry.MustRegister(m.create, m.failures, info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) observeCreate(stage string, engine bool, took time.Duration) {
	label := "false"
	if engine {
		label = "true"
	}
	m.create.WithLabelValues(stage, label).Observe(took.Seconds())
}

// failingRenewals is a metric of the certificates of domains that are not renewed.
func failingRenewals(count func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_domain_renewals_failing", Help: "Certificates of apps' domains that could not be renewed at the last attempt, as this replica has them.",
	}, count)
}

func (m *metrics) flowFailed(kind, step string) { m.failures.WithLabelValues(kind, step).Inc() }

// stateCollector reads the store and the registry on each scrape.
type stateCollector struct {
	store *raftstore.Store
	hosts *hosts.Registry
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("berth_"+name, help, labels, nil)
}

var (
	descRaftState       = describe("raft_state", "1 for the state this replica is in.", "state")
	descRaftTerm        = describe("raft_term", "Raft's current term.")
	descRaftApplied     = describe("raft_applied_index", "Index of the last log entry applied.")
	descRaftCommit      = describe("raft_commit_index", "Index of the last log entry known to be committed.")
	descRaftLast        = describe("raft_last_log_index", "Index of the last log entry of this replica.")
	descRaftSnapshot    = describe("raft_last_snapshot_index", "Index of the last snapshot.")
	descRaftContact     = describe("raft_last_contact_seconds", "Since the leader was heard; 0 on the leader.")
	descDiskFree        = describe("disk_free_bytes", "Free space of the file system of the data directory.")
	descRaftWon         = describe("raft_leadership_won_total", "Times this replica came to lead.")
	descRaftLost        = describe("raft_leadership_lost_total", "Times this replica stopped leading.")
	descCommits         = describe("store_commits_total", "Transactions committed through this replica as leader.")
	descCommitSeconds   = describe("store_commit_seconds_total", "Time those took, in all.")
	descCommitFailures  = describe("store_failed_total", "Transactions that ended in an error.")
	descCommitRetries   = describe("store_retries_total", "Attempts that found what they had read changed.")
	descSandboxes       = describe("sandboxes", "Sandboxes by status, as this replica has them.", "status")
	descFlows           = describe("flows", "Live flows by kind, as this replica has them.", "kind")
	descFlowOldest      = describe("flow_oldest_seconds", "Age of the oldest live flow of a kind, as this replica has it.", "kind")
	descAgents          = describe("agents", "Hosts by state, as this replica has them.", "state")
	descAgentMemory     = describe("agent_memory_megabytes", "Memory for sandboxes on a host; on the leader only.", "agent_id")
	descAgentReserved   = describe("agent_reserved_megabytes", "Memory of it that is given out, placements under way included; on the leader only.", "agent_id")
	descAgentSlots      = describe("agent_slots", "Network slots of a host; on the leader only.", "agent_id")
	descAgentBoxes      = describe("agent_boxes", "Boxes that a host reports; on the leader only.", "agent_id")
	descAgentLastSeen   = describe("agent_last_seen_seconds", "Since a host's last heartbeat; on the leader only.", "agent_id")
	raftStates          = []string{"leader", "follower", "candidate", "shutdown"}
	allSandboxStatuses  = []record.SandboxStatus{record.SandboxStarting, record.SandboxRunning, record.SandboxPaused, record.SandboxHibernated, record.SandboxFailed, record.SandboxDeleting}
	allStateDescriptors = []*prometheus.Desc{
		descRaftState, descRaftTerm, descRaftApplied, descRaftCommit, descRaftLast, descRaftSnapshot, descRaftContact, descDiskFree, descRaftWon, descRaftLost,
		descCommits, descCommitSeconds, descCommitFailures, descCommitRetries,
		descSandboxes, descFlows, descFlowOldest, descAgents, descAgentMemory, descAgentReserved, descAgentSlots, descAgentBoxes, descAgentLastSeen,
	}
)

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range allStateDescriptors {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	st := c.store.Status()
	for _, state := range raftStates {
		v := 0.0
		if st.State == state {
			v = 1
		}
		gauge(descRaftState, v, state)
	}
	gauge(descRaftTerm, float64(st.Term))
	gauge(descRaftApplied, float64(st.AppliedIndex))
	gauge(descRaftCommit, float64(st.CommitIndex))
	gauge(descRaftLast, float64(st.LastLogIndex))
	gauge(descRaftSnapshot, float64(st.LastSnapshotIndex))
	if st.State == "leader" {
		gauge(descRaftContact, 0)
	} else if !st.LastContact.IsZero() {
		gauge(descRaftContact, time.Since(st.LastContact).Seconds())
	}
	if free, err := c.store.DiskFree(); err == nil {
		gauge(descDiskFree, float64(free))
	}
	counter(descRaftWon, float64(st.Counters.LeadershipWon))
	counter(descRaftLost, float64(st.Counters.LeadershipLost))
	counter(descCommits, float64(st.Counters.Updates))
	counter(descCommitSeconds, float64(st.Counters.UpdateNanos)/1e9)
	counter(descCommitFailures, float64(st.Counters.Failed))
	counter(descCommitRetries, float64(st.Counters.Retries))

	view := c.store.View()
	sandboxes := map[record.SandboxStatus]int{}
	for _, s := range raftstore.All(view, record.Sandboxes) {
		sandboxes[s.Status]++
	}
	for _, status := range allSandboxStatuses {
		gauge(descSandboxes, float64(sandboxes[status]), string(status))
	}
	flows, oldest := map[string]int{}, map[string]time.Time{}
	for _, f := range raftstore.All(view, record.Flows) {
		flows[f.Kind]++
		if at, any := oldest[f.Kind]; !any || f.CreatedAt.Before(at) {
			oldest[f.Kind] = f.CreatedAt
		}
	}
	for kind, n := range flows {
		gauge(descFlows, float64(n), kind)
		gauge(descFlowOldest, max(0, time.Since(oldest[kind]).Seconds()), kind)
	}
	agents := map[record.HostState]int{record.HostUp: 0, record.HostLost: 0}
	for _, a := range raftstore.All(view, record.Hosts) {
		agents[a.State]++
	}
	for state, n := range agents {
		gauge(descAgents, float64(n), string(state))
	}
	for id, s := range c.hosts.Sessions() {
		gauge(descAgentMemory, float64(s.Heartbeat.Capacity.MemoryMB), id)
		gauge(descAgentReserved, float64(s.Heartbeat.Capacity.ReservedMB+s.ReservedMB), id)
		gauge(descAgentSlots, float64(s.Heartbeat.Capacity.Slots), id)
		gauge(descAgentBoxes, float64(len(s.Heartbeat.Boxes)), id)
		gauge(descAgentLastSeen, time.Since(s.LastSeen).Seconds(), id)
	}
}
