package fakegithub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (g *GitHub) exchange(w http.ResponseWriter, r *http.Request) {
	var in map[string]string
	_ = json.NewDecoder(r.Body).Decode(&in)
	p := g.people[in["code"]]
	if in["client_id"] != ClientID || in["client_secret"] != ClientSecret || p == nil {
		// GitHub answers with 200 here.
		answer(w, 200, map[string]any{"error": "bad_verification_code", "error_description": "The code passed is incorrect or expired."})
		return
	}
	delete(g.people, in["code"])
	g.people[p.tokenFor] = p
	answer(w, 200, map[string]any{"access_token": p.tokenFor, "scope": "", "token_type": "bearer"})
}

func (g *GitHub) whose(w http.ResponseWriter, r *http.Request) *person {
	p := g.people[bearer(r)]
	if p == nil || !strings.HasPrefix(bearer(r), "gho_") {
		refuse(w, 401, "Bad credentials")
		return nil
	}
	return p
}

func (g *GitHub) user(w http.ResponseWriter, r *http.Request) {
	if p := g.whose(w, r); p != nil {
		answer(w, 200, map[string]any{"id": p.id, "login": fmt.Sprint("user", p.id), "type": "User"})
	}
}

func (g *GitHub) userInstallations(w http.ResponseWriter, r *http.Request) {
	p := g.whose(w, r)
	if p == nil {
		return
	}
	list := []any{}
	for _, id := range p.sees {
		if i := g.installations[id]; i != nil {
			list = append(list, i.json())
		}
	}
	perPage, _ := strconv.Atoi(r.FormValue("per_page"))
	page, _ := strconv.Atoi(r.FormValue("page"))
	from := min((page-1)*perPage, len(list))
	answer(w, 200, map[string]any{"total_count": len(list), "installations": list[from:min(from+perPage, len(list))]})
}

func (g *GitHub) userRepositories(w http.ResponseWriter, r *http.Request) {
	p := g.whose(w, r)
	if p == nil {
		return
	}
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
	i := g.installations[id]
	if i == nil || !slices.Contains(p.sees, id) {
		refuse(w, 404, "Not Found")
		return
	}
	owner := p.id == i.AccountID || slices.Contains(p.admins, i.Account)
	administers := func(name string) bool { return slices.Contains(p.admins, i.Account+"/"+name) }
	list := []any{}
	for at, name := range i.Repos {
		if !owner && slices.ContainsFunc(i.Repos, administers) && !administers(name) {
			continue
		}
		repo := g.repo(i, name, int64(9000+at))
		repo["permissions"] = map[string]bool{"admin": owner || administers(name), "pull": true}
		list = append(list, repo)
	}
	perPage, _ := strconv.Atoi(r.FormValue("per_page"))
	page, _ := strconv.Atoi(r.FormValue("page"))
	from := min((page-1)*perPage, len(list))
	answer(w, 200, map[string]any{"total_count": len(list), "repositories": list[from:min(from+perPage, len(list))]})
}

func (g *GitHub) membership(w http.ResponseWriter, r *http.Request) {
	p := g.whose(w, r)
	if p == nil {
		return
	}
	role := "member"
	if slices.Contains(p.admins, r.PathValue("org")) {
		role = "admin"
	}
	answer(w, 200, map[string]any{"state": "active", "role": role})
}

func (g *GitHub) setStatus(w http.ResponseWriter, r *http.Request) {
	if _, ok := g.asInstallation(w, r, "statuses", "write"); !ok {
		return
	}
	var in struct {
		State       string `json:"state"`
		TargetURL   string `json:"target_url"`
		Description string `json:"description"`
		Context     string `json:"context"`
	}
	_ = json.NewDecoder(r.Body).Decode(&in)
	if !slices.Contains([]string{"error", "failure", "pending", "success"}, in.State) || len([]rune(in.Description)) > 140 {
		refuse(w, 422, "Validation Failed")
		return
	}
	g.statuses = append(g.statuses, Status{r.PathValue("owner") + "/" + r.PathValue("repo"), r.PathValue("sha"), in.State, in.TargetURL, in.Description, in.Context})
	answer(w, 201, map[string]any{"id": len(g.statuses), "state": in.State})
}

func (g *GitHub) listDeployments(w http.ResponseWriter, r *http.Request) {
	if _, ok := g.asInstallation(w, r, "deployments", "write"); !ok {
		return
	}
	list := []*Deployment{}
	for _, d := range slices.Backward(g.deployments) {
		if d.Repo == r.PathValue("owner")+"/"+r.PathValue("repo") && d.Ref == r.FormValue("sha") && d.Environment == r.FormValue("environment") {
			list = append(list, d)
		}
	}
	answer(w, 200, list)
}

