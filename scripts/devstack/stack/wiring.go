package stack

import (
	"cmp"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/timescale"
)

// Suffixes of the names of previews and apps.
func (o Options) previewSuffix() string { return "preview." + o.Domain }
func (o Options) appSuffix() string     { return "app." + o.Domain }

// What an app's guest has here; on hosts it is four times as much.
const (
	appCPU      = "2"
	appMemoryMB = "1024"
)

// deployBudget is what a deployment may take here: an emulated guest compiles what a
// framework brings many times more slowly than those on hosts.
const deployBudget = "40m"

// DBDomain is what follows a database's id in its name.
const DBDomain = "db.localhost"

// This file has everything that this package passes to Berth's programs:
// subcommands, flags and environment.

// inherited returns the part of our environment that a child gets: what it needs
// to find tools, and the settings that up, conformance and hostd share.
func inherited() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "BERTH_GITHUB_") {
			env = append(env, kv)
			continue
		}
		switch name {
		case "PATH", "HOME", "TMPDIR", "LANG", "BERTH_VMM", "BERTH_KERNEL", "BERTH_ALLOWED_CIDRS", "BERTH_RESOLVERS", "BERTH_HOST_LEASE", "BERTH_KEPT_GRACE", "BERTH_EVENT_RETENTION", timescale.Env,
			"BERTH_DB_IDLE", "BERTH_DB_FIRST_BACKUP", "BERTH_DB_ARCHIVE_INTERVAL", "BERTH_DB_TARGET_TIME_MIN_AGE", "BERTH_DB_FAILOVER_ETA",
			"BERTH_DB_BACKUP_INTERVAL", "BERTH_DB_RETENTION", "BERTH_ARCHIVE_QUOTA", "BERTH_DB_KEEP_DISKS", "BERTH_DB_MAX_PER_WORKSPACE", "BERTH_TIERS", "BERTH_DEFAULT_TIER", "BERTH_WEBHOOK_DELAYS", "BERTH_WEBHOOK_TIMEOUT", "BERTH_WEBHOOK_MAX_ENDPOINTS", "BERTH_WEBHOOK_ALLOW_PRIVATE",
			"BERTH_APP_SWEEP", "BERTH_APP_MIN_IDLE", "BERTH_APP_IDLE", "BERTH_APP_LAST_REQUEST", "BERTH_VOLUME_QUOTA_MB", "BERTH_VOLUME_SIZE_MB", "BERTH_VOLUME_MAX_MB", "BERTH_FORK_MAX", "BERTH_REQUEST_ID_MAX", "BERTH_APP_WAKE_HOLD", "BERTH_APP_HEALTH", "BERTH_APP_DRAIN", "BERTH_APP_MAX_PER_WORKSPACE", "BERTH_FUNCTION_IDLE", "BERTH_APP_CACHE_MB", "BERTH_DEPLOY_BUDGET", "BERTH_GIT_ALLOW_HTTP", "BERTH_DOMAIN_RESOLVERS", "BERTH_TRUSTED_PROXIES",
			"BERTH_PRICES", "BERTH_USAGE_INTERVAL", "BERTH_BILLING_SYNC", "BERTH_STRIPE_KEY", "BERTH_STRIPE_URL", "BERTH_OIDC_ISSUERS",
			"BERTH_GITLAB_WEBHOOK_SECRET", "BERTH_GITEA_WEBHOOK_SECRET",
			"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY":
			env = append(env, kv)
		}
	}
	return env
}

// initArgs creates the cluster's CA and one directory per replica below pki/.
func (o Options) initArgs() []string {
	args := []string{"init", "--dir", filepath.Join(o.Dir, "pki")}
	for i := range o.Replicas {
		args = append(args, "--replica", o.replicaID(i)+"="+o.address(o.replicaID(i), o.peerPort(i)))
	}
	return args
}

func (o Options) replicaEnv(i int, s secrets) []string {
	id := o.replicaID(i)
	peers := make([]string, o.Replicas)
	for j := range peers {
		peers[j] = o.replicaID(j) + "=" + o.address(o.replicaID(j), o.peerPort(j))
	}
	env := append(inherited(),
		"BERTH_NODE_ID="+id,
		"BERTH_DATA_DIR="+o.dataDir(id),
		"BERTH_PKI_DIR="+o.pkiDir(id),
		"BERTH_LISTEN="+o.apiAddress(i),
		"BERTH_PEER_LISTEN="+o.address(id, o.peerPort(i)),
		"BERTH_PEERS="+strings.Join(peers, ","),
		"BERTH_ADMIN_TOKEN="+s.adminToken,
		JWTKey+"="+s.jwtKey,
		"BERTH_JWT_ISSUER="+devIssuer,
		"BERTH_PREVIEW_SUFFIX="+o.previewSuffix(),
		"BERTH_PREVIEW_URL=http://{port}-{id}."+o.previewSuffix()+":"+strconv.Itoa(o.apiPort(i)),
		"BERTH_APP_SUFFIX="+o.appSuffix(),
		"BERTH_APP_URL=http://{id}."+o.appSuffix()+":"+strconv.Itoa(o.apiPort(i))+"/",
		"BERTH_DB_DOMAIN="+DBDomain,
		"BERTH_DB_LISTEN="+o.address(id, o.routerPort(i)),
		"BERTH_DB_ROUTER_PORT="+strconv.Itoa(o.routerPort(0)),
		"BERTH_DB_DEV_CA="+o.dbCADir(),
		"BERTH_DOMAIN_LISTEN="+o.address(id, o.domainPort(i)),
		"BERTH_DOMAIN_URL=https://{domain}:"+strconv.Itoa(o.domainPort(i))+"/",
		"BERTH_DOMAIN_DEV_CA="+o.domainCADir(),
		"BERTH_LOG_FORMAT=json",
		"BERTH_DEPLOY_BUDGET="+cmp.Or(os.Getenv("BERTH_DEPLOY_BUDGET"), deployBudget),
	)
	return append(env, o.ReplicaEnv...)
}

