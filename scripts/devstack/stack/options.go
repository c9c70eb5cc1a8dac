package stack

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/scripts/devstack/preflight"
)

// DefaultPortBase is the first of a stack's ports; see Options.PortBase.
const DefaultPortBase = preflight.DefaultPortBase

// buildRange is the HostRange in which templates are built, and buildPrefix the
// HostPrefix.
const (
	buildRange  = 7
	buildPrefix = "build"
)

// maxHosts is the number of hosts in a range.
const maxHosts = 8

// Options say what to start, and where. The zero value of every field except Root
// means its default.
type Options struct {
	Root string // the clone: bin/, templates/ and, below .berth/, the caches
	Dir  string // this stack's own files, wiped by Start; default <Root>/.berth/run
	Logs string // one log file per process; default <Root>/.berth/log

	// PortBase is the first of 30 ports: the replicas' public API is at +1, +2
	// and +3, their PostgreSQL routers at +6 and on, their peer ports at +11 and
	// on, the hosts' API at +21 and on.
	// Default BERTH_PORT_BASE, else 7500.
	PortBase int

	// Address is where the replicas serve the API, previews and apps: an IPv4 address
	// of this machine that others reach. Default: loopback. Everything else stays there.
	Address string
	// Domain is what the names of previews and apps end in. Default: localhost, which
	// resolves to loopback without DNS; with an Address its name at nip.io, whose DNS
	// answers with the address that a name contains.
	Domain string

	Replicas int // default 3
	Hosts    int // default 2

	// HostPrefix and HostRange keep stacks on one machine apart. Host ids are
	// the prefix and a number (default "h": h1, h2). HostRange (0 to 6) chooses
	// the range of slot addresses and of user ids.
	HostPrefix string
	HostRange  int

	// Snapshots is the directory of the hosts' snapshot store. Default:
	// <Dir>/snapshots, or <Root>/.berth/snapshots for the default Dir, where
	// template builds are kept for later runs and snapshots are not.
	Snapshots string

	HostMemoryMB int // each host's memory for sandboxes; default: half of what is free now

	// HostEnv adds to one host's environment, by host id; ReplicaEnv to every
	// replica's.
	HostEnv    map[string][]string
	ReplicaEnv []string

	// Templates are those that Prepare builds, each after the one it is based on;
	// default: only base. With AllTemplates the first host builds the others in
	// templates/ when they are requested; measurements leave it off, because
	// builds use CPU.
	Templates    []string
	AllTemplates bool

	// StoreTemplates has Prepare put the templates into the snapshot store. Otherwise
	// each host compresses them while the first sandboxes of the new stack wait.
	StoreTemplates bool

	// Builds is how many templates Prepare builds at once. Default: as many as
	// there are CPUs, because a build's guest has one CPU and does not use it all
	// the time.
	Builds int

	// Machines gives each replica and each host its own network namespace, so
	// that Cut can disconnect it. By default all are on loopback.
	Machines bool

	// Supervise restarts processes that end by themselves or are killed. Tests
	// leave it off and restart them themselves.
	Supervise bool

	// Notify gets messages for a person. May be nil.
	Notify func(format string, args ...any)
}

// withDefaults fills in the defaults.
func (o Options) withDefaults() (Options, error) {
	if o.Root == "" {
		root, err := FindRoot()
		if err != nil {
			return o, err
		}
		o.Root = root
	}
	var err error
	if o.Root, err = filepath.Abs(o.Root); err != nil {
		return o, fmt.Errorf("root directory: %w", err)
	}
	if o.Snapshots == "" && o.Dir == "" {
		o.Snapshots = o.cache("snapshots")
	}
	if o.Dir == "" {
		o.Dir = o.cache("run")
	}
	if o.Snapshots == "" {
		o.Snapshots = filepath.Join(o.Dir, "snapshots")
	}
	if o.Logs == "" {
		o.Logs = o.cache("log")
	}
	if o.PortBase == 0 {
		if o.PortBase, err = preflight.PortBase(); err != nil {
			return o, err
		}
	}
	if o.Address != "" {
		if err := preflight.CheckAddress(o.Address); err != nil {
			return o, err
		}
	}
	if o.Domain == "" {
		o.Domain = "localhost"
		if o.Address != "" {
			o.Domain = strings.ReplaceAll(o.Address, ".", "-") + ".nip.io"
		}
	}
	if o.Replicas == 0 {
		o.Replicas = 3
	}
	if o.Hosts == 0 {
		o.Hosts = 2
	}
	if o.Builds <= 0 {
		o.Builds = runtime.NumCPU()
	}
	if o.HostPrefix == "" {
		o.HostPrefix = "h"
	}
	if o.HostRange < 0 || o.HostRange >= buildRange || o.Hosts > maxHosts {
		return o, fmt.Errorf("at most %d hosts, in ranges 0 to %d", maxHosts, buildRange-1)
	}
	if o.Notify == nil {
		o.Notify = func(string, ...any) {}
	}
	return o, nil
}

