package sandbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestCreateShowsTheWholeRecord(t *testing.T) {
	r := testplane.NewRig(t, 1)
	ttl := int64(3600)
	sb := r.Must(t, api.CreateSandbox{TTLSeconds: &ttl, Metadata: api.Object(`{"a": [1]}`), Env: map[string]string{"A": "secret"}})
	got, err := r.Get(t.Context(), testplane.Caller, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.Status != "running" || got.CPU != 1 || got.MemoryMB != 512 || got.DiskMB != 2048 || got.AgentID != "h1" ||
		string(got.Metadata) != `{"a":[1]}` || *got.TTLSeconds != ttl || got.ExpiresAt.Sub(got.StartedAt.Time) != time.Hour ||
		got.PreviewURL != "https://{port}-"+sb.ID+".preview.test" {
		t.Fatalf("%+v", got)
	}
	row, _ := r.Sandbox(sb.ID)
	if env, _ := raftstore.Get(r.Leader().Store.View(), record.EnvParts, row.EnvID+"/0"); env == nil || !strings.HasPrefix(string(env.Sealed), "sandbox.env/"+env.ID) {
		t.Fatal("the environment was not sealed for its row")
	}
}

func TestTTLEndsTheSandbox(t *testing.T) {
	r := testplane.NewRig(t, 1)
	ttl := int64(1)
	sb := r.Must(t, api.CreateSandbox{TTLSeconds: &ttl})
	testcluster.Await(t, "the sandbox's end", func() bool { _, ok := r.Sandbox(sb.ID); return !ok })
	if len(r.H1.Boxes()) != 0 {
		t.Fatal("its box is left")
	}
}

// A suspended workspace creates nothing. What it has goes on, and is woken.
// A template decides how long its guests take to say that they run.
func TestCreatesThatHangAreTheirWorkspacesOwn(t *testing.T) {
	const hang = 64
	r := testplane.NewRig(t, 1)
	r.H1.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		c.MemoryMB, c.Slots = 1<<20, 1000
	})
	var puts atomic.Int64
	answer := make(chan struct{})
	r.H1.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done && puts.Add(1) <= hang {
			select {
			case <-answer:
			case <-ctx.Done():
			}
		}
		return nil
	})
	var creates sync.WaitGroup
	for range hang + 8 {
		creates.Go(func() {
			if _, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{}); err != nil {
				t.Error(err)
			}
		})
	}
	defer creates.Wait()
	defer close(answer)
	testcluster.Await(t, "many to hang", func() bool { return puts.Load() >= hang })
	if _, err := r.Create(t.Context(), testplane.Stranger, api.CreateSandbox{Template: "base"}, core.Idempotency{}); err != nil {
		t.Errorf("another workspace's: %v", err)
	}
	if n := puts.Load(); n != hang+1 {
		t.Errorf("%d are at the host at once, want %d and the other's", n, hang)
	}
}

