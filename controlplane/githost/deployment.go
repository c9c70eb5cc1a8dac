package githost

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

// The states of a deployment that GitHub has beside those of a commit.
const (
	stateInProgress = "in_progress"
	stateInactive   = "inactive" // it serves no more
)

// tellGitHub sets the status of a commit, and that of the deployment which GitHub shows
// beside it. It returns the deployment's id at GitHub, 0 if there is none: an App without
// the permission sets statuses alone.
func (g *GitHosts) tellGitHub(ctx context.Context, s due) (remote int64, err error) {
	if s.state != stateInactive && !s.superseded {
		if err := g.setStatus(ctx, s); err != nil {
			return s.remote, err
		}
	}
	remote, err = g.setDeployment(ctx, s)
	if err != nil && final(err) {
		g.core.Logger.InfoContext(ctx, "github takes no deployment", "deployment_id", s.id, "error", err)
		err = nil
	}
	return remote, err
}

// setDeployment makes the deployment at GitHub, unless it is there, and sets its state.
func (g *GitHosts) setDeployment(ctx context.Context, s due) (remote int64, err error) {
	auth, err := g.github.asInstallation(ctx, s.installation, s.repo, toDeploy)
	if err != nil {
		return s.remote, err
	}
	at := "/repos/" + s.owner + "/" + s.repo + "/deployments"
	remote = s.remote
	switch {
	case remote != 0:
	case s.environment == "": // it is gone
		return 0, nil
	default:
		if remote, err = g.findDeployment(ctx, s, at, auth); err == nil && remote == 0 {
			remote, err = g.createDeployment(ctx, s, at, auth)
		}
		if err != nil {
			return 0, err
		}
	}
	state := s.state
	if state == statePending {
		state = stateInProgress
	}
	in := struct {
		State       string `json:"state"`
		URL         string `json:"environment_url,omitempty"`
		Description string `json:"description"`
	}{state, s.url, s.description}
	return remote, g.github.do(ctx, request{
		method: http.MethodPost, url: fmt.Sprintf("%s/%d/statuses", at, remote), auth: auth, limit: s.installation, in: in,
	}, nil)
}

// payload is what a deployment at GitHub says of ours, by which it is found again.
type payload struct {
	Deployment string `json:"berth_deployment"`
}

func (g *GitHosts) createDeployment(ctx context.Context, s due, at, auth string) (int64, error) {
	in := struct {
		Ref         string   `json:"ref"`
		AutoMerge   bool     `json:"auto_merge"`
		Contexts    []string `json:"required_contexts"` // none: the commit is deployed already
		Payload     payload  `json:"payload"`
		Environment string   `json:"environment"`
		Transient   bool     `json:"transient_environment"`
		Production  bool     `json:"production_environment"`
	}{s.commit, false, []string{}, payload{s.id}, s.environment, s.preview, !s.preview}
	var made struct {
		ID int64 `json:"id"`
	}
	err := g.github.do(ctx, request{method: http.MethodPost, url: at, auth: auth, limit: s.installation, in: in}, &made)
	if err == nil && made.ID <= 0 {
		err = unreachable(fmt.Errorf("it made a deployment without an id"))
	}
	return made.ID, err
}

// findDeployment looks for a deployment that an attempt has made whose answer was lost.
func (g *GitHosts) findDeployment(ctx context.Context, s due, at, auth string) (int64, error) {
	var out []struct {
		ID      int64           `json:"id"`
		Payload json.RawMessage `json:"payload"`
	}
	query := url.Values{"sha": {s.commit}, "environment": {s.environment}, "per_page": {"100"}}
	err := g.github.do(ctx, request{method: http.MethodGet, url: at + "?" + query.Encode(), auth: auth, limit: s.installation}, &out)
	for _, d := range out {
		var p payload
		if json.Unmarshal(d.Payload, &p) == nil && p.Deployment == s.id { // others have payloads of any kind
			return d.ID, err
		}
	}
	return 0, err
}