// FindRoot walks up from the working directory to the root of the clone, past the
// client's module below it.
func FindRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if mod, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && bytes.HasPrefix(mod, []byte("module github.com/berth-cloud/berth\n")) {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("not inside Berth's repository: no go.mod here or above")
		}
		dir = up
	}
}

// Cache returns a path below a clone's .berth/ that a VMM can open.
func Cache(root string, elem ...string) string {
	return filepath.Join(append([]string{preflight.Resolve(root, ".berth")}, elem...)...)
}

func (o Options) cache(elem ...string) string { return Cache(o.Root, elem...) }

// Caches that all stacks of a clone share.
func (o Options) templateDir() string { return o.cache("templates") }
func (o Options) kernelDir() string   { return o.cache("kernel") }

func (o Options) bin(name string) string {
	return filepath.Join(preflight.Resolve(o.Root, "bin"), name)
}

func (o Options) checkMachine(m preflight.Machine) error {
	return m.Check(o.cache(), preflight.Resolve(o.Root, "bin"))
}

func (o Options) checkRoom(m preflight.Machine) error { return m.CheckRoom(o.cache()) }

func (o Options) checkPorts() error {
	if o.Machines {
		return nil // their addresses are new, and nobody else's
	}
	return preflight.CheckPorts(preflight.Ports(o.PortBase, o.Replicas, o.Hosts))
}

func (o Options) replicaID(i int) string { return "r" + strconv.Itoa(i+1) }
func (o Options) hostID(i int) string    { return o.HostPrefix + strconv.Itoa(i+1) }

// HostIDs returns the ids of the stack's hosts.
func (o Options) HostIDs() []string {
	ids := make([]string, o.Hosts)
	for i := range ids {
		ids[i] = o.hostID(i)
	}
	return ids
}

func (o Options) apiPort(i int) int { return preflight.APIPort(o.PortBase, i) }

// apiAddress is where a replica serves users.
func (o Options) apiAddress(i int) string {
	if o.Address != "" {
		return net.JoinHostPort(o.Address, strconv.Itoa(o.apiPort(i)))
	}
	return o.address(o.replicaID(i), o.apiPort(i))
}

func (o Options) peerPort(i int) int { return preflight.PeerPort(o.PortBase, i) }
func (o Options) hostPort(i int) int { return preflight.HostPort(o.PortBase, i) }

func (o Options) routerPort(i int) int { return preflight.RouterPort(o.PortBase, i) }

func (o Options) domainPort(i int) int { return preflight.DomainPort(o.PortBase, i) }

func (o Options) pkiDir(id string) string  { return filepath.Join(o.Dir, "pki", id) }
func (o Options) dbCADir() string          { return filepath.Join(o.Dir, "db") }
func (o Options) domainCADir() string      { return filepath.Join(o.Dir, "domains") }
func (o Options) dbCA() string             { return filepath.Join(o.dbCADir(), certs.DevCAFile) }
func (o Options) dataDir(id string) string { return filepath.Join(o.Dir, "data", id) }
func (o Options) logFile(id string) string { return filepath.Join(o.Logs, id+".log") }

// slotCIDR returns a host's own /20 within 10.212.0.0/14; ranges do not overlap.
func (o Options) slotCIDR(i int) netip.Prefix {
	n := o.HostRange*8 + i
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(212 + n/16), byte(n % 16 * 16), 0}), 20)
}

// baseUID returns the first of a host's own 2,000 user ids, from 600000.
func (o Options) baseUID(i int) int { return 600000 + (o.HostRange*8+i)*2000 }

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
