package stack

import (
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/timescale"
)

// previewSuffix is under .localhost, which resolves to loopback, so that preview
// URLs need no DNS.
const previewSuffix = "preview.localhost"

// This file has everything that this package passes to Berth's programs:
// subcommands, flags and environment.

// inherited returns the part of our environment that a child gets: what it needs
// to find tools, and the settings that up, conformance and hostd share.
func inherited() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "PATH", "HOME", "TMPDIR", "LANG", "BERTH_VMM", "BERTH_KERNEL", "BERTH_ALLOWED_CIDRS", "BERTH_HOST_LEASE", timescale.Env,
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
		"BERTH_LISTEN="+o.address(id, o.apiPort(i)),
		"BERTH_PEER_LISTEN="+o.address(id, o.peerPort(i)),
		"BERTH_PEERS="+strings.Join(peers, ","),
		"BERTH_ADMIN_TOKEN="+s.adminToken,
		"BERTH_JWT_HS256_KEY="+s.jwtKey,
		"BERTH_JWT_ISSUER="+devIssuer,
		"BERTH_PREVIEW_SUFFIX="+previewSuffix,
		"BERTH_PREVIEW_URL=http://{port}-{id}."+previewSuffix+":"+strconv.Itoa(o.apiPort(i)),
		"BERTH_LOG_FORMAT=json",
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

func (o Options) hostEnv(i int) []string {
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
		"BERTH_SLOT_CIDR="+o.slotCIDR(i).String(),
		"BERTH_BASE_UID="+strconv.Itoa(o.baseUID(i)),
		"BERTH_MEMORY_MB="+strconv.Itoa(o.HostMemoryMB),
		"BERTH_LOG_FORMAT=json",
	)
	if os.Getenv("BERTH_KERNEL") == "" {
		env = append(env, "BERTH_KERNEL="+filepath.Join(o.kernelDir(), "vmlinux"))
	}
	if o.AllTemplates && i == 0 {
		env = append(env, "BERTH_TEMPLATE_SOURCES="+filepath.Join(o.Root, "templates"))
	}
	return append(env, o.HostEnv[id]...)
}

// snapshotStore returns the directory that all hosts of the stack share.
func (o Options) snapshotStore() string {
	return (&url.URL{Scheme: "file", Path: o.Snapshots}).String()
}

// runDir contains a host's sockets, whose paths must be short.
func runDir(id string) string { return "/run/berth/" + id }

func (o Options) recordDir() string { return filepath.Join(o.Dir, "procs") }

// The subcommands that run a daemon, and that remove its sandboxes.
var (
	replicaArgs = []string{"serve"}
	hostArgs    = []string{"serve"}
	purgeArgs   = []string{"purge"}
)

// buildEnv returns the environment of a separate host for one build. Its one slot
// is removed when the build ends, and it shares nothing with a running stack.
func (o Options) buildEnv(host int) []string {
	o.HostPrefix, o.Hosts, o.HostRange, o.AllTemplates, o.Machines = "build", maxHosts, buildRange, false, false
	return o.hostEnv(host)
}
