package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

var errBadHeartbeat = errors.New("bad heartbeat")

// Heartbeat records a heartbeat. The host is up from then on; that is committed only
// if it was not.
func (r *Registry) Heartbeat(ctx context.Context, hb hostapi.Heartbeat) (hostapi.HeartbeatReply, error) {
	return r.hear(ctx, hb, nil)
}

// HeartbeatPart is Heartbeat for the part that has changed since the one before. The error
// is errGap if this leader has not heard that one.
func (r *Registry) HeartbeatPart(ctx context.Context, p hostapi.HeartbeatPart) (hostapi.HeartbeatReply, error) {
	return r.hear(ctx, p.Heartbeat, &p)
}

var errGap = errors.New("the heartbeat before this one is not known here; send a whole one")

// hear records a heartbeat, or the one that a part stands for.
func (r *Registry) hear(ctx context.Context, hb hostapi.Heartbeat, part *hostapi.HeartbeatPart) (hostapi.HeartbeatReply, error) {
	if err := checkHeartbeat(hb); err != nil {
		return hostapi.HeartbeatReply{}, err
	}
	agent, ok := raftstore.Get(r.cfg.Store.View(), record.Hosts, hb.HostID)
	if !ok {
		return hostapi.HeartbeatReply{}, fmt.Errorf("%w: %s", ErrUnknownHost, hb.HostID)
	}
	if err := r.take(hb, part); err != nil {
		return hostapi.HeartbeatReply{}, err
	}
	if agent.State != record.HostUp || agent.Address != hb.Address {
		if err := r.concludeUp(ctx, hb); err != nil {
			return hostapi.HeartbeatReply{}, err
		}
	}
	r.mu.Lock()
	term := r.term
	r.mu.Unlock()
	status := r.cfg.Store.Status()
	reply := hostapi.HeartbeatReply{
		Cluster: r.cluster(), Term: term, IntervalSeconds: r.cfg.Interval.Seconds(), LeaseSeconds: r.cfg.Lease.Seconds(),
	}
	for _, p := range status.Peers {
		reply.Peers = append(reply.Peers, p.Address)
		reply.Replicas = append(reply.Replicas, p.ID)
	}
	if row, ok := raftstore.Get(r.cfg.Store.View(), record.Clusters, record.ClusterID); ok {
		reply.RemovedRouters = row.RemovedRouters
	}
	return reply, nil
}

func checkHeartbeat(hb hostapi.Heartbeat) error {
	host, port, err := net.SplitHostPort(hb.Address)
	if err != nil || host == "" {
		return fmt.Errorf("%w: address %q is no host:port", errBadHeartbeat, hb.Address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%w: address %q has no port", errBadHeartbeat, hb.Address)
	}
	if hb.BootID == "" {
		return fmt.Errorf("%w: no boot_id", errBadHeartbeat)
	}
	return nil
}

func (r *Registry) concludeUp(ctx context.Context, hb hostapi.Heartbeat) error {
	err := r.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		agent, ok := raftstore.Get(tx, record.Hosts, hb.HostID)
		if !ok {
			return fmt.Errorf("%w: %s", ErrUnknownHost, hb.HostID)
		}
		if agent.State == record.HostUp && agent.Address == hb.Address {
			return nil
		}
		agent = agent.Clone()
		agent.State, agent.Address = record.HostUp, hb.Address
		raftstore.Put(tx, record.Hosts, agent)
		return nil
	})
	if err != nil {
		return fmt.Errorf("note that host %s is up: %w", hb.HostID, err)
	}
	r.cfg.Logger.InfoContext(ctx, "host is up", "agent_id", hb.HostID, "address", hb.Address, "engine", hb.Versions.ShortEngine())
	return nil
}

// ServeHeartbeat handles hostapi.PathHeartbeat and PathHeartbeatPart. host is the name in
// the caller's certificate.
func (r *Registry) ServeHeartbeat(w http.ResponseWriter, req *http.Request, host string) {
	if req.Method != http.MethodPost {
		answerError(w, http.StatusMethodNotAllowed, hostapi.CodeInvalid, "POST only")
		return
	}
	// A whole heartbeat is a part that says all.
	var in hostapi.HeartbeatPart
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, hostapi.MaxHeartbeat)).Decode(&in); err != nil {
		answerError(w, http.StatusBadRequest, hostapi.CodeInvalid, "heartbeat is not valid JSON")
		return
	}
	if in.HostID != host {
		answerError(w, http.StatusForbidden, hostapi.CodeUnauthorized, "the certificate is of host "+host)
		return
	}
	var reply hostapi.HeartbeatReply
	var err error
	if req.URL.Path == hostapi.PathHeartbeatPart {
		reply, err = r.HeartbeatPart(req.Context(), in)
	} else {
		reply, err = r.Heartbeat(req.Context(), in.Heartbeat)
	}
	switch {
	case errors.Is(err, errGap):
		answerError(w, http.StatusConflict, hostapi.CodeHeartbeatGap, err.Error())
	case err == nil:
		answer(w, http.StatusOK, reply)
	case errors.Is(err, errBadHeartbeat):
		answerError(w, http.StatusBadRequest, hostapi.CodeInvalid, err.Error())
	case errors.Is(err, ErrUnknownHost) && r.isLeading():
		answerError(w, http.StatusForbidden, hostapi.CodeUnauthorized, err.Error())
	case notLeading(err), errors.Is(err, ErrUnknownHost): // a follower may not know the newest hosts
		id, address := r.cfg.Store.Leader()
		answer(w, http.StatusMisdirectedRequest, hostapi.NotLeader{LeaderID: id, LeaderAddress: address})
	default:
		r.cfg.Logger.WarnContext(req.Context(), "heartbeat failed", "agent_id", host, "error", err)
		answerError(w, http.StatusServiceUnavailable, hostapi.CodeInternal, "try again")
	}
}

func (r *Registry) isLeading() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leads()
}

func notLeading(err error) bool {
	return errors.Is(err, ErrNotLeading) || errors.Is(err, raftstore.ErrNotLeader) || errors.Is(err, raftstore.ErrLeadershipLost)
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may be gone
}

func answerError(w http.ResponseWriter, status int, code hostapi.Code, message string) {
	answer(w, status, hostapi.Error{Code: code, Message: message})
}
