package githost_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/fakegithub"
	"github.com/berth-cloud/berth/controlplane/githost"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestConnect(t *testing.T) {
	r := newRig(t)
	s := r.state(caller)
	i := r.github.Install(fakegithub.Installation{Account: "Acme", Org: true, Repos: []string{"Shop"}})
	in := githost.Callback{InstallationID: fmt.Sprint(i.ID), State: s, SetupAction: "install"}
	for range 2 { // GitHub, or a replica in front, may send the browser twice
		out, err := r.hosts().Callback(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if out.ID != in.InstallationID || out.Account != "Acme" || out.AccountType != "Organization" || out.RepositorySelection != "selected" || out.Suspended {
			t.Errorf("%+v", out)
		}
	}
	list, _, err := r.hosts().Installations(t.Context(), caller, core.ListOptions{})
	if err != nil || len(list) != 1 || list[0].ID != in.InstallationID {
		t.Errorf("%+v, %v", list, err)
	}
	if list, _, err := r.hosts().Installations(t.Context(), stranger, core.ListOptions{}); err != nil || len(list) != 0 {
		t.Errorf("another workspace: %+v, %v", list, err)
	}

	// Once used, a state is worth nothing for another installation.
	more := r.github.Install(fakegithub.Installation{Account: "More"})
	_, err = r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(more.ID), State: s})
	testplane.Want(t, err, apierror.EConflict, "state was used already")
}

// A tenant may send the URL to somebody else, whose repositories would then be the tenant's
// to read. So a browser that comes back connects only once the person with it has been told
// to which workspace, and says yes.
func TestNobodyConnectsToAWorkspaceUnasked(t *testing.T) {
	r := newRig(t, func(c *githost.Config) {
		c.App.ClientID, c.App.ClientSecret = fakegithub.ClientID, fakegithub.ClientSecret
	})
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Name: "Mallory's"})
		raftstore.Put(tx, record.Users, &record.User{Meta: record.Meta{ID: "mal"}, Email: "mallory@example.com", WorkspaceIDs: []string{"ws"}})
		k, _ := raftstore.Get(tx, record.APIKeys, caller.KeyID)
		k = k.Clone()
		k.Name, k.CreatedBy = "ci", "mal"
		raftstore.Put(tx, record.APIKeys, k)
		return nil
	})
	sent := r.state(caller)
	theirs := r.github.Install(fakegithub.Installation{Account: "victim", AccountID: 7})
	r.github.Person("victim", 7, []int64{theirs.ID})
	in := githost.Callback{InstallationID: fmt.Sprint(theirs.ID), State: sent, SetupAction: "install", Code: "victim", Ask: true}
	_, err := r.hosts().Callback(t.Context(), in)
	asked, ok := githost.Asks(err)
	if !ok || asked.Account != "victim" || asked.Workspace != "Mallory's" || asked.WorkspaceID != "ws" || asked.AskedBy != "the API key ci of mallory@example.com" {
		t.Fatalf("the person is asked %+v, %v", asked, err)
	}
	none := func() {
		t.Helper()
		if all := raftstore.All(r.view(), record.GitInstallations); len(all) > 0 {
			t.Fatalf("connected without an answer: %+v", all[0])
		}
	}
	none()

	// An answer is to one question: of this state, about this installation.
	own := r.github.Install(fakegithub.Installation{Account: "mallory", AccountID: 8})
	r.github.Person("mallory", 8, []int64{own.ID})
	second := r.state(caller)
	_, err = r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(own.ID), State: second, Code: "mallory", Ask: true})
	mine, ok := githost.Asks(err)
	if !ok {
		t.Fatal(err)
	}
	for name, bad := range map[string]githost.Callback{
		"the answer about another installation": {InstallationID: in.InstallationID, State: second, Confirm: mine.Confirm},
		"the answer to another state":           {InstallationID: in.InstallationID, State: sent, Confirm: mine.Confirm},
		"a state in place of an answer":         {InstallationID: in.InstallationID, State: sent, Confirm: sent},
		"no answer":                             {InstallationID: in.InstallationID, State: sent, Confirm: "yes"},
	} {
		_, err := r.hosts().Callback(t.Context(), bad)
		t.Run(name, func(t *testing.T) { testplane.Want(t, err, apierror.EForbidden, "invalid confirm") })
	}
	none()
	in.Confirm, in.Code = asked.Confirm, ""
	for range 2 { // a button may be pressed twice
		if out, err := r.hosts().Callback(t.Context(), in); err != nil || out.Account != "victim" {
			t.Errorf("%+v, %v", out, err)
		}
	}
}

