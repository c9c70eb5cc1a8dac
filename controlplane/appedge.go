package controlplane

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/edge"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// appURL returns what makes the URL of an app, or nil if apps have no host names.
func (c *Config) appURL() func(id string) string {
	pattern := c.AppURL
	switch {
	case pattern == "" && c.AppSuffix == "":
		return nil
	case pattern == "":
		pattern = "https://{id}." + c.AppSuffix + "/"
	}
	return func(id string) string { return strings.ReplaceAll(pattern, "{id}", id) }
}

// How long a request may be held while its app wakes. Most clients give up sooner than
// the longest.
const (
	shortestHold = 100 * time.Millisecond
	longestHold  = 5 * time.Minute
)

func (c *Config) checkApps() error {
	switch {
	case strings.Trim(c.AppSuffix, ".") != c.AppSuffix:
		return fmt.Errorf("BERTH_APP_SUFFIX is %q, want a host name without a dot at either end", c.AppSuffix)
	case c.AppSuffix != "" && strings.EqualFold(c.AppSuffix, c.PreviewSuffix):
		return errors.New("BERTH_APP_SUFFIX and BERTH_PREVIEW_SUFFIX are the same: names under them are told apart by it")
	case c.AppURL != "" && !strings.Contains(c.AppURL, "{id}"):
		return fmt.Errorf("BERTH_APP_URL is %q, want a pattern with {id}", c.AppURL)
	case c.AppWakeHold != 0 && (c.AppWakeHold < shortestHold || c.AppWakeHold > longestHold):
		return fmt.Errorf("BERTH_APP_WAKE_HOLD is %s, want %s to %s", c.AppWakeHold, shortestHold, longestHold)
	}
	return nil
}

// openEdge creates the edge of previews and apps, before the routes that use it. awake
// and heard are what the leader does for apps; see edge.Apps.
func (s *Server) openEdge(previews *edge.Previews, apps edge.Apps) *edge.Edge {
	cfg := edge.Config{
		Find: s.findSandbox, Host: s.clients.At, Leading: s.store.IsLeader, Log: s.log, Registerer: s.metrics.registry,
		MaxRequestID: s.cfg.MaxRequestID,
	}
	if s.cfg.PreviewSuffix != "" {
		cfg.Previews = previews
	}
	if apps.Awake != nil {
		apps.Suffix, apps.Hold = s.cfg.AppSuffix, s.cfg.AppWakeHold
		apps.Domain = s.findDomain
		apps.Find = func(id string) (edge.App, bool) { return findApp(s.store.View(), id) }
		apps.Self, apps.Leader, apps.Term, apps.Transport = s.me.id, s.store.Leader, s.store.Term, s.peers
		apps.Others = func() map[string]string {
			others := map[string]string{}
			for _, p := range s.store.Status().Peers {
				if p.ID != s.me.id {
					others[p.ID] = p.Address
				}
			}
			return others
		}
		cfg.Apps = &apps
	}
	cfg.Forward = s.forwarder(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.edge.ServeHTTP(w, r) }))
	return edge.New(cfg)
}

// withEdge serves requests to host names of previews and apps, and passes all others
// to next.
func (s *Server) withEdge(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.edge.Misdirected(r):
			s.edge.RefuseMisdirected(w, r)
		case s.answerChallenge(w, r):
		case s.edge.Belongs(r.Host):
			s.edge.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (s *Server) findSandbox(id string) (*record.Sandbox, string, bool) {
	view := s.store.View()
	row, ok := raftstore.Get(view, record.Sandboxes, id)
	if !ok {
		return nil, "", false
	}
	agent, ok := raftstore.Get(view, record.Hosts, row.HostID)
	if !ok {
		return row, "", true
	}
	return row, agent.Address, true
}

// findApp reads what the edge needs to know of an app.
func findApp(view raftstore.Reader, id string) (edge.App, bool) {
	row, ok := raftstore.Get(view, record.Apps, id)
	if !ok {
		return edge.App{}, false
	}
	app := edge.App{Function: row.Kind == record.KindFunction, Status: row.Status, Live: row.DeploymentID != "", Suspended: row.Paused}
	if ws, ok := raftstore.Get(view, record.Workspaces, row.WorkspaceID); ok && (ws.Suspended || !ws.PausedAt.IsZero()) {
		app.Suspended = true // what is paused with it follows a little later
	}
	for _, i := range row.Instances {
		// The setting may have changed since the instance was started.
		port := row.Port
		if d, ok := raftstore.Get(view, record.Deployments, i.DeploymentID); ok && d.Port != 0 {
			port = d.Port
		}
		app.Instances = append(app.Instances, edge.Instance{SandboxID: i.SandboxID, Port: port})
	}
	return app, true
}