func TestSuspendedWorkspaceCreatesNothing(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	if _, err := r.Hibernate(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Suspended: true})
		return nil
	})
	for _, template := range []string{"base", "unknown"} {
		_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: template}, core.Idempotency{})
		testplane.Want(t, err, apierror.EForbidden, "account suspended")
	}
	if n := r.LeaderNode().Hosts.Sessions()["h1"].ReservedMB; n != 0 {
		t.Fatalf("%d MB are still reserved", n)
	}
	if out, err := r.Wake(t.Context(), testplane.Caller, sb.ID); err != nil || out.Status != api.SandboxRunning {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestCreateRefusesBadInput(t *testing.T) {
	r := testplane.NewRig(t, 1)
	ttl := func(n int64) *int64 { return &n }
	big := strings.Repeat("x", 70<<10)
	for name, in := range map[string]api.CreateSandbox{
		"no template":             {},
		"template with a path":    {Template: "../base"},
		"template with a NUL":     {Template: "ba\x00se"},
		"template in Unicode":     {Template: "bäse"},
		"a long template":         {Template: strings.Repeat("a", 64)},
		"ttl 0":                   {Template: "base", TTLSeconds: ttl(0)},
		"ttl below 0":             {Template: "base", TTLSeconds: ttl(-1)},
		"ttl of a thousand years": {Template: "base", TTLSeconds: ttl(1 << 60)},
		"metadata array":          {Template: "base", Metadata: api.Object(`[]`)},
		"metadata string":         {Template: "base", Metadata: api.Object(`"{}"`)},
		"metadata broken":         {Template: "base", Metadata: api.Object(`{"a":`)},
		"metadata not a double":   {Template: "base", Metadata: api.Object(`{"a":[{"b":-1e999}]}`)},
		"metadata large":          {Template: "base", Metadata: api.Object(`{"a":"` + big + `"}`)},
		"env name empty":          {Template: "base", Env: map[string]string{"": "x"}},
		"env name with =":         {Template: "base", Env: map[string]string{"A=B": "x"}},
		"env name not UTF-8":      {Template: "base", Env: map[string]string{"\xff\xfe": "x"}},
		"env value with NUL":      {Template: "base", Env: map[string]string{"A": "x\x00"}},
		"boot":                    {Template: "base", Boot: new(api.Boot("warm"))},
		"empty boot":              {Template: "base", Boot: new(api.Boot(""))},
		"preview":                 {Template: "base", Preview: new(api.PreviewMode("secret"))},
		"empty preview":           {Template: "base", Preview: new(api.PreviewMode(""))},
		"unknown template":        {Template: "other"},
	} {
		if _, err := r.Create(t.Context(), testplane.Caller, in, core.Idempotency{}); apierror.CodeOf(err) != apierror.EInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", FromSnapshot: "s"}, core.Idempotency{})
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = r.Create(t.Context(), core.Caller{Admin: true}, api.CreateSandbox{Template: "base"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EUnauthorized, "unauthorized")
	e := testplane.Want(t, func() error {
		_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "other"}, core.Idempotency{})
		return err
	}(), apierror.EInvalid, "unknown template")
	if !strings.Contains(e.Detail, "available: base") {
		t.Errorf("detail %q", e.Detail)
	}
	if len(raftstore.All(r.Leader().Store.View(), record.Sandboxes)) != 0 {
		t.Fatal("rows were made")
	}
}

// Who attaches a volume reads and writes it, so a key of sandboxes alone may not.
func TestAKeyThatHasNoVolumesAttachesNone(t *testing.T) {
	r := testplane.NewRig(t, 1)
	in := api.CreateSandbox{Template: "base", Volumes: []api.VolumeMount{{Name: "data", MountPath: "/data"}}}
	key := testplane.Caller
	key.KeyID, key.Scopes = "k", []string{string(core.AreaSandboxes)}
	_, err := r.Create(t.Context(), key, in, core.Idempotency{})
	testplane.Want(t, err, apierror.EForbidden, "forbidden")
	if _, err := r.Create(t.Context(), key, api.CreateSandbox{Template: "base"}, core.Idempotency{}); err != nil {
		t.Errorf("without volumes: %v", err)
	}
	key.Scopes = append(key.Scopes, string(core.AreaVolumes))
	_, err = r.Create(t.Context(), key, in, core.Idempotency{}) // there is none of that name
	if apierror.CodeOf(err) == apierror.EForbidden {
		t.Errorf("with both scopes: %v", err)
	}
}

// The first of several identical requests takes the last memory on a host, and the
// others return its sandbox.
func TestARepetitionIsNotInTheWayOfItsFirst(t *testing.T) {
	r := testplane.NewRig(t, 1)
	r.H1.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.Slots = 1 })
	r.Passes(2)
	for round := range 5 {
		ids, errs := make([]string, 8), make([]error, 8)
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				sb, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, testplane.Key(fmt.Sprint("k", round), "body"))
				ids[i], errs[i] = sb.ID, err
			})
		}
		wg.Wait()
		for i := range ids {
			if errs[i] != nil || ids[i] != ids[0] {
				t.Fatalf("round %d: %q and %q, %v", round, ids[0], ids[i], errs[i])
			}
		}
		if err := r.Delete(t.Context(), testplane.Caller, ids[0]); err != nil {
			t.Fatal(err)
		}
		r.Passes(2)
	}
}