// Who asked must be somebody still when the browser comes back.
func TestConnectAfterTheRoleIsGone(t *testing.T) {
	r := newRig(t)
	i := r.github.Install(fakegithub.Installation{Account: "acme"})
	person := core.Caller{WorkspaceID: "ws", UserID: "ann", ViaJWT: true}
	role := func(role record.Role, in ...string) {
		r.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Users, &record.User{Meta: record.Meta{ID: "ann"}, WorkspaceIDs: in, Roles: map[string]record.Role{"ws": role}})
			return nil
		})
	}
	role(record.RoleMember, "ws")
	s := r.state(person)
	key := r.state(caller)
	back := func(state string) error {
		_, err := r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(i.ID), State: state, SetupAction: "install"})
		return err
	}
	role(record.RoleViewer, "ws")
	testplane.Want(t, back(s), apierror.EForbidden, "forbidden")
	role(record.RoleMember)
	testplane.Want(t, back(s), apierror.EForbidden, "forbidden")
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.APIKeys, caller.KeyID)
		return nil
	})
	testplane.Want(t, back(key), apierror.EForbidden, "forbidden")
	role(record.RoleMember, "ws")
	if err := back(s); err != nil {
		t.Error(err)
	}
}

// A key connects for as long as it may, whoever made it: also an operator, so that the
// first key needs no identity provider.
func TestConnectWithAKey(t *testing.T) {
	r := newRig(t)
	i := r.github.Install(fakegithub.Installation{Account: "acme"})
	made := func(id, by string, roles map[string]record.Role) core.Caller {
		r.Update(func(tx *raftstore.Tx) error {
			if roles != nil {
				raftstore.Put(tx, record.Users, &record.User{Meta: record.Meta{ID: by}, WorkspaceIDs: []string{"ws"}, Roles: roles})
			}
			raftstore.Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: id}, WorkspaceID: "ws", Prefix: id, CreatedBy: by})
			return nil
		})
		return core.Caller{WorkspaceID: "ws", UserID: by, KeyID: id} // as authn has it
	}
	back := func(state string) error {
		_, err := r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(i.ID), State: state, SetupAction: "install"})
		return err
	}
	operators := made("key-1", core.ByOperator, nil)
	if err := back(r.state(operators)); err != nil {
		t.Errorf("an operator's key: %v", err)
	}
	anns := made("key-2", "ann", map[string]record.Role{"ws": record.RoleMember})
	if err := back(r.state(anns)); err != nil {
		t.Errorf("a member's key: %v", err)
	}
	s := r.state(anns)
	made("key-2", "ann", map[string]record.Role{"ws": record.RoleViewer})
	testplane.Want(t, back(s), apierror.EForbidden, "forbidden")
	anns = made("key-2", "ann", map[string]record.Role{"ws": record.RoleMember})
	for _, c := range []core.Caller{operators, anns} {
		s := r.state(c)
		r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.APIKeys, c.KeyID); return nil })
		testplane.Want(t, back(s), apierror.EForbidden, "forbidden") // revoked, though its person may still
	}
}