func (g *GitHub) createDeployment(w http.ResponseWriter, r *http.Request) {
	if _, ok := g.asInstallation(w, r, "deployments", "write"); !ok {
		return
	}
	d := &Deployment{}
	if json.NewDecoder(r.Body).Decode(d) != nil || d.Ref == "" || d.AutoMerge == nil || *d.AutoMerge || d.Contexts == nil || len(d.Contexts) > 0 {
		refuse(w, 409, "Conflict merging the default branch, or commit status checks failed")
		return
	}
	g.last++
	d.ID, d.Repo, d.AutoMerge, d.Contexts = g.last, r.PathValue("owner")+"/"+r.PathValue("repo"), nil, nil
	g.deployments = append(g.deployments, d)
	if g.loseDeployed != nil && g.loseDeployed() {
		panic(http.ErrAbortHandler)
	}
	answer(w, 201, d)
}

func (g *GitHub) setDeploymentStatus(w http.ResponseWriter, r *http.Request) {
	if _, ok := g.asInstallation(w, r, "deployments", "write"); !ok {
		return
	}
	var in struct {
		State       string `json:"state"`
		URL         string `json:"environment_url"`
		Description string `json:"description"`
	}
	_ = json.NewDecoder(r.Body).Decode(&in)
	if !slices.Contains([]string{"error", "failure", "inactive", "in_progress", "queued", "pending", "success"}, in.State) || len([]rune(in.Description)) > 140 {
		refuse(w, 422, "Validation Failed")
		return
	}
	for _, d := range g.deployments {
		if strconv.FormatInt(d.ID, 10) == r.PathValue("id") {
			d.States, d.URL = append(d.States, in.State), in.URL
			answer(w, 201, map[string]any{"state": in.State})
			return
		}
	}
	refuse(w, 404, "Not Found")
}

func (g *GitHub) getRepo(w http.ResponseWriter, r *http.Request) {
	if to := g.public[r.PathValue("owner")+"/"+r.PathValue("repo")]; to != "" {
		owner, name, _ := strings.Cut(to, "/")
		answer(w, 200, g.repo(&Installation{Account: owner}, name, 9000))
		return
	}
	if i, ok := g.asInstallation(w, r, "metadata", "read"); ok {
		answer(w, 200, g.repo(i, r.PathValue("repo"), 9000))
	}
}

func (g *GitHub) getPull(w http.ResponseWriter, r *http.Request) {
	i, ok := g.asInstallation(w, r, "pull_requests", "write")
	if !ok {
		return
	}
	number, _ := strconv.Atoi(r.PathValue("number"))
	state, at := "open", i.CreatedAt
	if closed, ok := g.closed[r.PathValue("owner")+"/"+r.PathValue("repo")+"#"+r.PathValue("number")]; ok {
		state, at = "closed", closed
	}
	repo := g.repo(i, r.PathValue("repo"), 9000)
	answer(w, 200, map[string]any{
		"number": number, "state": state, "updated_at": at.UTC().Format(time.RFC3339),
		"head": map[string]any{"ref": "basket", "sha": strings.Repeat("2", 40), "repo": repo}, "base": map[string]any{"ref": "main", "sha": strings.Repeat("b", 40), "repo": repo},
	})
}

func (g *GitHub) listComments(w http.ResponseWriter, r *http.Request) {
	if _, ok := g.asInstallation(w, r, "pull_requests", "write"); !ok {
		return
	}
	list := []*Comment{}
	for _, c := range g.comments {
		if c.Repo == r.PathValue("owner")+"/"+r.PathValue("repo") && strconv.Itoa(c.Number) == r.PathValue("number") {
			list = append(list, c)
		}
	}
	perPage, _ := strconv.Atoi(r.FormValue("per_page"))
	page, _ := strconv.Atoi(r.FormValue("page"))
	from := min((page-1)*perPage, len(list))
	answer(w, 200, list[from:min(from+perPage, len(list))])
}

func (g *GitHub) createComment(w http.ResponseWriter, r *http.Request) {
	if _, ok := g.asInstallation(w, r, "pull_requests", "write"); !ok {
		return
	}
	g.last++
	c := &Comment{ID: g.last, Repo: r.PathValue("owner") + "/" + r.PathValue("repo")}
	c.Number, _ = strconv.Atoi(r.PathValue("number"))
	c.User.Type = "Bot"
	_ = json.NewDecoder(r.Body).Decode(c)
	c.ID = g.last
	g.comments = append(g.comments, c)
	if g.lose != nil && g.lose() {
		panic(http.ErrAbortHandler)
	}
	answer(w, 201, c)
}

func (g *GitHub) editComment(w http.ResponseWriter, r *http.Request) {
	if _, ok := g.asInstallation(w, r, "pull_requests", "write"); !ok {
		return
	}
	for _, c := range g.comments {
		if strconv.FormatInt(c.ID, 10) != r.PathValue("id") {
			continue
		}
		var in struct {
			Body string `json:"body"`
		}
		_ = json.NewDecoder(r.Body).Decode(&in)
		c.Body = in.Body
		c.Edits++
		answer(w, 200, c)
		return
	}
	refuse(w, 404, "Not Found")
}
