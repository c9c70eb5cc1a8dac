// Package fakegithub is a stand-in for GitHub in tests: it speaks the part of the
// documented REST API that a GitHub App uses, checks every credential as GitHub does, and
// makes the documented payloads of webhooks.
package fakegithub

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// AppID and the others are of the only app.
const (
	AppID         = "4711"
	Slug          = "berth-test"
	WebhookSecret = "a secret of the webhooks"
	ClientID      = "Iv1.client"
	ClientSecret  = "a secret of oauth"
)

// Installation is one of the app.
type Installation struct {
	ID        int64
	Account   string
	AccountID int64
	Org       bool
	Repos     []string // names in the account
	CreatedAt time.Time
	Suspended bool
}

// Status is a commit status that was set.
type Status struct{ Repo, Commit, State, TargetURL, Description, Context string }

// Deployment is one that was made, with the states that were set, in order.
type Deployment struct {
	ID          int64           `json:"id"`
	Repo        string          `json:"-"`
	Ref         string          `json:"ref"`
	Environment string          `json:"environment"`
	Transient   bool            `json:"transient_environment"`
	Production  bool            `json:"production_environment"`
	AutoMerge   *bool           `json:"auto_merge,omitempty"`
	Contexts    []string        `json:"required_contexts,omitempty"`
	Payload     json.RawMessage `json:"payload"`
	States      []string        `json:"-"`
	URL         string          `json:"-"` // of the latest state
}

// Comment is one of a pull request.
type Comment struct {
	ID     int64  `json:"id"`
	Number int    `json:"-"`
	Repo   string `json:"-"`
	Body   string `json:"body"`
	User   struct {
		Type string `json:"type"`
	} `json:"user"`
	Edits int `json:"-"`
}

// person is a user who can be asked about by OAuth.
type person struct {
	id       int64
	sees     []int64
	admins   []string
	tokenFor string
}

type token struct {
	installation int64
	repos        []string // names; none: all
	may          map[string]string
	expires      time.Time
}

// GitHub is the stand-in.
type GitHub struct {
	URL   string
	Key   *rsa.PrivateKey // of the app
	Clock func() time.Time

	mu            sync.Mutex
	installations map[int64]*Installation
	tokens        map[string]token
	people        map[string]*person // by code, and by token
	statuses      []Status
	comments      []*Comment
	deployments   []*Deployment
	withheld      string               // a permission that the app has not
	public        map[string]string    // what is there of repositories that left their installation, as owner/name
	closed        map[string]time.Time // the pull requests that are closed, as owner/name#number
	calls         []string
	fault         func(w http.ResponseWriter, r *http.Request) bool
	lose          func() bool
	loseDeployed  func() bool
	last          int64
}

// key is made once: it takes a while.
var key = sync.OnceValue(func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
})

// New starts a stand-in until the test ends.
func New(t testing.TB, clock func() time.Time) *GitHub {
	t.Helper()
	g, stop := Start(clock)
	t.Cleanup(stop)
	return g
}