func TestConnectRefusals(t *testing.T) {
	r := newRig(t)
	other := r.connect(stranger, "theirs", "shop")
	mine := r.github.Install(fakegithub.Installation{Account: "acme"})
	good := r.state(caller)
	forged := func() string {
		raw, err := base64.RawURLEncoding.DecodeString(good)
		if err != nil {
			t.Fatal(err)
		}
		raw[len(raw)-1] ^= 1
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	foreign, err := r.secrets.Seal([]byte(`{"w":"ws","n":"n","e":"2100-01-01T00:00:00Z"}`), []byte("another context"))
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprint(mine.ID)
	for name, c := range map[string]struct {
		in      githost.Callback
		code    apierror.Code
		message string
	}{
		"no state":               {githost.Callback{InstallationID: id}, apierror.EForbidden, "invalid state"},
		"not base64":             {githost.Callback{InstallationID: id, State: "%%"}, apierror.EForbidden, "invalid state"},
		"forged state":           {githost.Callback{InstallationID: id, State: forged()}, apierror.EForbidden, "invalid state"},
		"cut state":              {githost.Callback{InstallationID: id, State: good[:20]}, apierror.EForbidden, "invalid state"},
		"another secret of ours": {githost.Callback{InstallationID: id, State: base64.RawURLEncoding.EncodeToString(foreign)}, apierror.EForbidden, "invalid state"},
		"no id":                  {githost.Callback{State: good}, apierror.EInvalid, "invalid installation_id"},
		"an id that is a path":   {githost.Callback{InstallationID: "1/../../x", State: good}, apierror.EInvalid, "invalid installation_id"},
		"an id that is unknown":  {githost.Callback{InstallationID: "99", State: good}, apierror.ENotFound, "not found"},
		"a request to an owner":  {githost.Callback{SetupAction: "request", State: good}, apierror.EConflict, "installation waits for approval"},
		"another workspace's":    {githost.Callback{InstallationID: fmt.Sprint(other.ID), State: good}, apierror.EConflict, "installation belongs to another workspace"},
	} {
		_, err := r.hosts().Callback(t.Context(), c.in)
		t.Run(name, func(t *testing.T) { testplane.Want(t, err, c.code, c.message) })
	}
	// None of these has used it up.
	if _, err := r.hosts().Callback(t.Context(), githost.Callback{InstallationID: id, State: good}); err != nil {
		t.Error(err)
	}

	late := r.state(caller)
	r.clock.add(15 * time.Minute)
	_, err = r.hosts().Callback(t.Context(), githost.Callback{InstallationID: id, State: late})
	testplane.Want(t, err, apierror.EForbidden, "state has expired")
}

// Ids of installations are numbers in a row: without OAuth, whoever has a state could name
// that of somebody else.
func TestOldInstallationsAreNotConnectedByIDAlone(t *testing.T) {
	r := newRig(t)
	old := r.github.Install(fakegithub.Installation{Account: "victim", CreatedAt: r.clock.Now().Add(-time.Hour)})
	_, err := r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(old.ID), State: r.state(caller), SetupAction: "update"})
	testplane.Want(t, err, apierror.EConflict, "installation is older than the request")
}