func (o Options) joinArgs(i int, token, caSHA256 string) []string {
	return []string{
		"join",
		"--peer", o.address(o.replicaID(0), o.peerPort(0)),
		"--token", token,
		"--ca-sha256", caSHA256,
		"--dir", o.pkiDir(o.hostID(i)),
	}
}

// hostEnv returns the environment of a host. HostEnv may overrule it.
func (o Options) hostEnv(i int) []string {
	env := append(o.machineEnv(i),
		"BERTH_DB_ROUTERS="+strings.Join(o.Routers(), ","),
		"BERTH_DB_DOMAIN="+DBDomain,
		"BERTH_DB_ROUTER_PORT="+strconv.Itoa(o.routerPort(0)),
		"BERTH_DB_CA="+o.dbCA(),
	)
	return append(env, o.HostEnv[o.hostID(i)]...)
}

// machineEnv is what a host needs to build templates, too.
func (o Options) machineEnv(i int) []string {
	id := o.hostID(i)
	peers := make([]string, o.Replicas)
	for j := range peers {
		peers[j] = o.address(o.replicaID(j), o.peerPort(j))
	}
	env := append(inherited(),
		"BERTH_AGENT_ID="+id,
		"BERTH_DATA_DIR="+o.dataDir(id),
		"BERTH_RUN_DIR="+runDir(id),
		"BERTH_PKI_DIR="+o.pkiDir(id),
		"BERTH_LISTEN="+o.address(id, o.hostPort(i)),
		"BERTH_PEERS="+strings.Join(peers, ","),
		"BERTH_TEMPLATE_DIR="+o.templateDir(),
		"BERTH_SNAPSHOT_STORE="+o.snapshotStore(),
		"BERTH_ARCHIVE_STORE="+o.archiveStore(),
		"BERTH_SLOT_CIDR="+o.slotCIDR(i).String(),
		"BERTH_BASE_UID="+strconv.Itoa(o.baseUID(i)),
		"BERTH_MEMORY_MB="+strconv.Itoa(o.HostMemoryMB),
		"BERTH_LOG_FORMAT=json",
		"BERTH_APP_CPU="+cmp.Or(os.Getenv("BERTH_APP_CPU"), appCPU),
		"BERTH_APP_MEMORY_MB="+cmp.Or(os.Getenv("BERTH_APP_MEMORY_MB"), appMemoryMB),
	)
	if os.Getenv("BERTH_KERNEL") == "" {
		env = append(env, "BERTH_KERNEL="+filepath.Join(o.kernelDir(), "vmlinux"))
	}
	if o.AllTemplates && i == 0 {
		env = append(env, "BERTH_TEMPLATE_SOURCES="+filepath.Join(o.Root, "templates"))
	}
	return env
}

// snapshotStore returns the directory that all hosts of the stack share.
func (o Options) snapshotStore() string {
	return (&url.URL{Scheme: "file", Path: o.Snapshots}).String()
}

// archiveStore returns the directory of the databases' archives, which all hosts
// share. They end with the stack that has their keys.
func (o Options) archiveStore() string {
	return (&url.URL{Scheme: "file", Path: o.Archives()}).String()
}

// Archives is the directory of archiveStore.
func (o Options) Archives() string { return filepath.Join(o.Dir, "archives") }

// Routers returns where the replicas' PostgreSQL routers are.
func (o Options) Routers() []string {
	out := make([]string, o.Replicas)
	for i := range out {
		out[i] = o.address(o.replicaID(i), o.routerPort(i))
	}
	return out
}

// runDir contains a host's sockets, whose paths must be short.
func runDir(id string) string { return "/run/berth/" + id }

func (o Options) recordDir() string { return filepath.Join(o.Dir, "procs") }

// The subcommands that run a daemon, that remove its sandboxes, and that open the
// store of templates.
var (
	replicaArgs   = []string{"serve"}
	hostArgs      = []string{"serve"}
	purgeArgs     = []string{"purge"}
	openStoreArgs = []string{"template", "list"}
)

// buildEnv returns the environment of a separate host for one build. Its one slot
// is removed when the build ends, and it shares nothing with a running stack.
func (o Options) buildEnv(host int) []string {
	o.HostPrefix, o.Hosts, o.HostRange, o.AllTemplates, o.Machines = buildPrefix, maxHosts, buildRange, false, false
	return append(o.machineEnv(host), o.HostEnv[o.hostID(host)]...)
}
