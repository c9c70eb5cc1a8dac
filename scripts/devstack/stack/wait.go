package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/timescale"
)

// BaseTemplate is the template that every stack has.
const BaseTemplate = "base"

// healthTimeout bounds each wait during a start. A replica is up within a second
// and a host within three; a loaded machine with two cores may take ten times as
// long.
var healthTimeout = timescale.Limit(60 * time.Second)

// Await calls check until it returns nil. After the timeout, the error says what
// was awaited and the last error of check.
func Await(ctx context.Context, most, every time.Duration, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		// A check that ctx interrupted says less than the one before it.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("timed out waiting until %s: %w", what, last)
		case <-tick.C:
		}
	}
}

// WaitLeader waits until every replica that should run is ready: it knows a leader.
func (s *Stack) WaitLeader(ctx context.Context) error {
	return s.await(ctx, "the replicas have a leader", s.Replicas, func(ctx context.Context) error {
		for i, p := range s.Replicas {
			if !p.Wanted() {
				continue
			}
			client, err := api.NewClient(nil, s.AdminToken, s.URLs[i])
			if err != nil {
				return err
			}
			err = client.Readyz(ctx)
			client.Close()
			if err != nil {
				return fmt.Errorf("replica %s: %w", p.ID, err)
			}
		}
		return nil
	})
}

// WaitHosts waits until every host that should run reports that it is ready, and
// the leader sees it as up, with a complete inventory and the base template
// ready. The leader alone may not have noticed a restart.
func (s *Stack) WaitHosts(ctx context.Context) error {
	admin, err := s.Admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	return s.await(ctx, "every host is ready", s.HostProc, func(ctx context.Context) error {
		for _, p := range s.HostProc {
			if p.Wanted() {
				if err := s.AskHost(ctx, p.ID); err != nil {
					return err
				}
			}
		}
		agents, _, err := admin.ListAgents(ctx, api.Page{})
		if err != nil {
			return err
		}
		for _, p := range s.HostProc {
			if !p.Wanted() {
				continue
			}
			at := slices.IndexFunc(agents, func(a api.Agent) bool { return a.ID == p.ID })
			switch {
			case at < 0:
				return fmt.Errorf("host %s has not joined", p.ID)
			case agents[at].State != "up" || !agents[at].Ready:
				return fmt.Errorf("host %s is %s, ready: %t", p.ID, agents[at].State, agents[at].Ready)
			case !slices.ContainsFunc(agents[at].Templates, isReadyBase):
				return fmt.Errorf("host %s has no template %s", p.ID, BaseTemplate)
			}
		}
		return nil
	})
}

// AskHost checks that a host itself reports that it is ready.
func (s *Stack) AskHost(ctx context.Context, id string) error {
	host, err := s.HostClient(id)
	if err != nil {
		return err
	}
	defer host.Close()
	ctx, cancel := context.WithTimeout(ctx, timescale.Limit(2*time.Second))
	defer cancel()
	if err := host.Readyz(ctx); err != nil {
		return fmt.Errorf("host %s: %w", id, err)
	}
	return nil
}

func isReadyBase(t api.AgentTemplate) bool { return t.Name == BaseTemplate && t.Status == "ready" }

// WaitHealthy waits for the leader and then for the hosts.
func (s *Stack) WaitHealthy(ctx context.Context) error {
	if err := s.WaitLeader(ctx); err != nil {
		return err
	}
	return s.WaitHosts(ctx)
}

// await fails early, with the end of its log, if one of the awaited processes has
// died and nothing starts it again: supervision begins when the stack is healthy.
func (s *Stack) await(ctx context.Context, what string, procs []*Process, check func(context.Context) error) error {
	dead := errors.New("a process ended")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := Await(ctx, healthTimeout, 50*time.Millisecond, what, func(ctx context.Context) error {
		for _, p := range procs {
			if p.Wanted() && !p.Running() && s.stopSupervising == nil {
				err := fmt.Errorf("%w: %s (%s); the end of its log:\n%s", dead, p.ID, describeExit(p.Exit()), tail(p.logFile, 12))
				cancel(err)
				return err
			}
		}
		return check(ctx)
	})
	if cause := context.Cause(ctx); errors.Is(cause, dead) {
		return cause
	}
	return err
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return "  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