func TestWhoConnectsMustOwn(t *testing.T) {
	r := newRig(t, func(c *githost.Config) {
		c.App.ClientID, c.App.ClientSecret = fakegithub.ClientID, fakegithub.ClientSecret
	})
	old := r.clock.Now().Add(-time.Hour)
	org := r.github.Install(fakegithub.Installation{Account: "acme", Org: true, CreatedAt: old})
	own := r.github.Install(fakegithub.Installation{Account: "ann", AccountID: 7, CreatedAt: old})
	repos := make([]string, 150) // two pages
	for n := range repos {
		repos[n] = fmt.Sprint("repo", n)
	}
	fresh := r.github.Install(fakegithub.Installation{Account: "new", Org: true, Repos: repos})
	two := r.github.Install(fakegithub.Installation{Account: "two", Org: true, Repos: []string{"site", "plans"}})
	empty := r.github.Install(fakegithub.Installation{Account: "empty", Org: true})
	many := make([]int64, 150) // two pages
	r.github.Person("nobody", 1, nil)
	r.github.Person("reader", 2, []int64{org.ID})
	r.github.Person("owner", 3, append(many, org.ID), "acme")
	r.github.Person("ann", 7, []int64{own.ID})
	r.github.Person("installer", 4, []int64{fresh.ID}, "new")
	r.github.Person("peeper", 5, []int64{fresh.ID})
	r.github.Person("part", 6, []int64{two.ID}, "two/site")
	r.github.Person("all", 8, []int64{two.ID}, "two/site", "two/plans")
	r.github.Person("member", 9, []int64{empty.ID})
	for _, c := range []struct {
		name    string
		i       *fakegithub.Installation
		code    string
		message string
	}{
		{"no code", org, "", "code is required"},
		{"wrong code", org, "guessed", "invalid code"},
		{"who does not see it", org, "nobody", "installation is not yours"},
		{"who can read a repository of it", org, "reader", "installation is not yours"},
		{"who owns the organization", org, "owner", ""},
		{"a code that was used", org, "owner", "invalid code"},
		{"whose account it is", own, "ann", ""},
		{"who can read what another has just installed", fresh, "peeper", "installation is not yours"},
		{"who has just installed it", fresh, "installer", ""},
		{"who administers a part of it", two, "part", "installation is not yours"},
		{"who administers all of it", two, "all", ""},
		{"who sees one without repositories", empty, "member", "installation is not yours"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(c.i.ID), State: r.state(caller), Code: c.code})
			if c.message == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			testplane.Want(t, err, apierror.EForbidden, c.message)
		})
	}
}

func TestConnectAfterTheKeyHasExpired(t *testing.T) {
	r := newRig(t)
	s := r.state(caller)
	r.Update(func(tx *raftstore.Tx) error {
		k, _ := raftstore.Get(tx, record.APIKeys, caller.KeyID)
		k = k.Clone()
		k.ExpiresAt = r.clock.Now().Add(time.Minute)
		raftstore.Put(tx, record.APIKeys, k)
		return nil
	})
	r.clock.add(2 * time.Minute)
	i := r.github.Install(fakegithub.Installation{Account: "acme"})
	_, err := r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(i.ID), State: s})
	testplane.Want(t, err, apierror.EForbidden, "forbidden")
}

// Whom GitHub lets ask no more keeps nobody else from connecting.
func TestALimitOfOnePersonIsNobodyElses(t *testing.T) {
	r := newRig(t, func(c *githost.Config) {
		c.App.ClientID, c.App.ClientSecret = fakegithub.ClientID, fakegithub.ClientSecret
	})
	theirs, mine := r.github.Install(fakegithub.Installation{Account: "theirs"}), r.github.Install(fakegithub.Installation{Account: "mine"})
	r.github.Person("mallory", 1, []int64{theirs.ID})
	r.github.Person("ann", 2, []int64{mine.ID}, "mine")
	r.github.Break(func(w http.ResponseWriter, q *http.Request) bool {
		if q.URL.Path != "/user/installations" {
			return false
		}
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	_, err := r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(theirs.ID), State: r.state(stranger), Code: "mallory"})
	testplane.Want(t, err, apierror.EUnavailable, "github rate limit reached")
	r.github.Break(nil)
	if _, err := r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(mine.ID), State: r.state(caller), Code: "ann"}); err != nil {
		t.Error(err)
	}
}

// Callbacks of one workspace do not use up the App's limit, by which all are cloned.
func TestCallbacksAreBounded(t *testing.T) {
	r := newRig(t)
	s, err := r.state(stranger), error(nil)
	n := 0
	for ; n < 100 && apierror.CodeOf(err) != apierror.ERateLimited; n++ {
		_, err = r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(1000 + n), State: s})
	}
	testplane.Want(t, err, apierror.ERateLimited, "too many tries to connect")
	if asked := len(r.github.Calls("GET /app/installations/")); asked != n-1 {
		t.Errorf("github was asked %d times in %d tries", asked, n)
	}
	r.connect(caller, "acme", "shop") // another workspace's
	r.clock.add(time.Minute)
	r.connect(stranger, "theirs", "shop")
}