// Start starts a stand-in.
func Start(clock func() time.Time) (g *GitHub, stop func()) {
	g = &GitHub{Key: key(), Clock: clock, installations: map[int64]*Installation{}, tokens: map[string]token{}, people: map[string]*person{}, public: map[string]string{}, closed: map[string]time.Time{}, last: 1000}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /app/installations/{id}", g.getInstallation)
	mux.HandleFunc("DELETE /app/installations/{id}", g.deleteInstallation)
	mux.HandleFunc("POST /app/installations/{id}/access_tokens", g.createToken)
	mux.HandleFunc("GET /installation/repositories", g.repositories)
	mux.HandleFunc("POST /login/oauth/access_token", g.exchange)
	mux.HandleFunc("GET /user", g.user)
	mux.HandleFunc("GET /user/installations", g.userInstallations)
	mux.HandleFunc("GET /user/installations/{id}/repositories", g.userRepositories)
	mux.HandleFunc("GET /user/memberships/orgs/{org}", g.membership)
	mux.HandleFunc("POST /repos/{owner}/{repo}/statuses/{sha}", g.setStatus)
	mux.HandleFunc("GET /repos/{owner}/{repo}/deployments", g.listDeployments)
	mux.HandleFunc("POST /repos/{owner}/{repo}/deployments", g.createDeployment)
	mux.HandleFunc("POST /repos/{owner}/{repo}/deployments/{id}/statuses", g.setDeploymentStatus)
	mux.HandleFunc("GET /repos/{owner}/{repo}", g.getRepo)
	mux.HandleFunc("GET /repos/{owner}/{repo}/pulls/{number}", g.getPull)
	mux.HandleFunc("GET /repos/{owner}/{repo}/issues/{number}/comments", g.listComments)
	mux.HandleFunc("POST /repos/{owner}/{repo}/issues/{number}/comments", g.createComment)
	mux.HandleFunc("PATCH /repos/{owner}/{repo}/issues/comments/{id}", g.editComment)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.calls = append(g.calls, r.Method+" "+r.URL.Path)
		fault := g.fault
		g.mu.Unlock()
		if fault != nil && fault(w, r) {
			return
		}
		if r.Header.Get("User-Agent") == "" {
			refuse(w, 403, "Request forbidden by administrative rules.")
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	g.URL = server.URL
	return g, server.Close
}

// Install adds an installation; without an id it gets one.
func (g *GitHub) Install(i Installation) *Installation {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i.ID == 0 {
		g.last++
		i.ID = g.last
	}
	if i.CreatedAt.IsZero() {
		i.CreatedAt = g.Clock()
	}
	if i.AccountID == 0 {
		i.AccountID = i.ID + 1_000_000
	}
	g.installations[i.ID] = &i
	return &i
}

// Person adds one who has an OAuth code, sees some installations, and owns some
// organizations. Of an installation in another's account a person can read all repositories;
// who administers some (account/name among admins) can read these alone.
func (g *GitHub) Person(code string, id int64, sees []int64, admins ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.people[code] = &person{id: id, sees: sees, admins: admins, tokenFor: "gho_" + code}
}

// Break has a function answer calls; it returns false for those that it leaves alone.
func (g *GitHub) Break(fault func(w http.ResponseWriter, r *http.Request) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault = fault
}

// AfterDeployment has a function say whether the answer to a deployment that was made is
// lost.
func (g *GitHub) AfterDeployment(lose func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.loseDeployed = lose
}

// AfterComment has a function say whether the answer to a comment that was made is lost.
func (g *GitHub) AfterComment(lose func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lose = lose
}

// Calls are the method and path of every call so far that begins with a prefix.
func (g *GitHub) Calls(prefix string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.calls), func(c string) bool { return !strings.HasPrefix(c, prefix) })
}

// Statuses are those that were set, in order.
func (g *GitHub) Statuses() []Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.statuses)
}

// Deployments are those that were made, in order.
func (g *GitHub) Deployments() []Deployment {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []Deployment
	for _, d := range g.deployments {
		c := *d
		c.States = slices.Clone(d.States)
		out = append(out, c)
	}
	return out
}

// Withhold takes a permission from the app.
func (g *GitHub) Withhold(permission string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.withheld = permission
}

// Comments are those that there are.
func (g *GitHub) Comments() []Comment {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []Comment
	for _, c := range g.comments {
		out = append(out, *c)
	}
	return out
}

// AddComment writes one as a person.
func (g *GitHub) AddComment(repo string, number int, body string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	c := &Comment{ID: g.last, Repo: repo, Number: number, Body: body}
	c.User.Type = "User"
	g.comments = append(g.comments, c)
}

// Close closes a pull request.
func (g *GitHub) Close(repo string, number int, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed[repo+"#"+strconv.Itoa(number)] = at
}

// Uninstall removes an installation.
func (g *GitHub) Uninstall(i *Installation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.installations, i.ID)
}

// Leave takes a repository from its installation: its account has deleted it, given it
// away, or no longer selects it. Such a one that is public can still be read, as
// owner/name; "" is for one that cannot.
func (g *GitHub) Leave(i *Installation, repo, public string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i.Repos = slices.DeleteFunc(i.Repos, func(name string) bool { return name == repo })
	g.public[i.Account+"/"+repo] = public
}

// DeleteComment removes one.
func (g *GitHub) DeleteComment(id int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.comments = slices.DeleteFunc(g.comments, func(c *Comment) bool { return c.ID == id })
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]any{"message": message, "documentation_url": "https://docs.github.com/rest", "status": strconv.Itoa(status)})
}

func bearer(r *http.Request) string {
	b, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return b
}

// asApp checks the app's own token as GitHub does: RS256, its issuer, and at most ten
// minutes.
func (g *GitHub) asApp(w http.ResponseWriter, r *http.Request) bool {
	var claims jwt.RegisteredClaims
	_, err := jwt.ParseWithClaims(bearer(r), &claims, func(*jwt.Token) (any, error) { return &g.Key.PublicKey, nil },
		jwt.WithValidMethods([]string{"RS256"}), jwt.WithTimeFunc(g.Clock), jwt.WithIssuedAt(), jwt.WithExpirationRequired(), jwt.WithIssuer(AppID))
	if err != nil || claims.ExpiresAt.Sub(g.Clock()) > 10*time.Minute {
		refuse(w, 401, "A JSON web token could not be decoded")
		return false
	}
	return true
}