func TestIdempotentCreates(t *testing.T) {
	r := testplane.NewRig(t, 1)
	in, key := api.CreateSandbox{Template: "base"}, testplane.Key("k", "body")
	first, err := r.Create(t.Context(), testplane.Caller, in, key)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := r.Create(t.Context(), testplane.Caller, in, key); err != nil || again.ID != first.ID {
		t.Fatalf("a second sandbox was made: %v", err)
	}
	_, err = r.Create(t.Context(), testplane.Caller, in, testplane.Key("k", "other"))
	testplane.Want(t, err, apierror.EConflict, "idempotency key reused")
	// The same key in another workspace is independent.
	elsewhere, err := r.Create(t.Context(), core.Caller{WorkspaceID: "other"}, in, key)
	if err != nil || elsewhere.ID == first.ID {
		t.Fatalf("%v", err)
	}
}

func TestExecSemantics(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	var got hostapi.ExecRequest
	r.H1.SetExec(func(_ context.Context, _ string, req hostapi.ExecRequest) (hostapi.ExecResult, error) {
		got = req
		return hostapi.ExecResult{ExitCode: 3, Stdout: []byte("a\xffb\xc3\x28"), Stderr: []byte("é"), TimedOut: true, Truncated: true, DurationMS: 7}, nil
	})
	res, err := r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Shell("echo 'a\nb' | wc -l"), Cwd: "/tmp", Env: map[string]string{"A": "1"}, User: "1000:1000", Stdin: "in"})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(res, api.ExecResult{ExitCode: 3, Stdout: "a\xffb\xc3\x28", Stderr: "é", TimedOut: true, Truncated: true, DurationMS: 7}) {
		t.Fatalf("%+v", res)
	}
	if strings.Join(got.Argv, "|") != "sh|-c|echo 'a\nb' | wc -l" || got.Timeout != time.Minute || got.OutputLimitBytes != 8<<20 ||
		got.Cwd != "/tmp" || got.Env["A"] != "1" || got.User != "1000:1000" || string(got.Stdin) != "in" {
		t.Fatalf("%+v", got)
	}
	seconds := int64(3600)
	if _, err := r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Command{Argv: []string{"printf", "%s", "$HOME; rm -rf /"}}, TimeoutSeconds: &seconds}); err != nil {
		t.Fatal(err)
	}
	if strings.Join(got.Argv, "|") != "printf|%s|$HOME; rm -rf /" || got.Timeout != time.Hour {
		t.Fatalf("%+v", got)
	}
}

func TestExecRefusesBadInput(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	seconds := func(n int64) *int64 { return &n }
	aMiB := slices.Repeat([]string{strings.Repeat("x", 128<<10-1)}, 8) // with the NULs
	if _, err := r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Command{Argv: aMiB}}); err != nil {
		t.Errorf("a MiB: %v", err)
	}
	for name, in := range map[string]api.Exec{
		"nothing":              {},
		"spaces":               {Cmd: api.Shell(" \n")},
		"an empty array":       {Cmd: api.Command{Argv: []string{}}},
		"an empty program":     {Cmd: api.Command{Argv: []string{"", "x"}}},
		"both":                 {Cmd: api.Command{Shell: "x", Argv: []string{"x"}}},
		"a NUL":                {Cmd: api.Shell("echo \x00")},
		"a NUL in an argument": {Cmd: api.Command{Argv: []string{"echo", "\x00"}}},
		"a huge argument":      {Cmd: api.Command{Argv: []string{"echo", strings.Repeat("x", 200<<10)}}},
		"a byte too many":      {Cmd: api.Command{Argv: append(slices.Clone(aMiB), "")}},
		"timeout 0":            {Cmd: api.Shell("x"), TimeoutSeconds: seconds(0)},
		"timeout too long":     {Cmd: api.Shell("x"), TimeoutSeconds: seconds(3601)},
		"a relative cwd":       {Cmd: api.Shell("x"), Cwd: "tmp"},
		"a cwd with NUL":       {Cmd: api.Shell("x"), Cwd: "/\x00"},
		"a user with a slash":  {Cmd: api.Shell("x"), User: "../root"},
		"a bad env":            {Cmd: api.Shell("x"), Env: map[string]string{"1": ""}},
	} {
		if _, err := r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, in); apierror.CodeOf(err) != apierror.EInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := r.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{})
	testplane.Want(t, err, apierror.EInvalid, "cmd required")
}