func TestDisconnect(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	id := fmt.Sprint(i.ID)
	testplane.Want(t, r.hosts().DeleteInstallation(t.Context(), stranger, id), apierror.ENotFound, "")
	r.github.Break(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true })
	testplane.Want(t, r.hosts().DeleteInstallation(t.Context(), caller, id), apierror.EBadGateway, "github unreachable")
	r.github.Break(nil)
	if err := r.hosts().DeleteInstallation(t.Context(), caller, id); err != nil {
		t.Fatal(err)
	}
	if calls := r.github.Calls("DELETE /app/installations/" + id); len(calls) != 2 {
		t.Errorf("%q", calls)
	}
	testplane.Want(t, r.hosts().DeleteInstallation(t.Context(), caller, id), apierror.ENotFound, "")

	// One that is gone at GitHub goes here too.
	i = r.connect(caller, "acme", "shop")
	r.github.Break(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusNotFound); return true })
	if err := r.hosts().DeleteInstallation(t.Context(), caller, fmt.Sprint(i.ID)); err != nil {
		t.Error(err)
	}
}

func TestRepos(t *testing.T) {
	r := newRig(t)
	names := make([]string, 120)
	for i := range names {
		names[i] = fmt.Sprintf("repo-%03d", i)
	}
	i := r.connect(caller, "acme", names...)
	var got []api.GitHubRepo
	cursor := ""
	for pages := 0; ; pages++ {
		page, next, err := r.hosts().Repos(t.Context(), caller, "", core.ListOptions{Limit: 50, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, page...)
		if cursor = next; next == "" {
			if pages != 2 {
				t.Errorf("%d pages before the last", pages)
			}
			break
		}
	}
	if len(got) != 120 || got[119].FullName != "acme/repo-119" || got[0].ID != "9000" || !got[0].Private || got[0].DefaultBranch != "main" || got[0].CloneURL != r.github.URL+"/acme/repo-000.git" {
		t.Errorf("%d, %+v", len(got), got[0])
	}
	for _, bad := range []string{"x", "0.10", "1.101", "1", "1.-1", "99999999999.10"} {
		_, _, err := r.hosts().Repos(t.Context(), caller, fmt.Sprint(i.ID), core.ListOptions{Cursor: bad})
		testplane.Want(t, err, apierror.EInvalid, "invalid cursor")
	}
	_, _, err := r.hosts().Repos(t.Context(), stranger, fmt.Sprint(i.ID), core.ListOptions{})
	testplane.Want(t, err, apierror.ENotFound, "")
	_, _, err = r.hosts().Repos(t.Context(), stranger, "", core.ListOptions{})
	testplane.Want(t, err, apierror.EInvalid, "installation_id is required")
}

func TestCloneToken(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "Acme", "Shop", "site")
	id := fmt.Sprint(i.ID)
	shop := r.github.URL + "/Acme/Shop.git"
	if got, ok := r.hosts().InstallationFor(r.view(), "ws", r.github.URL+"/acme/anything"); !ok || got != id {
		t.Errorf("%q, %v", got, ok)
	}
	for _, elsewhere := range []string{"https://example.com/Acme/Shop", r.github.URL + "/other/shop", r.github.URL + "/Acme", r.github.URL + "/Acme/../x/Shop", "::"} {
		if got, ok := r.hosts().InstallationFor(r.view(), "ws", elsewhere); ok {
			t.Errorf("%s: %s", elsewhere, got)
		}
	}
	if _, ok := r.hosts().InstallationFor(r.view(), "other", shop); ok {
		t.Error("another workspace has it")
	}

	token := func() string {
		t.Helper()
		user, password, err := r.hosts().CloneToken(t.Context(), "ws", id, shop)
		if err != nil || user != "x-access-token" || !r.github.MayClone(password, "Shop") {
			t.Fatalf("%q %q: %v", user, password, err)
		}
		return password
	}
	first := token()
	if token() != first {
		t.Error("a token that is valid for long is not used again")
	}
	r.clock.add(46 * time.Minute)
	if token() == first {
		t.Error("a token that expires soon is used again")
	}

	_, _, err := r.hosts().CloneToken(t.Context(), "other", id, shop)
	testplane.Want(t, err, apierror.ENotFound, "")
	_, _, err = r.hosts().CloneToken(t.Context(), "ws", id, r.github.URL+"/victim/shop")
	testplane.Want(t, err, apierror.EInvalid, "")
	_, _, err = r.hosts().CloneToken(t.Context(), "ws", id, r.github.URL+"/acme/absent")
	testplane.Want(t, err, apierror.EUnprocessable, "repository is not accessible")

	r.receive("installation", r.github.InstallationPayload(i, "suspend", r.clock.Now().Add(time.Minute)))
	_, _, err = r.hosts().CloneToken(t.Context(), "ws", id, shop)
	testplane.Want(t, err, apierror.EConflict, "installation is suspended")
	r.receive("installation", r.github.InstallationPayload(i, "unsuspend", r.clock.Now().Add(2*time.Minute)))
	if got := r.receive("installation", r.github.InstallationPayload(i, "suspend", r.clock.Now().Add(time.Minute))); got != api.GitEventStale {
		t.Errorf("an older suspension is %s", got)
	}
	token()
	if got := r.receive("installation", r.github.InstallationPayload(i, "deleted", r.clock.Now())); got != api.GitEventAccepted {
		t.Errorf("a deletion is %s", got)
	}
	_, _, err = r.hosts().CloneToken(t.Context(), "ws", id, shop)
	testplane.Want(t, err, apierror.ENotFound, "")
}