// asInstallation checks a token of an installation, for a repository and a permission.
func (g *GitHub) asInstallation(w http.ResponseWriter, r *http.Request, permission, level string) (*Installation, bool) {
	t, ok := g.tokens[bearer(r)]
	i := g.installations[t.installation]
	switch {
	case !ok || !g.Clock().Before(t.expires) || i == nil:
		refuse(w, 401, "Bad credentials")
		return nil, false
	case i.Suspended:
		refuse(w, 403, "This installation has been suspended")
		return nil, false
	case t.may[permission] != level:
		refuse(w, 403, "Resource not accessible by integration")
		return nil, false
	}
	if repo := r.PathValue("repo"); repo != "" {
		if r.PathValue("owner") != i.Account || !slices.Contains(i.Repos, repo) || len(t.repos) > 0 && !slices.Contains(t.repos, repo) {
			refuse(w, 404, "Not Found")
			return nil, false
		}
	}
	return i, true
}

func (g *GitHub) ofPath(w http.ResponseWriter, r *http.Request) (*Installation, bool) {
	if !g.asApp(w, r) {
		return nil, false
	}
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
	i := g.installations[id]
	if i == nil {
		refuse(w, 404, "Not Found")
	}
	return i, i != nil
}

func (i *Installation) json() map[string]any {
	kind := "User"
	if i.Org {
		kind = "Organization"
	}
	var suspended any
	if i.Suspended {
		suspended = i.CreatedAt
	}
	id, _ := strconv.Atoi(AppID)
	return map[string]any{
		"id": i.ID, "app_id": id, "app_slug": Slug, "target_type": kind, "repository_selection": "selected",
		"account":    map[string]any{"login": i.Account, "id": i.AccountID, "type": kind, "site_admin": false},
		"created_at": i.CreatedAt.UTC().Format(time.RFC3339), "updated_at": i.CreatedAt.UTC().Format(time.RFC3339), "suspended_at": suspended,
		"permissions": map[string]string{"contents": "read", "metadata": "read", "statuses": "write", "deployments": "write", "pull_requests": "write"},
		"events":      []string{"push", "pull_request"},
	}
}

func (g *GitHub) getInstallation(w http.ResponseWriter, r *http.Request) {
	if i, ok := g.ofPath(w, r); ok {
		answer(w, 200, i.json())
	}
}

func (g *GitHub) deleteInstallation(w http.ResponseWriter, r *http.Request) {
	if i, ok := g.ofPath(w, r); ok {
		delete(g.installations, i.ID)
		w.WriteHeader(http.StatusNoContent)
	}
}

func (g *GitHub) createToken(w http.ResponseWriter, r *http.Request) {
	i, ok := g.ofPath(w, r)
	if !ok {
		return
	}
	var in struct {
		Repositories []string          `json:"repositories"`
		Permissions  map[string]string `json:"permissions"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		refuse(w, 400, "Problems parsing JSON")
		return
	}
	if i.Suspended {
		refuse(w, 403, "This installation has been suspended")
		return
	}
	if in.Permissions[g.withheld] != "" {
		refuse(w, 422, "The permissions requested are not granted to this installation.")
		return
	}
	for _, name := range in.Repositories {
		if !slices.Contains(i.Repos, name) {
			refuse(w, 422, "There is at least one repository that does not exist or is not accessible to the parent installation.")
			return
		}
	}
	g.last++
	value, expires := fmt.Sprintf("ghs_%d", g.last), g.Clock().Add(time.Hour).UTC().Truncate(time.Second)
	g.tokens[value] = token{i.ID, in.Repositories, in.Permissions, expires}
	answer(w, 201, map[string]any{"token": value, "expires_at": expires.Format(time.RFC3339), "permissions": in.Permissions, "repository_selection": "selected"})
}

// MayClone reports whether a token can read a repository's content.
func (g *GitHub) MayClone(value, repo string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	t, ok := g.tokens[value]
	return ok && len(t.may) == 1 && t.may["contents"] == "read" && slices.Equal(t.repos, []string{repo})
}

func (g *GitHub) repositories(w http.ResponseWriter, r *http.Request) {
	i, ok := g.asInstallation(w, r, "metadata", "read")
	if !ok {
		return
	}
	perPage, _ := strconv.Atoi(r.FormValue("per_page"))
	page, _ := strconv.Atoi(r.FormValue("page"))
	from := min((page-1)*perPage, len(i.Repos))
	list := []any{}
	for at, name := range i.Repos[from:min(from+perPage, len(i.Repos))] {
		list = append(list, g.repo(i, name, int64(9000+from+at)))
	}
	answer(w, 200, map[string]any{"total_count": len(i.Repos), "repository_selection": "selected", "repositories": list})
}

func (g *GitHub) repo(i *Installation, name string, id int64) map[string]any {
	return map[string]any{
		"id": id, "name": name, "full_name": i.Account + "/" + name, "private": true, "owner": i.json()["account"],
		"clone_url": g.URL + "/" + i.Account + "/" + name + ".git", "default_branch": "main", "fork": false, "html_url": g.URL + "/" + i.Account + "/" + name,
	}
}