func TestExecWhereThereIsNothingToExecIn(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	run := func(c core.Caller, id string) error {
		_, err := r.Commands.Exec(t.Context(), c, id, api.Exec{Cmd: api.Shell("true")})
		return err
	}
	for _, id := range []string{"nope", "../" + sb.ID, sb.ID + "\x00", "", "ünï"} {
		testplane.Want(t, run(testplane.Caller, id), apierror.ENotFound, "not found")
	}
	testplane.Want(t, run(core.Caller{WorkspaceID: "other"}, sb.ID), apierror.ENotFound, "not found")
	r.Become(sb.ID, hostapi.StatusPaused)
	testplane.Want(t, run(testplane.Caller, sb.ID), apierror.EConflict, "sandbox not running (paused or hibernated) — resume/wake it first")
	r.Become(sb.ID, hostapi.StatusRunning)
	for code, c := range map[hostapi.Code]struct {
		code    apierror.Code
		message string
	}{
		hostapi.CodeNotFound:    {apierror.ENotFound, "sandbox not found or not running"},
		hostapi.CodeNotRunning:  {apierror.ENotFound, "sandbox not found or not running"}, // and running, when it is asked again
		hostapi.CodeBusy:        {apierror.ERateLimited, ""},
		hostapi.CodeGuest:       {apierror.EBadGateway, "agent unreachable"},
		hostapi.CodeDraining:    {apierror.EBadGateway, "agent unreachable"},
		hostapi.CodeStaleTerm:   {apierror.EUnavailable, ""},
		hostapi.CodeInternal:    {apierror.EInternal, "internal error"},
		hostapi.CodeInvalid:     {apierror.EInvalid, "why"},
		hostapi.CodeInvalidCwd:  {apierror.EInvalid, "invalid cwd"},
		hostapi.CodeInvalidUser: {apierror.EInvalid, "invalid user"},
		hostapi.CodeTooLarge:    {apierror.ETooLarge, "why"},
	} {
		r.H1.SetExec(func(context.Context, string, hostapi.ExecRequest) (hostapi.ExecResult, error) {
			return hostapi.ExecResult{}, &hostapi.Error{Code: code, Message: "why"}
		})
		testplane.Want(t, run(testplane.Caller, sb.ID), c.code, c.message)
	}
	r.H1.SetFault(func(context.Context, fakehost.Call) error { return fakehost.ErrDrop })
	testplane.Want(t, run(testplane.Caller, sb.ID), apierror.EBadGateway, "agent unreachable")
	r.H1.SetFault(nil)
	r.Become(sb.ID, hostapi.StatusFailed)
	testplane.Want(t, run(testplane.Caller, sb.ID), apierror.ENotFound, "sandbox not found or not running")
}

func TestDelete(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	testplane.Want(t, r.Delete(t.Context(), core.Caller{WorkspaceID: "other"}, sb.ID), apierror.ENotFound, "not found")
	r.Change(sb.ID, func(s *record.Sandbox) { s.Owner = &record.Owner{Type: "other", ID: "a"} })
	testplane.Want(t, r.Delete(t.Context(), testplane.Caller, sb.ID), apierror.EConflict, "managed sandbox: delete it from the feature that owns it (Databases or Apps)")
	r.Change(sb.ID, func(s *record.Sandbox) { s.Owner = nil })

	// A host that does not answer delays the answer only for a limited time.
	r.Node.Core.DeleteWait = 300 * time.Millisecond
	var down atomic.Bool
	down.Store(true)
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "delete" && down.Load() {
			return fakehost.ErrDrop
		}
		return nil
	})
	if err := r.Delete(t.Context(), testplane.Caller, sb.ID); !errors.Is(err, core.ErrRemoving) {
		t.Fatal(err)
	}
	got, err := r.Get(t.Context(), testplane.Caller, sb.ID)
	if err != nil || got.Status != "deleting" {
		t.Fatalf("%+v, %v", got, err)
	}
	down.Store(false)
	if rows := r.Settled(r.H1); len(rows) != 0 {
		t.Fatal("the row is left")
	}
	testplane.Want(t, r.Delete(t.Context(), testplane.Caller, sb.ID), apierror.ENotFound, "not found")
}