// While GitHub refuses calls it is not asked, and callers are told for how long.
func TestRateLimits(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		status int
		header map[string]string
		body   string
		wait   time.Duration
	}{
		"429":                            {429, map[string]string{"Retry-After": "30"}, `{}`, 30 * time.Second},
		"429 that says nothing":          {429, nil, `<html>`, time.Minute},
		"the hour's limit":               {403, map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "+120"}, `{"message":"API rate limit exceeded"}`, 2 * time.Minute},
		"a secondary limit":              {403, nil, `{"message":"You have exceeded a secondary rate limit."}`, time.Minute},
		"a time that nobody would await": {429, map[string]string{"Retry-After": "2000000000"}, `{}`, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			i := r.connect(caller, "acme", "shop")
			r.github.Break(func(w http.ResponseWriter, q *http.Request) bool {
				if !strings.HasSuffix(q.URL.Path, "/access_tokens") {
					return false
				}
				for k, v := range c.header {
					if seconds, ok := strings.CutPrefix(v, "+"); ok {
						d, _ := time.ParseDuration(seconds + "s")
						v = fmt.Sprint(r.clock.Now().Add(d).Unix())
					}
					w.Header().Set(k, v)
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
				return true
			})
			clone := func() error {
				_, _, err := r.hosts().CloneToken(t.Context(), "ws", fmt.Sprint(i.ID), r.github.URL+"/acme/shop")
				return err
			}
			for range 3 {
				e := testplane.Want(t, clone(), apierror.EUnavailable, "github rate limit reached")
				if e.RetryAfter != c.wait {
					t.Errorf("wait %s, want %s", e.RetryAfter, c.wait)
				}
			}
			if n := len(r.github.Calls("POST /app/installations")); n != 1 {
				t.Errorf("asked %d times", n)
			}
			r.github.Break(nil)
			r.clock.add(c.wait)
			if err := clone(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDeadGitHub(t *testing.T) {
	tier.Slow(t)
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"connections break": func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
		"500":               func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true },
		"no JSON":           func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write([]byte("<html>")); return true },
		"the wrong one": func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write([]byte(`{"id":1,"token":"a b"}`))
			return true
		},
		"an answer for ever": func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write(make([]byte, 9<<20)); return true },
		"leads elsewhere": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://localhost:1/", http.StatusTemporaryRedirect)
			return true
		},
		"does not answer": func(_ http.ResponseWriter, r *http.Request) bool {
			_, _ = io.Copy(io.Discard, r.Body) // only then does a server notice that the client leaves
			<-r.Context().Done()
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *githost.Config) { c.Timeout = 300 * time.Millisecond })
			i := r.connect(caller, "acme", "shop")
			s := r.state(caller)
			r.github.Break(fault)
			_, err := r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(i.ID + 1), State: s})
			e := testplane.Want(t, err, apierror.EBadGateway, "github unreachable")
			if e.RetryAfter == 0 {
				t.Error("no Retry-After")
			}
			_, _, err = r.hosts().CloneToken(t.Context(), "ws", fmt.Sprint(i.ID), r.github.URL+"/acme/shop")
			testplane.Want(t, err, apierror.EBadGateway, "")
		})
	}
}

