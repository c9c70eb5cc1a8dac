package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/preflight"
	"github.com/berth-cloud/berth/timescale"
)

// Stack is a running Berth.
type Stack struct {
	Options

	URLs       []string // public API, one a replica
	Token      string   // an API key
	JWT        string   // of the same user
	AdminToken string

	Replicas []*Process // "r1", "r2", …
	HostProc []*Process // "h1", "h2", …

	secrets secrets
	lock    locks

	stopSupervising context.CancelFunc
	supervised      sync.WaitGroup
}

// Start starts a stack with an empty control store and empty hosts, and returns
// when every replica and host is healthy. It first removes what an earlier stack
// of the same directory left. After an error nothing is left.
func Start(ctx context.Context, o Options) (*Stack, error) {
	c, err := NewClaim(ctx, o)
	if err != nil {
		return nil, err
	}
	return c.Start(ctx)
}

// Start is Start in the claimed directory. The claim becomes the stack's.
func (c *Claim) Start(ctx context.Context) (_ *Stack, err error) {
	s := &Stack{Options: c.options, lock: c.lock, secrets: newSecrets()}
	c.lock = nil
	s.AdminToken = s.secrets.adminToken
	defer func() {
		if err != nil {
			// The caller's context may have ended; cleaning up must go on.
			err = errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
		}
	}()
	if err := s.checkPorts(); err != nil { // again: preparations may have taken minutes
		return nil, err
	}
	if s.HostMemoryMB == 0 {
		free, err := preflight.AvailableMemoryMB()
		if err != nil {
			return nil, err
		}
		s.HostMemoryMB = (free - 1024) / s.Hosts
	}
	// VMMs run as users of their own and reach their disks through data/.
	for _, dir := range []string{s.Dir, s.dataDir(""), s.Logs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	// An earlier run's snapshot rows, and the cluster that owned the store, are
	// gone with its Dir. Shared files stay; the hosts collect unused chunks.
	for _, name := range []string{"snapshots", "owner"} {
		if err := os.RemoveAll(filepath.Join(s.Snapshots, name)); err != nil {
			return nil, err
		}
	}
	if err := s.makeMachines(); err != nil {
		return nil, err
	}
	if err := s.startReplicas(ctx); err != nil {
		return nil, err
	}
	if err := s.startHosts(ctx); err != nil {
		return nil, err
	}
	if err := s.WaitHealthy(ctx); err != nil {
		return nil, err
	}
	s.JWT, s.Token, err = s.NewToken(ctx, devSubject)
	if err != nil {
		return nil, err
	}
	s.startSupervising()
	return s, nil
}

// IsRefusal reports whether err is one sentence for a person, to be shown without
// context.
func IsRefusal(err error) bool { return preflight.IsRefusal(err) }

func (s *Stack) newProcess(id, program string, args, env []string) *Process {
	return &Process{
		ID: id, Path: s.bin(program), Args: args, Env: env,
		wrap:    s.onMachine(id),
		logFile: s.logFile(id),
		record:  filepath.Join(s.recordDir(), id+".json"),
	}
}

func (s *Stack) startReplicas(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, s.bin("controlplane"), s.initArgs()...).CombinedOutput(); err != nil {
		return fmt.Errorf("controlplane init: %w: %s", err, strings.TrimSpace(string(out)))
	}
	for i := range s.Options.Replicas {
		id := s.replicaID(i)
		s.URLs = append(s.URLs, "http://"+s.apiAddress(i))
		p := s.newProcess(id, "controlplane", replicaArgs, s.replicaEnv(i, s.secrets))
		// Guests have less weight than daemons (hostd/cgroup), but other programs
		// on a developer's machine do not, and a leader that stalls for half a
		// second is replaced. In production systemd's unit sets the weight.
		p.Nice = -10
		s.Replicas = append(s.Replicas, p)
		if err := p.Start(); err != nil {
			return err
		}
	}
	return s.WaitLeader(ctx)
}

func (s *Stack) startHosts(ctx context.Context) error {
	admin, err := s.Admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	for i := range s.Options.Hosts {
		id := s.hostID(i)
		token, err := admin.CreateJoinToken(ctx, api.CreateJoinToken{TTLSeconds: new(int64(600))})
		if err != nil {
			return fmt.Errorf("make a join token for %s: %w", id, err)
		}
		join := s.command(ctx, id, append([]string{s.bin("hostd")}, s.joinArgs(i, token.Token, token.CASHA256)...)...)
		join.Env = s.hostEnv(i)
		if out, err := join.CombinedOutput(); err != nil {
			return fmt.Errorf("join %s to the cluster: %w: %s", id, err, strings.TrimSpace(string(out)))
		}
		p := s.newProcess(id, "hostd", hostArgs, s.hostEnv(i))
		s.HostProc = append(s.HostProc, p)
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Process returns a replica or a host by its id.
func (s *Stack) Process(id string) *Process {
	for _, p := range append(append([]*Process(nil), s.Replicas...), s.HostProc...) {
		if p.ID == id {
			return p
		}
	}
	return nil
}

// DataDir returns the directory of a replica's or host's state.
func (s *Stack) DataDir(id string) string { return s.dataDir(id) }

// Leader returns the leader according to the replicas; nil if there is none.
func (s *Stack) Leader(ctx context.Context) *Process {
	for _, u := range s.URLs {
		client, err := api.NewClient(nil, s.AdminToken, u)
		if err != nil {
			return nil
		}
		ask, cancel := context.WithTimeout(ctx, time.Second)
		status, err := client.RaftStatus(ask)
		cancel()
		client.Close()
		if err == nil && status.State == "leader" {
			return s.Process(status.NodeID)
		}
	}
	return nil
}

// startSupervising supervises the processes if Options.Supervise is set.
func (s *Stack) startSupervising() {
	if !s.Supervise {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stopSupervising = cancel
	for _, p := range append(append([]*Process(nil), s.Replicas...), s.HostProc...) {
		s.supervised.Go(func() { p.supervise(ctx, s.Notify) })
	}
}

// Stop stops everything and checks that no kernel resources are left; the error
// names what is.
func (s *Stack) Stop(ctx context.Context) error {
	if s.stopSupervising != nil {
		s.stopSupervising()
		s.supervised.Wait()
	}
	ctx, cancel := context.WithTimeout(ctx, timescale.Limit(2*time.Minute))
	defer cancel()
	err := s.stopProcesses(ctx)
	err = errors.Join(err, s.takeDown(ctx))
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// Abandon leaves the stack as if we had died: its processes keep running, and the
// next Start or Down of its directory stops them.
func (s *Stack) Abandon() {
	if s.stopSupervising != nil {
		s.stopSupervising()
		s.supervised.Wait()
	}
	s.lock.Close()
}

// stopProcesses stops the hosts first, so that they can still inform the control
// plane, and then the replicas. A host waits for open requests, and for guests that flush
// their volumes.
func (s *Stack) stopProcesses(ctx context.Context) error {
	patience := timescale.Limit(45 * time.Second)
	var failed error
	for _, kind := range [][]*Process{s.HostProc, s.Replicas} {
		ctx, cancel := context.WithTimeout(ctx, patience)
		errs := make([]error, len(kind))
		var all sync.WaitGroup
		for i, p := range kind {
			all.Go(func() { errs[i] = p.Stop(ctx) })
		}
		all.Wait()
		cancel()
		failed = errors.Join(failed, errors.Join(errs...))
	}
	return failed
}