func TestManyDeletesAtOnceAreOne(t *testing.T) {
	r := testplane.NewRig(t, 1)
	r.Node.Core.DeleteWait = 300 * time.Millisecond
	sb := r.Must(t, api.CreateSandbox{})
	var asked atomic.Int32
	hold := make(chan struct{})
	r.H1.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "delete" && !c.Done {
			asked.Add(1)
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return nil
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := r.Delete(t.Context(), testplane.Caller, sb.ID); !errors.Is(err, core.ErrRemoving) {
				t.Error(err)
			}
		})
	}
	wg.Wait() // none waits for ever
	testcluster.Await(t, "the host to be asked", func() bool { return asked.Load() > 0 })
	if n := asked.Load(); n != 1 {
		t.Errorf("the host was asked %d times", n)
	}
	close(hold)
	if rows := r.Settled(r.H1); len(rows) != 0 {
		t.Errorf("%d rows are left", len(rows))
	}
}

func TestListPages(t *testing.T) {
	r := testplane.NewRig(t, 1)
	var made []string
	for range 7 {
		made = append([]string{r.Must(t, api.CreateSandbox{}).ID}, made...)
	}
	var seen []string
	cursor := ""
	for {
		page, next, err := r.List(t.Context(), testplane.Caller, core.ListOptions{Limit: 3, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range page {
			seen = append(seen, sb.ID)
		}
		if next == "" {
			break
		}
		cursor = next
	}
	if fmt.Sprint(seen) != fmt.Sprint(made) {
		t.Fatalf("pages show %v, want newest first %v", seen, made)
	}
	for _, o := range []core.ListOptions{{Limit: -1}, {Limit: 1001}, {Cursor: "!"}, {Cursor: "eA"}, {Cursor: strings.Repeat("A", 999)}} {
		if _, _, err := r.List(t.Context(), testplane.Caller, o); apierror.CodeOf(err) != apierror.EInvalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if page, _, err := r.List(t.Context(), core.Caller{WorkspaceID: "other"}, core.ListOptions{}); err != nil || len(page) != 0 {
		t.Fatalf("another workspace sees %d, %v", len(page), err)
	}
}

// The memory for unread lists is limited like that for outputs.
func TestLongListsAreHeldWithinBounds(t *testing.T) {
	tier.Slow(t)
	r := testplane.NewRig(t, 1)
	large := json.RawMessage(`{"a":"` + strings.Repeat("x", 400<<10) + `"}`)
	for i := range 50 { // 20 MB; the workspace may have 128, and a list takes twice its size
		r.Update(func(tx *raftstore.Tx) error {
			testcluster.PutSandbox(tx, &record.Sandbox{
				Meta: record.Meta{ID: fmt.Sprintf("sandbox-%d", i)}, WorkspaceID: "ws", Status: record.SandboxFailed, Metadata: large,
			})
			return nil
		})
	}
	unread, read := context.WithCancel(t.Context())
	for range 3 {
		if page, _, err := r.List(unread, testplane.Caller, core.ListOptions{}); err != nil || len(page) != 50 {
			t.Fatalf("%d sandboxes, %v", len(page), err)
		}
	}
	impatient, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	_, _, err := r.List(impatient, testplane.Caller, core.ListOptions{})
	if e := testplane.Want(t, err, apierror.ERateLimited, "too many long lists at once"); e.RetryAfter == 0 {
		t.Error("no Retry-After")
	}
	if page, _, err := r.List(t.Context(), core.Caller{WorkspaceID: "other"}, core.ListOptions{}); err != nil || len(page) != 0 {
		t.Errorf("another workspace: %d, %v", len(page), err)
	}
	read()
	if _, _, err := r.List(t.Context(), testplane.Caller, core.ListOptions{}); err != nil {
		t.Errorf("after they were read: %v", err)
	}
}

func TestHostsThatDoNotAnswerAreSkippedOver(t *testing.T) {
	r := testplane.NewRig(t, 1)
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" {
			return fakehost.ErrDrop
		}
		return nil
	})
	_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.EBadGateway, "agent unreachable"); e.RetryAfter == 0 {
		t.Error("no Retry-After")
	}
	r.H1.SetFault(nil)
	r.H1.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = 100 })
	testcluster.Await(t, "the heartbeat", func() bool {
		return r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Capacity.MemoryMB == 100
	})
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EBadGateway, "no available compute node")
}