func TestWithoutGitHub(t *testing.T) {
	r := newRig(t, func(c *githost.Config) { c.App, c.GitLabSecret = nil, "" })
	g := r.hosts()
	_, err := g.Connect(t.Context(), caller)
	_, err2 := g.Callback(t.Context(), githost.Callback{})
	_, _, err3 := g.Installations(t.Context(), caller, core.ListOptions{})
	_, _, err4 := g.Repos(t.Context(), caller, "", core.ListOptions{})
	_, _, err5 := g.CloneToken(t.Context(), "ws", "1", "https://github.com/a/b")
	for _, err := range []error{err, err2, err3, err4, err5, g.DeleteInstallation(t.Context(), caller, "1"), g.CheckHook(githost.GitHub, nil)} {
		if e := testplane.Want(t, err, apierror.ENotImplemented, "github is not set up"); !strings.Contains(e.Detail, "BERTH_GITHUB_APP_ID") {
			t.Error(e.Detail)
		}
	}
	if e := testplane.Want(t, g.CheckHook(githost.GitLab, nil), apierror.ENotImplemented, ""); !strings.Contains(e.Detail, "BERTH_GITLAB_WEBHOOK_SECRET") {
		t.Error(e.Detail)
	}
	if err := g.CheckHook(githost.Gitea, http.Header{"X-Gitea-Signature": {strings.Repeat("0", 64)}}); err != nil {
		t.Error(err)
	}
	if _, ok := g.InstallationFor(r.view(), "ws", "https://github.com/a/b"); ok {
		t.Error("an installation without GitHub")
	}
}

func TestAddressesOfGitHub(t *testing.T) {
	for at, good := range map[string]bool{
		"https://ghe.example.com/api/v3": true, "http://127.0.0.1:3000": true, "http://localhost": true, "http://[::1]:1": true,
		"http://ghe.example.com": false, "ftp://x": false, "https://": false, "https://u:p@x": false, "https://x/?a=b": false, "::": false, "http://127.0.0.1.example.com": false,
	} {
		_, err := githost.New(core.New(core.Core{}), githost.Config{App: &githost.App{API: at}})
		if (err == nil) != good {
			t.Errorf("%s: %v", at, err)
		}
	}
	for web, good := range map[string]bool{"http://git.example.com": true, "ftp://x": false, "http://": false} {
		_, err := githost.New(core.New(core.Core{}), githost.Config{App: &githost.App{Web: web}, AllowHTTP: true})
		if (err == nil) != good {
			t.Errorf("%s for development: %v", web, err)
		}
	}
	if _, err := githost.New(core.New(core.Core{}), githost.Config{App: &githost.App{API: "http://ghe.example.com"}, AllowHTTP: true}); err == nil {
		t.Error("an API in the clear for development")
	}
}

// A caller that may create nothing connects nothing.
func TestSuspendedWorkspace(t *testing.T) {
	r := newRig(t)
	s := r.state(caller)
	i := r.github.Install(fakegithub.Installation{Account: "acme"})
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Suspended: true})
		return nil
	})
	_, err := r.hosts().Connect(t.Context(), caller)
	testplane.Want(t, err, apierror.EForbidden, "account suspended")
	_, err = r.hosts().Callback(t.Context(), githost.Callback{InstallationID: fmt.Sprint(i.ID), State: s})
	testplane.Want(t, err, apierror.EForbidden, "account suspended")
}