func TestPreviewTokensAreForWhatWasAsked(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	for name, c := range map[string]struct {
		in      api.CreatePreviewToken
		message string
	}{
		"port 0, which is not every port": {api.CreatePreviewToken{Port: new(0)}, "invalid port"},
		"a large port":                    {api.CreatePreviewToken{Port: new(65536)}, "invalid port"},
		"no time":                         {api.CreatePreviewToken{TTLSeconds: new(int64(0))}, "invalid ttl_seconds"},
		"too long":                        {api.CreatePreviewToken{TTLSeconds: new(int64(sandbox.MaxPreviewSeconds + 1))}, "invalid ttl_seconds"},
	} {
		_, err := r.Ports.PreviewToken(t.Context(), testplane.Caller, sb.ID, c.in)
		if e := apierror.As(err); err == nil || e.Code != apierror.EInvalid || e.Message != c.message {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := r.Ports.PreviewToken(t.Context(), testplane.Stranger, sb.ID, api.CreatePreviewToken{})
	testplane.Want(t, err, apierror.ENotFound, "not found")
}

// The quotas of a workspace bound what is created at once, by creates and by forks.
func TestQuotasOfSandboxes(t *testing.T) {
	r := testplane.NewRig(t, 1)
	change := func(f func(w *record.Workspace)) {
		r.Update(func(tx *raftstore.Tx) error {
			w, _ := raftstore.Get(tx, record.Workspaces, "ws")
			c := w.Clone()
			f(c)
			raftstore.Put(tx, record.Workspaces, c)
			return nil
		})
	}
	change(func(w *record.Workspace) { w.Quotas.Sandboxes = new(3) })
	var all sync.WaitGroup
	var made, refused atomic.Int64
	for range 8 {
		all.Go(func() {
			switch _, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{}); {
			case err == nil:
				made.Add(1)
			case apierror.As(err).Message == "max sandboxes reached":
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 3 || refused.Load() != 5 {
		t.Fatalf("%d made, %d refused", made.Load(), refused.Load())
	}
	list, _, err := r.List(t.Context(), testplane.Caller, core.ListOptions{})
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	_, err = r.Node.Forks.Fork(t.Context(), testplane.Caller, list[0].ID, api.Fork{}, core.Idempotency{})
	testplane.Want(t, err, apierror.ERateLimited, "max sandboxes reached")
	before := r.LeaderNode().Hosts.Sessions()["h1"].ReservedMB
	change(func(w *record.Workspace) {
		w.Quotas = record.Quotas{CPU: new(3 * list[0].CPU), MemoryMB: new(1 << 20)}
	})
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.ERateLimited, "workspace resource quota exceeded"); e.Fields["cpu_used"] != 3*list[0].CPU {
		t.Errorf("%v", e.Fields)
	}
	if after := r.LeaderNode().Hosts.Sessions()["h1"].ReservedMB; after != before {
		t.Errorf("a refused create keeps %d MB", after-before)
	}
	change(func(w *record.Workspace) {
		w.Quotas = record.Quotas{}
		w.SubscriptionStatus = record.SubscriptionPastDue
	})
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.EQuota, "subscription not active"); e.Fields["subscription_status"] != "past_due" {
		t.Errorf("%v", e.Fields)
	}
}
